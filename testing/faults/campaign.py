# SPDX-License-Identifier: GPL-2.0-or-later
"""A fault campaign: everything is killed at random under load, then every promise is checked.

    python -m testing.faults.campaign --log sqlite|kafka --kills 300 --seconds 900 --seed 7

Real `hg push` runs into several repositories at once while relay, mirrors, their workers, aggregator, notifier, the master's web
server, serving processes, the developers' own hg and the broker are ended by SIGKILL and started again. While it runs, each
delivered notice is tried at once on every mirror. When all has settled:

- every push of which the pusher was told that it is in was announced, in order, each once; nothing is announced twice;
- the recorded history (`checker`) has no early, lost, doubled or misordered release or notice;
- mirrors hold what the master holds, `hg verify` and `hg verifypushlog` find nothing (`agreement`);
- no service ended by itself, and nothing is left behind: processes, journals.

The same seed kills in the same order; when a kill strikes is up to the machine. A violation keeps the folder and prints the seed.
"""

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.cluster import Cluster
from testing.builders.load import Accepted, Load, Pusher, create
from testing.checks import agreement, checker
from testing.services.guard import descendants
from testing.services.kafka import Kafka
from testing.warm import is_stem

PUSHERS = 3
REPOSITORIES = 6
# How often each is killed, in proportion. `worker` is one of a mirror's, `serve` a `hg serve --stdio` of a push.
WEIGHTS = {
    "relay": 4,
    "mirror-alpha": 3,
    "mirror-beta": 3,
    "worker": 5,
    "aggregator": 4,
    "notifier": 3,
    "web-master": 3,
    "serve": 3,
    "developer": 2,
    "broker": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do: `kills` spread over `seconds`, on this kind of log, by chance from `seed`; services may start warm."""

    log: Literal["sqlite", "kafka"]
    kills: int
    seconds: float
    seed: int
    settle: float = 180.0
    is_warm: bool = False


@dataclass(slots=True, kw_only=True)
class Result:
    """What happened; all is well if `violations` is empty."""

    plan: Plan
    kills: Counter[str] = field(default_factory=Counter)
    pushes: int = 0
    interrupted: int = 0
    events: int = 0
    notices: int = 0
    lines: int = 0
    tried: int = 0
    repeated_events: int = 0
    repeated_lines: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        roles = ", ".join(f"{role} {count}" for role, count in sorted(self.kills.items()))
        told = [
            f"log {self.plan.log}, seed {self.plan.seed}, {self.seconds:.0f} s",
            f"kills        {self.kills.total()} ({roles})",
            f"pushes       {self.pushes} accepted, {self.interrupted} of them after attempts that failed",
            f"events       {self.events}, {self.repeated_events} repeated in the log (allowed)",
            f"notices      {self.notices}, each once unless told below",
            f"delivered    {self.lines} lines, {self.repeated_lines} repeated (allowed); {self.tried} tried on every mirror",
            f"violations   {len(self.violations)}",
        ]
        return "\n".join(told + [f"  {violation}" for violation in self.violations])


def run(plan: Plan, folder: Path) -> Result:
    """One campaign in an empty folder. Raises AssertionError only if the cluster cannot even be started."""
    result = Result(plan=plan)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Kafka()) if plan.log == "kafka" else None
        url = broker.url if broker else f"sqlite:///{str(folder / 'log.db').lstrip('/')}"
        log = stack.enter_context(open_log(url, creates=True))
        log.create(checker.remembering_topics())
        cluster = stack.enter_context(Cluster(folder, "--log", url, warm=plan.is_warm))
        names = [f"repository-{number}" for number in range(REPOSITORIES)]
        create(cluster, names)
        load = Load()
        with _tried(cluster, load, result):
            with _pushing(cluster, names, load, plan) as pushers:
                Strikes(cluster, broker, pushers, plan, result).run()
            _settle(cluster, log, names, load, plan, result)
        _judge(cluster, log, names, load, result)
    left = [process for process in agreement.processes_below(folder) if not is_stem(process)]
    result.violations += [f"process {process} is left behind" for process in left]
    result.seconds = time.monotonic() - began
    return result


class Strikes:
    """Kills and revives, in the main thread: the kernel ends what a thread started when that thread ends."""

    def __init__(
        self, cluster: Cluster, broker: Kafka | None, pushers: list[Pusher], plan: Plan, result: Result
    ) -> None:
        self._cluster, self._broker, self._pushers = cluster, broker, pushers
        self._plan, self._result = plan, result
        self._random = random.Random(plan.seed)
        self._ended: set[int] = set()

    def run(self) -> None:
        pause = self._plan.seconds / self._plan.kills
        for role in self._order():
            time.sleep(self._random.uniform(0, 2 * pause))
            while not self._strike(role):
                time.sleep(0.02)
            self._result.kills[role] += 1
            self._revive()

    def _order(self) -> list[str]:
        """Each role at least once, if there are kills enough."""
        roles = [role for role in WEIGHTS if role != "broker" or self._broker is not None]
        more = self._random.choices(roles, [WEIGHTS[role] for role in roles], k=max(0, self._plan.kills - len(roles)))
        order = [*roles, *more]
        self._random.shuffle(order)
        return order[: self._plan.kills]

    def _strike(self, role: str) -> bool:
        """Whether there was something to kill."""
        match role:
            case "broker":
                assert self._broker is not None
                self._broker.kill()
                self._broker.start()
                return True
            case "worker":
                mirror = self._random.choice(["mirror-alpha", "mirror-beta"])
                return self._kill_one([each for each in descendants(self._cluster.pid(mirror)) if not is_stem(each)])
            case "serve":
                mine = [pid for pusher in self._pushers if (pid := pusher.developer.pid)]
                return self._kill_one([process for pid in mine for process in descendants(pid)])
            case "developer":
                pusher = self._random.choice(self._pushers)
                with pusher.working:
                    return self._kill_one([pid for pid in [pusher.developer.pid] if pid])
            case _:
                self._note_exits()
                self._cluster.kill(role)
                return True

    def _kill_one(self, processes: list[int]) -> bool:
        if not processes:
            return False
        try:
            os.kill(self._random.choice(processes), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _revive(self) -> None:
        self._note_exits()
        self._cluster.revive(*(role for role in self._cluster.roles if not self._cluster.running(role)))

    def _note_exits(self) -> None:
        """A service that ended by another way than our kill broke the promise to heal by itself."""
        for role in self._cluster.roles:
            code, pid = self._cluster.exit_code(role), self._cluster.pid(role)
            if code not in (None, -signal.SIGKILL) and pid not in self._ended:
                self._ended.add(pid)
                told = self._cluster.output(role).splitlines()[-1:]
                self._result.violations.append(f"{role} ended with {code}: {told}")


@contextlib.contextmanager
def _pushing(cluster: Cluster, names: list[str], load: Load, plan: Plan) -> Iterator[list[Pusher]]:
    """Pushers at work; at the end each has been told how its last push stands."""
    stop = threading.Event()
    pushers = [
        Pusher(cluster, names[number::PUSHERS], load, stop, f"{plan.seed}-{number}") for number in range(PUSHERS)
    ]
    for pusher in pushers:
        pusher.start()
    try:
        yield pushers
    finally:
        stop.set()
        for pusher in pushers:
            pusher.join()


@contextlib.contextmanager
def _tried(cluster: Cluster, load: Load, result: Result) -> Iterator[None]:
    """Each delivered line is tried on every mirror as soon as it can be read."""
    stop = threading.Event()

    def follow() -> None:
        done, last = 0, False
        while not last:
            last = stop.wait(0.02)
            for line in (lines := cluster.lines())[done:]:
                result.violations += try_line(cluster, line, load.amended)
                result.tried += 1
            done = len(lines)

    thread = threading.Thread(target=follow, name="trying")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def try_line(cluster: Cluster, line: dict[str, Any], amended: set[str]) -> list[str]:
    """What a receiver who asks every mirror at once would miss. An amended changeset may be hidden by now."""
    if line["type"] != "changegroup.1":
        return []
    found = []
    data = line["data"]
    path = data["repo_url"].rsplit("/", 1)[-1]
    heads = [head for head in data["heads"] if head not in amended]
    for mirror in cluster.about["mirrors"]:
        pushes = [push["push_json_url"].rpartition("/")[2] for push in data["pushlog_pushes"]]
        for page in [*pushes, *(f"json-rev/{head}" for head in heads)]:
            status, body = agreement.page(f"{mirror['url']}{path}/{page}")
            if status != 200 or any(head not in body for head in heads if page in pushes):
                found.append(f"{line['id']}: {mirror['name']} answers {page} with {status} {body[:200]!r}")
    return found


def _settle(cluster: Cluster, log: Log, names: list[str], load: Load, plan: Plan, result: Result) -> None:
    """Returns once the mirrors serve all that the master has and all of it is announced and delivered, or time is up."""
    for role in cluster.roles:
        if not cluster.running(role):
            cluster.revive(role)
    end = time.monotonic() + plan.settle
    while waiting := _unsettled(cluster, log, names, load):
        if time.monotonic() > end:
            result.violations += [f"not settled after {plan.settle:g} s: {each}" for each in waiting]
            return
        time.sleep(0.5)


def _unsettled(cluster: Cluster, log: Log, names: list[str], load: Load) -> list[str]:
    told = {head for line in cluster.lines() for head in line["data"].get("heads", ())}
    missing = [f"{each.repository}: {each.head} is not told" for each in load.accepted if each.head not in told]
    return agreement.unsettled(cluster, log, names) + missing


def _judge(cluster: Cluster, log: Log, names: list[str], load: Load, result: Result) -> None:
    report = checker.check(checker.history(log))
    result.events, result.repeated_events = report.events, report.repeated_events
    result.notices = report.notices
    result.pushes = len(load.accepted)
    result.interrupted = sum(each.attempts > 1 for each in load.accepted)
    result.violations += load.failed
    result.violations += report.violations
    lines = cluster.lines()
    result.lines = len(lines)
    told, result.repeated_lines = told_in_order(lines)
    result.violations += told
    result.violations += announced(lines, load.accepted)
    with agreement.Examiner(cluster) as examiner:
        for name in names:
            result.violations += examiner.disagreements(name) + examiner.damages(name)
    for name in names:
        roots = [cluster.master_root, *(Path(mirror["root"]) for mirror in cluster.about["mirrors"])]
        result.violations += [f"left behind: {path}" for root in roots for path in agreement.remains(root / name)]


def told_in_order(lines: list[dict[str, Any]]) -> tuple[list[str], int]:
    """(gaps and misorder in what a receiver got who drops repeats, how many repeats it dropped)."""
    found: list[str] = []
    seen: set[str] = set()
    last: dict[tuple[str, str], dict[str, Any]] = {}
    repeats = 0
    for line in lines:
        if line["id"] in seen:
            repeats += 1
            continue
        seen.add(line["id"])
        stream = line["repository"], line["type"]
        before = last.get(stream)
        if line["previous"] != (before["id"] if before else None):
            found.append(f"{stream}: {line['id']} follows {line['previous']}, the last was {before and before['id']}")
        if before and before["sequence"] >= line["sequence"]:
            found.append(f"{stream}: {line['sequence']} was told after {before['sequence']}")
        last[stream] = line
    return found, repeats


def announced(lines: list[dict[str, Any]], accepted: list[Accepted]) -> list[str]:
    """Accepted pushes that are in no message, or in more than one, or in one before that of an earlier push to the repository."""
    messages: dict[str, set[str]] = {}
    places: dict[str, int] = {}
    for place, line in enumerate(lines):
        for head in line["data"].get("heads", ()):
            messages.setdefault(head, set()).add(line["id"])
            places.setdefault(head, place)
    found = [
        f"{each.repository}: {each.head} is in {len(messages.get(each.head, ()))} messages"
        for each in accepted
        if len(messages.get(each.head, ())) != 1
    ]
    last: dict[str, int] = {}
    for each in accepted:
        place = places.get(each.head, len(lines))
        if place < last.get(each.repository, 0):
            found.append(f"{each.repository}: {each.head} is told before what was accepted earlier")
        last[each.repository] = place
    return found


@click.command()
@click.option("--log", type=click.Choice(["sqlite", "kafka"]), default="sqlite", show_default=True)
@click.option("--kills", default=300, show_default=True)
@click.option("--seconds", default=600.0, show_default=True, help="Over how long the kills are spread, at least.")
@click.option("--seed", type=int, help="Of an earlier campaign; by chance if absent.")
def main(log: Literal["sqlite", "kafka"], kills: int, seconds: float, seed: int | None) -> None:
    """Kill everything at random under load, then check every promise."""
    plan = Plan(log=log, kills=kills, seconds=seconds, seed=random.randrange(10**6) if seed is None else seed)
    click.echo(f"seed {plan.seed}")
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    result = run(plan, folder)
    click.echo(str(result))
    if result.violations:
        click.echo(
            f"kept in {folder}; again: python -m testing.faults.campaign --log {log} --kills {kills} --seed {plan.seed}"
        )
        sys.exit(1)

    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
