# SPDX-License-Identifier: GPL-2.0-or-later
"""An aggregator or notifier that works is stopped, cut off, or has a wrong clock, and comes back: never do two of them write.

Three brokers, and each service on a machine of its own, under pushes. That no two wrote by turns is read from the brokers' files:
each batch has the epoch of its writer.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log import NOTICES, PENDING, SERVICES, STATE, Log
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import Notice, ServiceReport
from hgext.vcsreplicator.words.shape import from_json
from notifier.publishing.position import group
from testing.builders.installation import PATIENCE, Installation
from testing.builders.load import create
from testing.checks import agreement, checker
from testing.checks.lines import announced, told_in_order
from testing.faults.cut import Network
from testing.faults.wrong_clock import clocked, set_clock
from testing.services.guard import signal_all, stand_still
from testing.services.kafka.batches import find_older_writers, find_returned_writers, read_batches
from testing.services.kafka.cluster import KafkaCluster
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PUSHES = 60
HOUR = 3600.0
# Seconds for which a process is stopped, or its network cut: both longer than `takeover-after`.
STOPPED, CUT = 60.0, 30.0
# The topics that the aggregator alone writes to.
AGGREGATED = (STATE, PENDING, NOTICES)
# Seconds for which a wrong clock must change nothing.
WRONG = 20.0


class Faulty(Installation):
    """An installation whose machines of aggregators and notifiers can be stopped, cut off, and have their clocks set."""

    def __init__(self, kafka: KafkaCluster, folder: Path, opened: ExitStack) -> None:
        self._opened, self._ports = opened, [broker.port for broker in kafka.brokers.values()]
        self.networks: dict[str, Network] = {}
        super().__init__(kafka, folder, pushes=PUSHES, repositories=3, per_second=1.0)
        self.consumer.files = [folder / "machines" / f"notifier-{number}" / "notices.jsonl" for number in (1, 2)]

    def on_a_machine(self, name: str, service: dict[str, Any]) -> dict[str, Any]:
        self.networks[name] = network = self._opened.enter_context(Network(self._ports))
        made = clocked(super().on_a_machine(name, service), self.clock(name))
        config = self.clock(name).with_name("vcsreplicator.toml")
        # Else the notifier that works would wait for the stopped one, which has the file open.
        config.write_text(config.read_text().replace(str(self.cluster.notices), str(config.with_name("notices.jsonl"))))
        unshare, *rest = made["argv"]
        script = rest.index(f'hostname {name} && exec "$@"')
        rest[script] = f'hostname {name} && ip link set lo up && {{ {network.inside} & exec "$@"; }}'
        return {**made, "argv": [unshare, "--net", *rest]}

    def clock(self, name: str) -> Path:
        return self.cluster.folder / "machines" / name / "clock"

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """SIGSTOP for all processes of this machine, within the block."""
        pid = self.cluster.pid(name)
        signal_all(pid, signal.SIGSTOP)
        eventually(lambda: stand_still(pid), "they stand still")
        try:
            yield
        finally:
            signal_all(pid, signal.SIGCONT)

    @contextmanager
    def without_requests(self, name: str) -> Iterator[None]:
        """Nothing that this machine sends reaches a broker, within the block."""
        self.networks[name].requests.clear()
        try:
            yield
        finally:
            self.networks[name].requests.set()

    @contextmanager
    def without_answers(self, name: str) -> Iterator[None]:
        """Nothing that a broker sends reaches this machine, within the block."""
        self.networks[name].answers.clear()
        try:
            yield
        finally:
            self.networks[name].answers.set()

    @contextmanager
    def wrong_clock(self, name: str, ahead: float) -> Iterator[None]:
        """The clock of this machine is wrong, within the block."""
        set_clock(self.clock(name), ahead)
        try:
            yield
        finally:
            set_clock(self.clock(name), 0.0)


def read_reports(log: Log, role: str) -> dict[str, tuple[ServiceReport, float]]:
    """The report of each machine with this role, and the time at which the log took it."""
    table = read_table(log, SERVICES, keep=lambda record: (record.key or "").startswith(f"{role} "))
    return {
        (key or "").split()[1]: (from_json(ServiceReport, record.value or b""), record.time)
        for (_, key), record in table.records.items()
    }


def find_active(log: Log, role: str) -> str:
    """The machine that works; it is the only one to say so."""

    def find() -> str | None:
        active = [name for name, (report, _) in read_reports(log, role).items() if report.works]
        return active[0] if len(active) == 1 else None

    return eventually(find, f"one {role} works", timeout=PATIENCE)


@pytest.mark.timeout(2400)
def test_whatever_stops_the_active_service_never_do_two_write(tmp_path: Path, told: Callable[[object], None]) -> None:
    with ExitStack() as opened:
        kafka = opened.enter_context(KafkaCluster())
        log = opened.enter_context(open_log(kafka.url, creates=True))
        log.create(checker.remembering_topics())
        here = Faulty(kafka, tmp_path, opened)
        cluster = opened.enter_context(here.cluster)
        create(cluster, here.names)
        cluster.start(*here.prepare(2))
        with here.pushing():
            here.wait_for_pushes(1 / 6)
            repeatable = [at for role in ("aggregator", "notifier") for at in bring_faults(here, log, role, told)]
        agreement.settle(cluster, log, here.names, timeout=PATIENCE)
        recorded = [each for each in here.load.accepted if each.is_recorded]
        eventually(lambda: not announced(here.consumer.look(), recorded), "all is told", timeout=PATIENCE)
        cluster.kill("aggregator-1", "aggregator-2", "notifier-1", "notifier-2")
        report = checker.check(checker.history(log))
        problems, repeats = told_in_order(here.consumer.look())
        problems += list_other_repeats(here.consumer.look(), log, repeatable)
        folders = [path for broker in kafka.brokers.values() for path in (broker.folder / "data").glob("*-*/")]
        problems += [line for folder in folders for line in find_older_writers(folder)]
        leader = kafka.brokers[kafka.leader(STATE)].folder / "data"
        problems += [line for topic in AGGREGATED for line in find_returned_writers(leader / f"{topic}-0")]
        epochs = {batch.epoch for batch in read_batches(leader / f"{STATE}-0")}
    told(
        f"{len(recorded)} pushes, {report.notices} notices, {repeats} lines again, {len(epochs)} epochs of aggregators"
    )
    assert report.violations + problems == []
    assert len(epochs) > 3


def bring_faults(here: Faulty, log: Log, role: str, told: Callable[[object], None]) -> list[range]:
    """Bring each fault upon the service that works; the notices of each that it had not confirmed, by their offsets."""
    repeatable = []
    for ahead in (HOUR, -HOUR):
        active = find_active(log, role)
        with here.wrong_clock(active, ahead):
            eventually(lambda: is_wrong(log, role, active, ahead), f"the clock of {active} is wrong")  # noqa: B023
            since, known = time.monotonic(), len(here.load.accepted)
            time.sleep(WRONG)
            assert find_active(log, role) == active
            assert len(here.load.accepted) > known
            told(f"{role}, clock {ahead:+.0f} s: {here.consumer.gap(since):.1f} s")
        assert find_active(log, role) == active
    for fault, seconds in ((here.stopped, STOPPED), (here.without_requests, CUT), (here.without_answers, CUT)):
        active, stored = find_active(log, role), eventually(lambda: find_position(log), "a position is stored")
        since = time.monotonic()
        with fault(active):
            gap = here.consumer.gap(since)
            time.sleep(max(0.0, since + seconds - time.monotonic()))
            repeatable.append(range(stored, log.ends(NOTICES)[0] + 1))
        assert find_active(log, role) != active
        told(f"{role}, {fault.__name__}: {gap:.1f} s")
    return repeatable if role == "notifier" else []


def find_position(log: Log) -> int | None:
    """The position of the lines; None while one is being stored, which a service that is cut off leaves so."""
    with suppress(Unavailable):
        return log.stored(group("lines"), NOTICES).get(0)
    return None


def is_wrong(log: Log, role: str, name: str, ahead: float) -> bool:
    """Whether this machine's newest report has a time that is so much ahead."""
    report, taken_at = read_reports(log, role)[name]
    return abs(report.time - taken_at - ahead) < HOUR / 2


def list_other_repeats(lines: list[dict[str, Any]], log: Log, repeatable: list[range]) -> list[str]:
    """The lines that came again, although a notifier had confirmed them."""
    offsets = {
        from_json(Notice, record.value or b"").event.id: record.offset for record in checker.everything(log, (NOTICES,))
    }
    seen, found = set[str](), []
    for line in lines:
        if line["id"] in seen and not any(offsets[line["id"].partition(".")[0]] in each for each in repeatable):
            found.append(f"{line['id']} came again")
        seen.add(line["id"])
    return found
