# SPDX-License-Identifier: GPL-2.0-or-later
"""The queues of webhook deliveries: maturity, turns, limits, order."""

from dataclasses import replace

from notifier.destinations.webhook.fairness import Member, Queues, WaitingDelivery


def queues(*members: Member, workers: int = 10) -> Queues:
    made = Queues(workers=workers)
    made.members.update(enumerate(members, 1))
    return made


def fast(concurrency: int = 10) -> Member:
    return Member(concurrency=concurrency, strict=False)


def strict() -> Member:
    return Member(concurrency=10, strict=True)


def item(
    number: int, subscription: int = 1, repository: str = "x", attempt: int = 0, mature_at: float = 0.0
) -> WaitingDelivery:
    return WaitingDelivery(mature_at, number, subscription, tuple(repository.split()), attempt)


def ids(items: list[WaitingDelivery]) -> list[int]:
    return [each.id for each in items]


def test_first_in_first_out_by_maturity() -> None:
    waiting = queues(fast())
    waiting.add([item(number, attempt=1, mature_at=at) for number, at in ((1, 5), (2, 3), (3, 3), (4, 9))])
    assert ids(waiting.next(5)) == [2, 3, 1]
    assert waiting.wakes_at() == 9


def test_a_first_attempt_begins_at_once_by_any_clock() -> None:
    waiting = queues(fast())
    waiting.add([item(1, mature_at=100), item(2, attempt=1, mature_at=100)])
    assert ids(waiting.next(5)) == [1]


def test_repeats_are_hastened_in_their_order_but_not_before_they_may() -> None:
    waiting = queues(fast(), fast())
    waiting.add([item(number, attempt=1, mature_at=100 - number) for number in (1, 2)])
    waiting.add([replace(item(3, attempt=1, mature_at=90), early_at=20.0), item(4, 2, attempt=1, mature_at=50)])
    waiting.hasten(1, 5)
    begun = waiting.next(5)
    assert [(each.id, each.planned) for each in begun] == [(1, 99), (2, 98)]
    assert (waiting.next(19), ids(waiting.next(20)), waiting.wakes_at()) == ([], [3], 50)


def test_a_new_delivery_in_strict_order_hastens_the_repeat_before_it() -> None:
    waiting = queues(strict())
    x, y = item(1, repository="x", attempt=1, mature_at=90), item(2, repository="y", attempt=1, mature_at=80)
    waiting.add([replace(x, early_at=20.0), y, new := item(3, repository="x z")])
    waiting.hasten_before(new, 5)
    assert (waiting.next(19), waiting.next(20)) == ([], [replace(x, mature_at=20.0, planned=90, early_at=20.0)])


def test_flood_for_one_subscription_does_not_starve_another() -> None:
    waiting = queues(fast(), fast(), workers=5)
    waiting.add([item(number) for number in range(100)])
    waiting.add([item(number, subscription=2) for number in range(100, 102)])
    assert ids(waiting.next(0)) == [0, 100, 1, 101]


def test_slow_endpoints_leave_workers_for_others() -> None:
    waiting = queues(*(fast(concurrency=64) for _ in range(6)), workers=32)
    begun = []
    for subscription in range(1, 7):
        waiting.add([item(100 * subscription + number, subscription=subscription) for number in range(100)])
        begun.append(len(waiting.next(0)))
    assert begun == [16, 8, 4, 2, 1, 1]
    assert waiting.wakes_at() is None


def test_a_single_worker_serves_a_subscription() -> None:
    waiting = queues(fast(), workers=1)
    waiting.add([item(1), item(2)])
    assert ids(waiting.next(0)) == [1]


def test_subscription_has_at_most_its_concurrency_under_way() -> None:
    waiting = queues(fast(concurrency=2))
    waiting.add([item(number) for number in range(5)])
    first = waiting.next(0)
    assert ids(first) == [0, 1]
    assert waiting.next(0) == []
    waiting.finished(first[0])
    assert ids(waiting.next(0)) == [2]


