# SPDX-License-Identifier: GPL-2.0-or-later
"""The window of one destination: order, position, retries, skips."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.retry import Backoff
from notifier.delivery.window import Delivery, Patience, Window
from notifier.messages.message import Message, messages
from notifier.messages.public import PublicSettings
from testing.builders.notifier.notices import a_notice, an_event

PUBLIC = PublicSettings(urls={"": "https://hg.example/"})
NEVER = float("inf")
STEADY = Backoff(first=1.0, factor=2.0, longest=8.0, jitter=0.0)


def a_window(**patience: object) -> Window:
    return Window(Patience(retry=STEADY, **patience))  # type: ignore[arg-type]


def push(path: str, seq: int, offset: int) -> list[Message]:
    return list(messages(a_notice(an_event(path, seq)), offset, PUBLIC))


def fill(window: Window, *paths: str) -> None:
    """One push a path, at offsets from 0 on."""
    seqs: dict[str, int] = {}
    for offset, path in enumerate(paths):
        seqs[path] = seqs.get(path, 0) + 1
        window.take_record(offset, push(path, seqs[path], offset))


def begun(window: Window, now: float = 0.0) -> list[tuple[str, int]]:
    return [_name(delivery) for delivery in window.next(now)]


def _name(delivery: Delivery) -> tuple[str, int]:
    return delivery.message.repo_url.rsplit("/", 1)[-1], delivery.message.sequence


def test_one_delivery_per_repository_is_under_way() -> None:
    window = a_window()
    fill(window, "x", "x", "y")
    assert begun(window) == [("x", 1), ("y", 1)]
    assert begun(window) == []


def lives(window: Window, *lives: tuple[str, str, Type]) -> None:
    """Messages of repositories by id, at paths, at offsets from 0 on."""
    for offset, (repository, path, kind) in enumerate(lives):
        detail = {"from": "x"} if kind is Type.RENAMED else None
        event = replace(an_event(path, offset + 1, type=kind, detail=detail), repository=repository)
        window.take_record(offset, list(messages(a_notice(event), offset, PUBLIC)))


def test_successor_at_a_url_waits_for_the_last_message_of_its_predecessor() -> None:
    window = a_window()
    lives(window, ("old", "x", Type.CHANGED), ("old", "x", Type.DELETED), ("new", "x", Type.CREATED))
    for seq in (1, 2, 3):
        [delivery] = window.next(float(seq))
        assert delivery.message.sequence == seq
        window.retry(delivery.number, float(seq), 0.5)
        [delivery] = window.next(seq + 10.0)
        window.confirm(delivery.number)
    assert window.position == 3


def test_a_successor_at_a_url_waits_for_the_rename_away_from_it() -> None:
    window = a_window()
    lives(window, ("old", "y", Type.RENAMED), ("new", "x", Type.CREATED), ("other", "z", Type.CREATED))
    renamed, other = window.next(0)
    assert (renamed.message.sequence, other.message.sequence) == (1, 3)
    window.confirm(renamed.number)
    [created] = window.next(0)
    assert created.message.sequence == 2


def test_delivery_says_that_a_successor_at_its_url_waits_for_it() -> None:
    window = a_window()
    lives(window, ("old", "x", Type.CHANGED), ("old", "x", Type.CHANGED), ("other", "z", Type.CHANGED))
    old, other = window.next(0)
    assert not old.has_successor
    assert not other.has_successor
    window.take_record(3, list(messages(a_notice(replace(an_event("x", 1), repository="new")), 3, PUBLIC)))
    window.retry(old.number, 0, 0.5)
    [again] = window.next(10)
    assert again.has_successor
    window.confirm(again.number)
    [second] = window.next(10)
    assert second.has_successor
    window.confirm(second.number)
    [new] = window.next(10)
    assert (new.message.repository, new.has_successor) == ("new", False)


def test_next_of_a_repository_begins_when_the_one_before_is_confirmed() -> None:
    window = a_window()
    fill(window, "x", "x")
    [first] = window.next(0)
    window.confirm(first.number)
    assert begun(window) == [("x", 2)]


def test_position_is_the_first_offset_that_is_not_settled() -> None:
    window = a_window()
    fill(window, "x", "y", "z")
    x, y, z = window.next(0)
    window.confirm(y.number)
    assert window.position == 0
    window.confirm(x.number)
    assert window.position == 2
    window.confirm(z.number)
    assert window.position == 3


def test_record_that_says_nothing_here_moves_the_position() -> None:
    window = a_window()
    window.take_record(0, [])
    window.take_record(1, push("x", 1, 1))
    window.take_record(2, [])
    assert window.position == 1
    [only] = window.next(0)
    window.confirm(only.number)
    assert window.position == 3


def test_record_with_two_messages_is_done_when_both_are() -> None:
    window = a_window()
    window.take_record(0, [*push("x", 1, 0), *push("x", 2, 0)])
    [first] = window.next(0)
    window.confirm(first.number)
    assert window.position == 0
    [second] = window.next(0)
    window.confirm(second.number)
    assert window.position == 1


def test_retry_delays_its_own_repository_only() -> None:
    window = a_window()
    fill(window, "x", "x", "y", "y")
    x, y = window.next(0)
    window.retry(x.number, now=0, chance=0.5)
    window.confirm(y.number)
    assert begun(window, 0.5) == [("y", 2)]
    assert begun(window, 1.0) == [("x", 1)]


def test_retries_wait_longer_each_time_and_never_end() -> None:
    window = a_window(attempts=2)
    fill(window, "x")
    now, waits = 0.0, []
    for _ in range(20):
        [delivery] = window.next(now)
        window.retry(delivery.number, now, 0.5)
        assert window.wakes_at is not None
        waits.append(window.wakes_at - now)
        now = window.wakes_at
    assert waits[:5] == [1, 2, 4, 8, 8]
    assert window.waiting == 1


def test_refused_message_waits_longer_after_each_refusal() -> None:
    window = a_window(attempts=5)
    fill(window, "x", "y")
    now, waits = 0.0, []
    for _ in range(4):
        x = next(each for each in window.next(now) if each.message.repo_url.endswith("/x"))
        assert window.refuse(x.number, now, 0.5)
        wakes_at = window.wakes_at
        assert wakes_at is not None
        assert window.next(wakes_at - 0.01) == []
        waits.append(wakes_at - now)
        now = wakes_at
    assert waits == [1.0, 2.0, 4.0, 8.0]


def test_refused_message_has_a_bounded_number_of_attempts() -> None:
    window = a_window(attempts=3)
    fill(window, "x", "x")
    now, answers = 0.0, []
    for _ in range(3):
        [delivery] = window.next(now)
        answers.append(window.refuse(delivery.number, now, 0.5))
        now += 10
    assert answers == [True, True, False]
    window.settle(delivery.number)
    assert begun(window, now) == [("x", 2)]


def test_positions_begin_anew_where_the_log_lost_records() -> None:
    window = a_window()
    window.take_record(90, push("x", 1, 90))
    window.go_back(3)
    window.take_record(3, push("x", 2, 3))
    [first] = window.next(0)
    window.confirm(first.number)
    assert (first.message.sequence, window.position) == (1, 3)
    [second] = window.next(0)
    window.confirm(second.number)
    assert (second.message.sequence, window.position) == (2, 4)


def test_what_the_log_kept_holds_the_position_after_a_loss() -> None:
    window = a_window()
    window.take_record(1, push("x", 1, 1))
    window.take_record(5, push("y", 1, 5))
    window.go_back(3)
    assert window.position == 1
    x, y = window.next(0)
    window.confirm(x.number)
    assert window.position == 3
    window.confirm(y.number)
    assert window.position == 3


def test_attempts_lost_to_an_outage_do_not_count_as_refusals() -> None:
    window = a_window(attempts=2)
    fill(window, "x")
    now = 0.0
    for _ in range(5):
        [delivery] = window.next(now)
        window.retry(delivery.number, now, 0.5)
        now += 10
    [delivery] = window.next(now)
    assert window.refuse(delivery.number, now, 0.5)


def test_nothing_begins_while_the_destination_is_down() -> None:
    window = a_window()
    fill(window, "x", "y")
    x, y = window.next(0)
    window.give_back(y.number)
    window.give_back(x.number)
    assert window.in_flight == 0
    assert window.down(now=0, chance=0.5) == 1.0
    assert begun(window, 0.9) == []
    assert window.wakes_at == 1.0
    assert [delivery.attempt for delivery in window.next(1.0)] == [1, 1]


def test_an_outage_is_probed_ever_less_until_something_is_confirmed() -> None:
    window = a_window()
    fill(window, "x", "x")
    assert [window.down(0, 0.5) for _ in range(3)] == [1, 2, 4]
    [delivery] = window.next(100)
    window.confirm(delivery.number)
    assert [window.down(100, 0.5) for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_a_side_away_for_long_is_tried_every_five_seconds_at_least(chance: float) -> None:
    window = Window(Patience())
    fill(window, "x")
    assert max(window.down(0, chance) for _ in range(1000)) <= 5
    now = 0.0
    for _ in range(1000):  # SNS and S3 fail message by message
        [delivery] = window.next(now := now + 5)
        window.retry(delivery.number, now, chance)


def test_paused_window_begins_nothing_and_loses_nothing() -> None:
    window = a_window()
    window.paused = True
    fill(window, "x")
    assert begun(window) == []
    window.paused = False
    assert begun(window) == [("x", 1)]


def test_skip_passes_over_the_oldest_message_that_failed() -> None:
    window = a_window()
    fill(window, "fine", "x", "x")
    fine, x = window.next(0)
    window.retry(x.number, 0, 0.5)
    assert window.failed(NEVER) == [x.number]
    assert window.is_skippable(x.number)
    window.settle(x.number)
    window.confirm(fine.number)
    assert window.position == 2
    assert begun(window, 0) == [("x", 2)]
    assert begun(window, 100) == []


def test_skip_leaves_alone_what_has_not_failed_or_is_under_way() -> None:
    window = a_window(in_flight=1)
    fill(window, "x", "y")
    [x] = window.next(0)
    assert window.failed(NEVER) == []
    assert not window.is_skippable(x.number)


def test_a_delivery_may_soon_be_skipped_while_the_one_before_is_tried() -> None:
    window = a_window()
    fill(window, "x", "x", "x")
    [first] = window.next(0)
    _, second, third = range(first.number, first.number + 3)
    assert [window.will_be_skippable(number) for number in (first.number, second, third)] == [True, True, True]
    window.retry(first.number, 0, 0.5)
    assert [window.will_be_skippable(number) for number in (first.number, second, third)] == [False, False, False]


def test_what_was_skipped_before_it_began_does_not_begin() -> None:
    window = a_window()
    fill(window, "x", "y")
    [x] = window.with_id(push("x", 1, 0)[0].id)
    assert window.holds(x)
    assert _name(Delivery(number=x, message=window.settle(x), attempt=0)) == ("x", 1)
    assert not window.holds(x)
    assert begun(window) == [("y", 1)]
    assert window.in_flight == 1


def test_a_failure_counts_up_to_the_time_of_its_message() -> None:
    window = a_window()
    fill(window, "x")
    [x] = window.next(0)
    window.retry(x.number, 0, 0.5)
    created = x.message.created
    assert [window.failed(until) for until in (created - 0.1, created)] == [[], [x.number]]


def test_the_earliest_of_several_retries_is_the_next() -> None:
    window = a_window()
    fill(window, "x", "y", "z")
    x, y, z = window.next(0)
    for delivery, now in ((z, 2.0), (x, 1.0), (y, 3.0)):
        window.retry(delivery.number, now, 0.5)
    assert begun(window, 1.5) == []
    for now, path in ((2.0, "x"), (3.0, "z"), (4.0, "y")):
        assert window.wakes_at == now
        assert begun(window, now) == [(path, 1)]


def test_only_a_window_that_may_begin_something_wakes() -> None:
    window = a_window(in_flight=1)
    assert window.wakes_at is None
    fill(window, "x", "y")
    assert window.wakes_at == 0.0
    window.paused = True
    assert window.wakes_at is None
    window.paused = False
    [x] = window.next(0)
    assert window.wakes_at is None
    window.confirm(x.number)
    assert window.wakes_at == 0.0


def test_an_empty_window_keeps_nothing_of_a_repository() -> None:
    window = a_window()
    fill(window, "x", "x")
    for _ in range(2):
        [delivery] = window.next(0)
        window.confirm(delivery.number)
    assert not window._queues


def test_skip_by_id_needs_no_failure() -> None:
    window = a_window()
    window.paused = True
    fill(window, "x", "y")
    [wanted] = push("y", 1, 1)
    [found] = window.with_id(wanted.id)
    assert window.is_skippable(found)
    assert window.delivery(found).message == wanted


def test_reading_stops_when_the_window_is_full() -> None:
    window = a_window(held=2)
    fill(window, "x", "y", "z")
    assert window.room == 0
    for delivery in window.next(0):
        window.confirm(delivery.number)
    assert window.room == 2


def test_replay_goes_beside_the_live_stream_and_leaves_the_position_alone() -> None:
    window = a_window()
    fill(window, "x")
    [live] = window.next(0)
    [old] = push("x", 7, 0)
    number = window.take_replay(replace(old, replay="dana #1"))
    assert begun(window) == [("x", 7)]
    window.confirm(number)
    assert not window.holds(number)
    assert window.position == 0
    window.confirm(live.number)
    assert window.position == 1


def test_a_replay_of_old_messages_makes_the_destination_no_later() -> None:
    window = a_window()
    [old] = push("x", 7, 0)
    window.take_replay(replace(old, replay="dana #1"))
    assert window.oldest is None
    fill(window, "y")
    assert window.oldest is not None
    assert window.oldest.replay is None


@given(st.lists(st.sampled_from("wxyz"), max_size=30), st.randoms(use_true_random=False), st.integers(1, 4))
def test_any_course_of_events_keeps_order_and_settles_everything(
    paths: list[str], dice: Random, in_flight: int
) -> None:
    window = a_window(in_flight=in_flight, attempts=3)
    fill(window, *paths)
    now, under_way, done = 0.0, {}, []
    for step in range(1000):
        for delivery in window.next(now):
            assert _name(delivery)[0] not in {_name(other)[0] for other in under_way.values()}
            under_way[delivery.number] = delivery
        assert len(under_way) <= in_flight
        if not under_way:
            if not window.waiting:
                break
            assert window.wakes_at is not None
            now = max(now, window.wakes_at)
            continue
        delivery = under_way.pop(dice.choice(sorted(under_way)))
        match dice.randrange(5) if step < 200 else 4:
            case 0:
                window.retry(delivery.number, now, 0.5)
            case 1:
                if not window.refuse(delivery.number, now, 0.5):
                    window.settle(delivery.number)
                    done.append(_name(delivery))
            case 2:
                window.give_back(delivery.number)
                window.down(now, 0.5)
            case _:
                window.confirm(delivery.number)
                done.append(_name(delivery))
        settled = set(done)
        open_offsets = [n for n, name in enumerate(_numbered(paths)) if name not in settled]
        assert window.position == min(open_offsets, default=len(paths))
    for path in set(paths):
        assert [seq for name, seq in done if name == path] == list(range(1, paths.count(path) + 1))


def _numbered(paths: list[str]) -> list[tuple[str, int]]:
    return [(path, paths[: index + 1].count(path)) for index, path in enumerate(paths)]


def test_a_window_is_idle_only_if_it_is_empty_and_may_send() -> None:
    window = a_window()
    assert window.idle(0.0)
    fill(window, "x")
    assert not window.idle(0.0)
    [delivery] = window.next(0.0)
    window.confirm(delivery.number)
    window.down(0.0, 0.5)
    assert not window.idle(0.0)
    assert window.idle(100.0)
    window.paused = True
    assert not window.idle(100.0)


@pytest.mark.parametrize("name", ["in_flight", "held", "attempts"])
def test_patience_takes_every_number_up_to_its_limits(name: str) -> None:
    for number in (1, 1_000_000):
        assert getattr(Patience(**{name: number}), name) == number  # type: ignore[arg-type]
    for number in (0, 1_000_001):
        with pytest.raises(ValueError, match=name):
            Patience(**{name: number})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "least", "most"), [("factor", 1, 100), ("jitter", 0, 1), ("first", 0.001, 8.0)])
def test_retry_takes_every_number_up_to_its_limits(name: str, least: float, most: float) -> None:
    for number in (least, most):
        Patience(retry=replace(STEADY, **{name: number}))  # type: ignore[arg-type]
    for number in (least - 0.0001, most + 1):
        with pytest.raises(ValueError, match=name if name != "first" else "retry"):
            Patience(retry=replace(STEADY, **{name: number}))  # type: ignore[arg-type]
