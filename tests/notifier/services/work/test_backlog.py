# SPDX-License-Identifier: GPL-2.0-or-later
"""Which messages are worked on when: order within a repository, retries, and connections that are lost."""

import dataclasses

from hgext.vcsreplicator.words.retry import Backoff
from notifier.messages.pushes import HgPushMessage
from notifier.services.work.backlog import MOST, SLOW, MessageBacklog, TakenMessage
from notifier.services.work.database import RepositoryKey

RETRY = Backoff(first=10.0, longest=100.0, jitter=0.0)


def a_message(tag: int, number: int = 1) -> TakenMessage:
    return TakenMessage(
        tag=tag,
        body=b"",
        repository=RepositoryKey(source="poll", number=number, url="https://h/x"),
        message=HgPushMessage(type="hg-push", repository_id=number, pushes=()),
    )


def some_backlog(*messages: TakenMessage, retries: int = 2, threads: int = 2) -> MessageBacklog:
    backlog = MessageBacklog(RETRY, retries, threads)
    for message in messages:
        backlog.take_message(message)
    return backlog


def begin(backlog: MessageBacklog, now: float) -> list[TakenMessage]:
    turn = backlog.next_turn(now)
    if turn is None:
        return []
    backlog.begin(turn.name, now)
    return list(turn.messages)


def tags(messages: list[TakenMessage]) -> list[int]:
    return [message.tag for message in messages]


def test_messages_of_a_repository_are_taken_together() -> None:
    backlog = some_backlog(*map(a_message, range(1, MOST + 3)))
    first = begin(backlog, 0.0)
    assert tags(first) == list(range(1, MOST + 1))
    assert begin(backlog, 0.0) == []
    assert backlog.settle(first, 0.0)
    assert tags(begin(backlog, 0.0)) == [MOST + 1, MOST + 2]


def test_repositories_do_not_wait_for_each_other() -> None:
    backlog = some_backlog(a_message(1), a_message(2, 2), a_message(3))
    assert [tags(begin(backlog, 0.0)) for _ in range(3)] == [[1, 3], [2], []]


def test_failure_of_several_is_found_by_taking_them_one_by_one() -> None:
    backlog = some_backlog(a_message(1), a_message(2), a_message(3))
    assert not backlog.fail(begin(backlog, 0.0), 0.0, 0.5)
    first = begin(backlog, 0.0)
    assert tags(first) == [1]
    assert backlog.settle(first, 0.0)
    assert tags(begin(backlog, 0.0)) == [2, 3]


def test_message_is_tried_again_as_often_as_is_set_with_growing_delays() -> None:
    backlog = some_backlog(a_message(1), retries=2)
    assert not backlog.fail(begin(backlog, 0.0), 0.0, 0.5)
    assert begin(backlog, 9.9) == []
    assert not backlog.fail(begin(backlog, 10.0), 10.0, 0.5)
    assert begin(backlog, 29.9) == []
    assert backlog.fail(begin(backlog, 30.0), 30.0, 0.5)


def test_later_messages_wait_for_one_that_fails_until_it_is_kept() -> None:
    backlog = some_backlog(a_message(1), retries=0)
    first = begin(backlog, 0.0)
    backlog.take_message(a_message(2))
    assert backlog.fail(first, 0.0, 0.5)
    assert backlog.settle(first, 0.0)
    assert tags(begin(backlog, 0.0)) == [2]


def test_repositories_take_turns() -> None:
    backlog = some_backlog(*map(a_message, range(1, MOST + 2)), a_message(500, number=2))
    assert backlog.settle(begin(backlog, 0.0), 0.0)
    assert tags(begin(backlog, 0.0)) == [500]


def test_long_wait_for_a_database_leaves_all_retries() -> None:
    backlog = some_backlog(a_message(1), retries=1)
    for now in range(5):
        backlog.put_off(begin(backlog, now), now, 1.0)
    assert not backlog.fail(begin(backlog, 5.0), 5.0, 0.0)


def test_wait_for_a_database_uses_no_retry() -> None:
    backlog = some_backlog(a_message(1), retries=0)
    for now in (0.0, 5.0, 10.0):
        messages = begin(backlog, now)
        assert tags(messages) == [1]
        backlog.put_off(messages, now, 5.0)
        assert begin(backlog, now + 4.9) == []


def test_what_was_begun_on_a_lost_connection_is_not_acknowledged() -> None:
    backlog = some_backlog(a_message(1), a_message(2))
    begun = begin(backlog, 0.0)
    backlog.forget()
    backlog.take_message(a_message(7))
    assert begin(backlog, 0.0) == []  # the clone is in use
    assert not backlog.settle(begun, 0.0)
    assert tags(begin(backlog, 0.0)) == [7]


def test_retries_go_on_over_a_lost_connection() -> None:
    backlog = some_backlog(a_message(1), retries=1)
    assert not backlog.fail(begin(backlog, 0.0), 0.0, 0.5)
    backlog.forget()
    backlog.take_message(a_message(9))
    assert backlog.fail(begin(backlog, 10.0), 10.0, 0.5)


def park(backlog: MessageBacklog, now: float = 0.0) -> list[int]:
    """Park what is to be parked; the tags."""
    messages = backlog.to_park(now)
    backlog.park([dataclasses.replace(message, tag=0, row=message.tag) for message in messages])
    return tags(messages)


