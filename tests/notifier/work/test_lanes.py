# SPDX-License-Identifier: GPL-2.0-or-later
"""Which messages are worked on when: order within a repository, retries, and connections that are lost."""

from hgext.vcsreplicator.words.retry import Backoff
from notifier.hgpush.message import HgPushMessage
from notifier.work.database import RepositoryKey
from notifier.work.lanes import MOST, Lanes, TakenMessage

RETRY = Backoff(first=10.0, longest=100.0, jitter=0.0)


def a_message(tag: int, number: int = 1) -> TakenMessage:
    return TakenMessage(
        tag=tag,
        body=b"",
        repository=RepositoryKey(source="poll", number=number, url="https://h/x"),
        message=HgPushMessage(type="hg-push", repository_id=number, pushes=()),
    )


def some_lanes(*messages: TakenMessage, retries: int = 2) -> Lanes:
    lanes = Lanes(RETRY, retries)
    for message in messages:
        lanes.take(message)
    return lanes


def tags(messages: list[TakenMessage]) -> list[int]:
    return [message.tag for message in messages]


def test_messages_of_a_repository_are_taken_together_and_the_next_wait_for_them() -> None:
    lanes = some_lanes(*map(a_message, range(1, MOST + 3)))
    first = lanes.begin(0.0)
    assert tags(first) == list(range(1, MOST + 1))
    assert lanes.begin(0.0) == []
    assert lanes.settle(first)
    assert tags(lanes.begin(0.0)) == [MOST + 1, MOST + 2]


def test_repositories_do_not_wait_for_each_other() -> None:
    lanes = some_lanes(a_message(1), a_message(2, 2), a_message(3))
    assert [tags(lanes.begin(0.0)) for _ in range(3)] == [[1, 3], [2], []]


def test_failure_of_several_is_found_by_taking_them_one_by_one() -> None:
    lanes = some_lanes(a_message(1), a_message(2), a_message(3))
    assert not lanes.fail(lanes.begin(0.0), 0.0, 0.5)
    first = lanes.begin(0.0)
    assert tags(first) == [1]
    assert lanes.settle(first)
    assert tags(lanes.begin(0.0)) == [2, 3]


def test_message_is_tried_again_as_often_as_is_set_with_growing_delays() -> None:
    lanes = some_lanes(a_message(1), retries=2)
    assert not lanes.fail(lanes.begin(0.0), 0.0, 0.5)
    assert lanes.begin(9.9) == []
    assert not lanes.fail(lanes.begin(10.0), 10.0, 0.5)
    assert lanes.begin(29.9) == []
    assert lanes.fail(lanes.begin(30.0), 30.0, 0.5)


def test_later_messages_wait_for_one_that_fails_and_go_on_once_it_is_kept_elsewhere() -> None:
    lanes = some_lanes(a_message(1), retries=0)
    first = lanes.begin(0.0)
    lanes.take(a_message(2))
    assert lanes.fail(first, 0.0, 0.5)
    assert lanes.begin(0.0) == []
    assert lanes.settle(first)
    assert tags(lanes.begin(0.0)) == [2]


def test_repositories_take_turns() -> None:
    lanes = some_lanes(*map(a_message, range(1, MOST + 2)), a_message(500, number=2))
    assert lanes.settle(lanes.begin(0.0))
    assert tags(lanes.begin(0.0)) == [500]


def test_long_wait_for_a_database_leaves_all_retries() -> None:
    lanes = some_lanes(a_message(1), retries=1)
    for now in range(5):
        lanes.put_off(lanes.begin(now), now + 1.0)
    assert not lanes.fail(lanes.begin(5.0), 5.0, 0.0)


def test_wait_for_a_database_uses_no_retry() -> None:
    lanes = some_lanes(a_message(1), retries=0)
    for now in (0.0, 5.0, 10.0):
        messages = lanes.begin(now)
        assert tags(messages) == [1]
        lanes.put_off(messages, now + 5.0)
        assert lanes.begin(now + 4.9) == []


def test_what_was_begun_on_a_lost_connection_is_not_acknowledged_on_the_next() -> None:
    lanes = some_lanes(a_message(1), a_message(2))
    begun = lanes.begin(0.0)
    lanes.forget()
    lanes.take(a_message(7))
    assert lanes.begin(0.0) == []  # the clone is in use
    assert not lanes.settle(begun)
    assert tags(lanes.begin(0.0)) == [7]


def test_retries_go_on_over_a_lost_connection() -> None:
    lanes = some_lanes(a_message(1), retries=1)
    assert not lanes.fail(lanes.begin(0.0), 0.0, 0.5)
    lanes.forget()
    lanes.take(a_message(9))
    assert lanes.fail(lanes.begin(10.0), 10.0, 0.5)
