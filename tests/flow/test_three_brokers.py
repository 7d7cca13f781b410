# SPDX-License-Identifier: GPL-2.0-or-later
"""Brokers are lost and started again under pushes: every push that its pusher was promised is announced once, in order.

Lost, one after the other, are the leader of the busiest partition of `events`, the coordinator of the aggregator's transactions,
the active controller, two brokers at once, and each broker of a rolling restart.
"""

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hgext.vcsreplicator.aggregator.loading import IDENTITY
from hgext.vcsreplicator.log import EVENTS, Log
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.installation import PATIENCE, Installation
from testing.builders.load import create
from testing.checks import agreement, checker
from testing.checks.lines import announced, told_in_order
from testing.services.guard import signal_all
from testing.services.kafka.cluster import KafkaCluster, Member
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.slow]

# Seconds for which two brokers are away, within which `check` must say so, and must find all well after the last fault.
AWAY, NAMED, WELL = 20.0, 60.0, 60.0


@pytest.mark.timeout(1800)
def test_whatever_brokers_are_lost_each_promised_push_is_told_in_order(
    tmp_path: Path, told: Callable[[object], None]
) -> None:
    with KafkaCluster() as kafka, open_log(kafka.url, creates=True) as log:
        log.create(checker.remembering_topics())
        here = Installation(kafka, tmp_path, pushes=1, repositories=6, per_second=5.0, pushers=6)
        with here.cluster as cluster:
            create(cluster, here.names)
            cluster.start(here.prepare(2)[0])
            begun = time.monotonic()
            with here.pushing():
                here.wait_for_pushes(1.0)
                faults = Faults(here, log, told)
                faults.bring_each()
            lasted = time.monotonic() - begun
            seconds, _ = faults.wait_for_check(WELL, is_well=True)
            told(f"check: all is well after {seconds:.1f} s")
            agreement.settle(cluster, log, here.names, timeout=PATIENCE)
            accepted = here.load.accepted
            eventually(lambda: not announced(cluster.lines(), accepted), "all is told", timeout=PATIENCE)
            cluster.kill("aggregator-1", "aggregator-2", "notifier-1")  # as a request to stop does not reach them
            report = checker.check(checker.history(log))
            problems, repeats = told_in_order(cluster.lines())
            with agreement.Examiner(cluster) as examiner:
                problems += [each for name in here.names for each in examiner.disagreements(name)]
    faults.tell_waits()
    promised = sum(each.is_recorded or each.is_kept for each in accepted)
    rate = f"{len(accepted) / lasted:.1f} a second"
    told(f"{len(accepted)} pushes, {rate}, {promised} promised, {report.events} events, {repeats} lines again")
    assert not here.load.failed
    assert report.violations + problems == []
    assert any(each.is_kept for each in accepted)


class Faults:
    """Brings the faults upon the brokers, one after the other, and tells how long the pushes waited."""

    def __init__(self, here: Installation, log: Log, told: Callable[[object], None]) -> None:
        self._here, self._kafka, self._log, self._told = here, here.kafka, log, told
        self._times: list[tuple[str, float, float]] = []

    def bring_each(self) -> None:
        ends = self._log.ends(EVENTS)
        busiest = max(ends, key=lambda partition: ends[partition])
        self._lose_one("the leader of events", lambda: self._kafka.leader(EVENTS, busiest))
        self._lose_one("the coordinator", lambda: self._kafka.coordinator("transaction", IDENTITY))
        self._lose_one("the controller", self._kafka.controller)
        self._lose_two()
        for number in self._kafka.brokers:
            self._restart(number)

    def wait_for_check(self, seconds: float, *, is_well: bool) -> tuple[float, list[str]]:
        """Wait until `check` names a trouble, or none; the seconds that it took, and what it says.

        What it says of topics that remember all for this test does not count.
        """
        since = time.monotonic()
        while True:
            findings = json.loads(self._here.cluster.cli("check", "--json").stdout)["findings"]
            found = [each["text"] for each in findings if "cleanup.policy is delete" not in each["text"]]
            took = time.monotonic() - since
            assert took < seconds, found
            if (found == []) == is_well:
                return took, found

    def tell_waits(self) -> None:
        """Tell for each fault how long the pushes that began during it waited for their messages."""
        arrived = dict[str, float]()
        for at, line in self._here.consumer.arrived:
            for head in line["data"].get("heads", ()):
                arrived.setdefault(head, at)
        for what, since, until in self._times:
            began = ((head, at) for head, at in self._here.began.items() if since <= at <= until)
            waits = sorted(arrived[head] - at for head, at in began if head in arrived)
            self._told(f"{what}: {len(waits)} pushes, waited {waits[len(waits) // 2]:.1f} s, at most {waits[-1]:.1f} s")

    def _lose_one(self, what: str, find: Callable[[], int]) -> None:
        """Kill a broker, and start it again once a push that began without it is announced."""
        broker, since = self._kafka.brokers[find()], time.monotonic()
        broker.kill()
        self._told(f"{what}: {self._here.consumer.gap(since):.1f} s without messages")
        broker.start()
        self._settle(what, since)

    def _lose_two(self) -> None:
        """Kill two brokers, and start them again once `check` has named it."""
        self.wait_for_check(WELL, is_well=True)
        first, second, _third = self._kafka.brokers.values()
        since = time.monotonic()
        first.kill()
        second.kill()
        known = len(self._here.load.accepted)
        took, found = self.wait_for_check(NAMED, is_well=False)
        self._told(f"two brokers: named after {took:.1f} s: {'; '.join(found)}")
        time.sleep(max(0.0, since + AWAY - time.monotonic()))
        eventually(lambda: any(each.is_kept for each in self._here.load.accepted[known:]), "a pusher reads it")
        again = time.monotonic()
        with ThreadPoolExecutor(2) as starting:
            list(starting.map(Member.start, (first, second)))
        gap = self._here.consumer.gap(since)
        self._told(f"two brokers: {gap:.1f} s without messages, {gap - (again - since):.1f} s from their start")
        self._settle("two brokers", since)

    def _restart(self, number: int) -> None:
        """Restart a broker as an administrator does, who gives it the time that it needs."""
        broker, since = self._kafka.brokers[number], time.monotonic()
        signal_all(broker.guard_pid, signal.SIGTERM)
        eventually(lambda: not broker.running, f"broker {number} ends", timeout=PATIENCE)
        broker.start()
        self._told(f"broker {number} restarted: {self._here.consumer.gap(since):.1f} s without messages")
        self._settle(f"broker {number} restarted", since)

    def _settle(self, what: str, since: float) -> None:
        """Wait until the brokers have all copies again."""
        self._times.append((what, since, time.monotonic()))
        eventually(self._kafka.is_in_sync, "all copies are in sync", timeout=PATIENCE, every=1.0)