def test_repository_that_fails_is_parked_whole_and_newer_messages_follow() -> None:
    backlog = some_backlog(a_message(1), a_message(2), a_message(3, number=2))
    assert park(backlog) == []
    backlog.fail(begin(backlog, 0.0), 0.0, 0.5)
    assert park(backlog) == [1, 2]
    backlog.take_message(a_message(4))
    assert park(backlog) == [4]
    turn = backlog.next_turn(0.0)
    assert turn is not None
    assert (turn.name, turn.is_parked) == (("poll", 2), False)


def test_parked_repository_is_worked_on_one_by_one_when_it_is_due() -> None:
    backlog = some_backlog(a_message(1))
    backlog.fail(begin(backlog, 0.0), 0.0, 0.5)
    park(backlog)
    assert backlog.next_turn(9.9) is None
    turn = backlog.next_turn(10.0)
    assert turn is not None
    assert (turn.is_parked, turn.most, turn.messages) == (True, 1, ())
    backlog.begin(turn.name, 10.0)
    assert backlog.settle([dataclasses.replace(a_message(0), row=1)], 0.0)
    turn = backlog.next_turn(10.0)
    assert turn is not None
    assert turn.most == MOST
    backlog.unpark(turn.name)
    assert backlog.next_turn(10.0) is None


def test_slow_repository_is_parked_with_what_is_under_way() -> None:
    backlog = some_backlog(a_message(1))
    begun = begin(backlog, 0.0)
    backlog.take_message(a_message(2))
    assert park(backlog, SLOW - 0.1) == []
    assert park(backlog, SLOW) == [1, 2]
    assert not backlog.settle(begun, 0.0)  # the broker has its acknowledgement
    turn = backlog.next_turn(SLOW)
    assert turn is not None
    assert turn.is_parked


def test_slow_repositories_leave_a_thread_to_others() -> None:
    """Two of a hostile host, whose pulls fail after twenty minutes, took both again and again."""
    backlog = some_backlog(a_message(1), a_message(2, number=2))
    backlog.fail(begin(backlog, 0.0), 1200.0, 0.5)
    backlog.put_off(begin(backlog, 0.0), 1200.0, 10.0, is_alone=True)
    assert tags(begin(backlog, 1210.0)) == [1]
    assert begin(backlog, 1210.0) == []
    backlog.take_message(a_message(3, number=3))
    other = begin(backlog, 1210.0)
    assert tags(other) == [3]
    assert backlog.settle(other, 1211.0)
    assert begin(backlog, 1211.0) == []


def test_repository_whose_work_becomes_slow_counts_as_one() -> None:
    backlog = some_backlog(a_message(1), a_message(2, number=2))
    backlog.fail(begin(backlog, 0.0), SLOW, 0.5)
    assert tags(begin(backlog, SLOW + 1.0)) == [2]
    assert begin(backlog, SLOW + 1.0 + SLOW) == []


def test_repository_that_was_slow_is_like_others_after_quick_work() -> None:
    backlog = some_backlog(a_message(1))
    assert backlog.settle(begin(backlog, 0.0), SLOW)
    backlog.take_message(a_message(2))
    assert backlog.settle(begin(backlog, SLOW), SLOW + 1.0)
    for message in (a_message(3, number=2), a_message(4)):
        backlog.take_message(message)
    begin(backlog, 20.0)
    assert tags(begin(backlog, 40.0)) == [4]


def test_only_thread_is_for_slow_repositories_too() -> None:
    backlog = some_backlog(a_message(1), threads=1)
    backlog.fail(begin(backlog, 0.0), SLOW, 0.5)
    assert tags(begin(backlog, 20.0)) == [1]


def test_wait_for_a_database_parks_nothing() -> None:
    backlog = some_backlog(a_message(1))
    backlog.put_off(begin(backlog, 0.0), 0.0, 5.0)
    assert park(backlog, 100.0) == []


def test_wait_for_its_own_clone_parks_a_repository_and_uses_no_retry() -> None:
    backlog = some_backlog(a_message(1), a_message(2), a_message(3, number=2), retries=0)
    backlog.put_off(begin(backlog, 0.0), 0.0, 5.0, is_alone=True)
    assert park(backlog) == [1, 2]
    assert tags(begin(backlog, 0.0)) == [3]
    turn = backlog.next_turn(5.0)
    assert turn is not None
    assert (turn.most, turn.is_parked) == (MOST, True)
    backlog.begin(turn.name, 5.0)
    assert backlog.settle([dataclasses.replace(a_message(0), row=each) for each in (1, 2)], 0.0)
    backlog.unpark(turn.name)
    backlog.take_message(a_message(4))
    assert park(backlog, 5.0) == []


def test_new_connection_knows_what_the_database_has() -> None:
    backlog = some_backlog(a_message(1))
    backlog.fail(begin(backlog, 0.0), 0.0, 0.5)
    park(backlog)
    backlog.forget()
    backlog.restore({("poll", 5)})
    backlog.take_message(a_message(1))
    backlog.take_message(a_message(2, number=5))
    turn = backlog.next_turn(0.0)
    assert turn is not None
    assert (turn.name, turn.is_parked) == (("poll", 5), True)
    assert park(backlog) == [1, 2]