def test_failing_endpoint_gets_one_request_at_a_time() -> None:
    waiting = queues(fast())
    waiting.members[1].failing = True
    waiting.add([item(number) for number in range(5)])
    assert ids(waiting.next(0)) == [0]


def test_repeats_do_not_delay_first_attempts() -> None:
    waiting = queues(fast(), workers=3)
    waiting.add([item(number, attempt=1) for number in range(10)])
    assert len(waiting.next(0)) == 2
    waiting.add([item(20), item(21)])
    assert ids(waiting.next(0)) == [20, 21]


def test_failed_attempt_waits_in_its_next_queue_while_others_go_on() -> None:
    waiting = queues(fast())
    waiting.add([item(1), item(2)])
    first, _ = waiting.next(0)
    waiting.again(first, replace(first, attempt=1, mature_at=10.0))
    waiting.add([item(3)])
    assert ids(waiting.next(5)) == [3]
    assert ids(waiting.next(10)) == [1]


def test_strict_order_lets_one_delivery_of_a_repository_go_at_a_time() -> None:
    waiting = queues(strict())
    waiting.add([item(1), item(2), item(3, repository="y")])
    first, _ = begun = waiting.next(0)
    assert ids(begun) == [1, 3]
    waiting.again(first, replace(first, attempt=1, mature_at=10.0))
    assert waiting.next(5) == []
    [repeated] = waiting.next(10)
    waiting.finished(repeated)
    assert ids(waiting.next(10)) == [2]


def test_a_delivery_that_fails_during_a_pause_does_not_stay_here() -> None:
    waiting = queues(fast())
    waiting.add([item(1)])
    [begun] = waiting.next(0)
    waiting.members[1].paused = True
    waiting.again(begun, item(1, attempt=1))
    assert waiting.waiting == 0


def test_paused_subscription_begins_nothing() -> None:
    waiting = queues(fast(), fast())
    waiting.members[1].paused = True
    waiting.add([item(1), item(2, subscription=2)])
    assert ids(waiting.next(0)) == [2]
    assert waiting.wakes_at() is None


def test_what_is_under_way_for_a_removed_subscription_leaves_nothing() -> None:
    before = queues(strict(), fast())
    before.add([item(1), item(2), item(3)])
    [begun] = before.next(0)
    after = queues(strict(), fast(), workers=1)
    del after.members[1]
    after.add([item(2), item(3), item(9, subscription=2)], {begun.id: begun})
    assert after.next(0) == []
    after.finished(begun)
    assert ids(after.next(0)) == [9]
    assert after.waiting == 0


def test_what_is_under_way_stays_so_when_the_queues_are_built_again() -> None:
    before = queues(Member(concurrency=2, strict=True))
    before.add([item(1), item(2), item(3, repository="y")])
    under_way = {each.id: each for each in before.next(0)}
    after = queues(Member(concurrency=2, strict=True))
    after.add([item(1), item(2), item(3, repository="y"), item(4, repository="z")], under_way)
    assert after.next(0) == []
    after.finished(under_way[1])
    assert ids(after.next(0)) == [2]
    after.finished(under_way[3])
    assert ids(after.next(0)) == [4]


def test_in_strict_order_a_successor_waits_for_its_predecessors_last() -> None:
    waiting = queues(strict())
    waiting.add([item(1, repository="x url"), item(2, repository="x other url"), item(3, repository="y url")])
    waiting.add([item(4, repository="y url"), item(5, repository="z elsewhere")])
    [first, other] = waiting.next(0)
    assert ids([first, other]) == [1, 5]
    waiting.again(first, replace(first, attempt=1, mature_at=1.0))
    [again] = waiting.next(1)
    waiting.finished(again)
    [second] = waiting.next(1)
    assert second.id == 2
    waiting.finished(second)
    [third] = waiting.next(1)
    assert third.id == 3
    waiting.finished(third)
    assert ids(waiting.next(1)) == [4]
