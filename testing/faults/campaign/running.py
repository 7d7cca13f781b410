# SPDX-License-Identifier: GPL-2.0-or-later
"""One campaign: pushers at work, faults by a seed, one after the other, then all is healed, settles and is compared."""

import random
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from testing.builders.load import Pusher, create
from testing.builders.operator import Operator
from testing.checks import agreement
from testing.faults.campaign.history import History, Seen, of_kind
from testing.faults.campaign.judge import list_waits, measure_recovery
from testing.faults.campaign.observing import compare, observing
from testing.faults.campaign.site import Site
from testing.faults.campaign.table import FAULTS, Fault
from testing.waiting import eventually

PUSHERS, REPOSITORIES = 3, 6
# Seconds to wait for what must follow the last fault, and for which `check` is still asked then.
SETTLE, ASKED_ON = 180.0, 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do: the seed decides in which order `faults` strike, for `seconds` and until there were so many `strikes`.

    Each strikes once before any strikes again, as many `together` as touch different parts. Between two times are up to `pause`
    seconds, by chance. An installation that `is_whole` recovers before the next. All faults need the same number of brokers.
    """

    seed: int
    faults: Sequence[Fault] = FAULTS
    seconds: float = 0.0
    strikes: int = 0
    pause: float = 2.0
    together: int = 1
    is_whole: bool = True


def draw(plan: Plan) -> Iterator[tuple[list[Fault], random.Random]]:
    """Yield the schedule, endless: the faults of each time, with the chance that decides all else about them.

    At one time are faults that last about as long, so that more strike in an hour.
    """
    chance, number = random.Random(plan.seed), 0
    while True:
        waiting = chance.sample(plan.faults, len(plan.faults))
        while waiting:
            first, *others = waiting
            now = [first]
            for fault in sorted(others, key=lambda other: abs(other.hold - first.hold)):
                if len(now) < plan.together and not any(fault.meets(other) for other in now):
                    now.append(fault)
            waiting = [fault for fault in waiting if fault not in now]
            yield now, random.Random(f"{plan.seed}-{number}")
            number += 1


def run(plan: Plan, folder: Path) -> list[Seen]:
    """Run one campaign in an empty folder; the history, which is in its file `history.jsonl` too."""
    history = History(folder / "history.jsonl")
    [brokers] = {fault.brokers for fault in plan.faults}
    with Site(folder, history, is_whole=plan.is_whole, brokers=brokers) as site:
        history.add("began", str(plan.seed), destinations=site.destinations)
        names = [f"repository-{number}" for number in range(REPOSITORIES)]
        create(site.cluster, names)
        with observing(site):
            with _pushing(site, names, plan.seed):
                _strike_each(site, plan)
            names += sorted(site.load.living)
            _settle(site, names)
            if plan.is_whole:
                time.sleep(ASKED_ON)
        compare(site, names)
    for process in agreement.left_behind(folder):
        history.add("trouble", f"process {process}", text="is left behind")
    history.add("ended")
    history.close()
    return history.seen


@contextmanager
def _pushing(site: Site, names: list[str], seed: int) -> Iterator[None]:
    """Pushers at work; at the end each has been told how its last push stands."""
    stop = threading.Event()
    for number in range(PUSHERS):
        site.pushers.append(Pusher(site.cluster, names[number::PUSHERS], site.load, stop, f"{seed}-{number}"))
    at_work = list(site.pushers)
    if site.is_whole:
        site.operator = Operator(site.cluster, ["acts"], site.load, stop, f"{seed}-operator")
        at_work.append(site.operator)
    for thread in at_work:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in at_work:
            thread.join()


def _strike_each(site: Site, plan: Plan) -> None:
    """In the main thread: the kernel ends what a thread started when that thread ends."""
    eventually(lambda: site.load.accepted or site.load.failed, "the first push", timeout=SETTLE)
    began, count = time.monotonic(), 0
    for faults, chance in draw(plan):
        if site.load.failed or (count >= plan.strikes and time.monotonic() - began >= plan.seconds):
            return
        site.random = chance
        time.sleep(chance.uniform(0, plan.pause))
        _strike(site, faults)
        count += len(faults)
        if plan.is_whole:
            _wait_recovered(site)
        site.spared.clear()


def _strike(site: Site, faults: Sequence[Fault]) -> None:
    """Strike at once, and heal each after its own time; all count as healed when the last one is."""
    site.spared.update(*(fault.spares for fault in faults))
    begin = site.history.clock()
    with ExitStack() as lasting:
        healing = list[tuple[float, Fault, ExitStack]]()
        for fault in faults:
            each = lasting.enter_context(ExitStack())
            with _noting_trouble(site, fault):
                each.enter_context(fault.strike(site))
            healing.append((site.history.clock() + (fault.hold if site.is_whole else 0.0), fault, each))
        for due, fault, each in sorted(healing, key=lambda known: known[0]):
            time.sleep(max(0.0, due - site.history.clock()))
            with _noting_trouble(site, fault):
                each.close()
    site.revive()
    within = max(fault.within for fault in faults) if site.is_whole else SETTLE
    end = site.history.clock()
    for fault in faults:
        site.history.add("struck", fault.id, begin=begin, end=end, within=within, spares=fault.spares)


@contextmanager
def _noting_trouble(site: Site, fault: Fault) -> Iterator[None]:
    try:
        yield
    except Exception:
        site.history.add("trouble", fault.id, text=traceback.format_exc())


def _wait_recovered(site: Site) -> None:
    """Wait until each destination has all that was pushed before the last fault was healed, and a push that began since.

    Not for ever.
    """
    known = list(site.history.seen)
    began = of_kind(known, "began")
    strike = of_kind(known, "struck")[-1]
    owed = {(name, head) for _, until, name, head in list_waits(known) if until == float("inf")}
    end = time.monotonic() + 1.5 * strike.what["within"]
    while time.monotonic() < end:
        since = site.history.seen[len(known) :]
        seconds = measure_recovery([*began, *since], strike, float("inf"))
        got = {(each.who, head) for each in of_kind(since, "delivered") for head in each.what["heads"]}
        if owed <= got and seconds and all(each is not None and each != float("inf") for each in seconds.values()):
            return
        site.revive()
        time.sleep(0.3)


def _settle(site: Site, names: list[str]) -> None:
    """Return once mirrors serve all that the master has, and every destination has all that was pushed."""
    end = time.monotonic() + SETTLE
    while waiting := [*agreement.unsettled(site.cluster, site.log, names), *_list_undelivered(site)]:
        if time.monotonic() > end:
            for each in waiting:
                site.history.add("trouble", "settling", text=f"not settled after {SETTLE:g} s: {each}")
            return
        site.revive()
        time.sleep(0.5)


def _list_undelivered(site: Site) -> list[str]:
    delivered: dict[str, set[str]] = {}
    for each in of_kind(list(site.history.seen), "delivered"):
        delivered.setdefault(each.who, set()).update(each.what["heads"])
    pushed = {each.head for each in site.load.accepted}
    return [f"{name} lacks {len(pushed - heads)} pushes" for name, heads in delivered.items() if pushed - heads]
