# SPDX-License-Identifier: GPL-2.0-or-later
"""Killed anywhere, what then: after a restart, and without a person, changelog, pushlog and events agree.

The process that serves a push is killed before a line of our Python or of Mercurial's transaction runs, or before a system
call that changes a file is carried out. Then a relay comes up, as it would, and looks at everything once. What must hold then:
nothing that was accepted is missing, nothing that was not is visible, and the log tells exactly what is there.

`VCSREPLICATOR_TEST_KILLS` is how many kills of each kind of change the long suite tries (180); 0 is every line and system call
there is, which takes hours. Which ones is drawn again at every run; `VCSREPLICATOR_TEST_SEED` draws the same again.
"""

import ast
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pytest
from mercurial import bookmarks, extensions, hg, repair
from mercurial import ui as uimod
from mercurial.node import hex

from hgext.vcsreplicator.hg import observe
from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.log import EVENTS, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.relay.scan import find_repositories
from hgext.vcsreplicator.words import digest, wire
from hgext.vcsreplicator.words.event import Type
from pushlog import api
from testing.faults import SEED, PythonSteps, SystemCall, SystemCalls, first_visits, told_with_seed
from testing.services.cache import CHECKOUT
from testing.warm_hg import shared_hg

pytestmark = [pytest.mark.processes, pytest.mark.hunt]

HG = str(Path(sys.executable).with_name("hg"))
FILES = ("hgext/vcsreplicator/", "pushlog/", "mercurial/transaction.py", "mercurial/repair.py")
MANY = int(os.environ.get("VCSREPLICATOR_TEST_KILLS", "180"))

HGRC = """\
[ui]
username = dana
interactive = no
[extensions]
*:required = yes
pushlog =
strip =
[experimental]
evolution = all
"""
MASTER = """\
[extensions]
*:required = yes
vcsreplicator =
share =
[vcsreplicator]
role = master
log = sqlite://{work}/log.db
source = hg://master
[vcsreplicator-roots]
{work}/repos = .
"""

# What changeset 1 was before: the strip of 1 deletes the marker that says so.
AMENDED = "3" * 40
SETUP = """\
HGRCPATH=$MASTER hg init repos/one
hg init clone
cd clone
echo a > a; hg commit -qAm a
echo d > d; hg commit -qAm d
hg update -q 0; echo b > b; hg commit -qAm b
HGRCPATH=$MASTER hg push -q -f ../repos/one
hg phase -q --force --draft 1+2; hg -R ../repos/one phase -q --force --draft 1+2
HGRCPATH=$MASTER hg -R ../repos/one bookmark -q -r 1 mark
HGRCPATH=$MASTER hg -R ../repos/one debugobsolete -d '0 0' AMENDED $(hg -R ../repos/one log -r 1 -T '{node}')
echo bb > b; hg commit -q --amend -m bb
hg update -q 0; echo c > c; hg commit -qAm c
hg bookmark -r 0 here; hg bookmark -r . there
cd ..; HGRCPATH=$MASTER hg share -q -U -B repos/one shared
"""

# Killed once it has noted what it is going to do.
DIE = """\
import os, signal
from hgext.vcsreplicator.hg.master import repository
repository.silenced = lambda repo: os.kill(os.getpid(), signal.SIGKILL)
"""
STRIP = [HG, "-R", "repos/one", "strip", "-q", "--no-backup", "1"]
# The line of Mercurial's strip that deletes markers, the changesets being gone.
DELETION = "deleteobsmarkers(repo.obsstore"
RELAY = [sys.executable, str(CHECKOUT / "testing" / "builders" / "master" / "relay_once.py")]

# What is done, and the argument by which its process is known.
SCENARIOS = {
    "changesets, bookmarks, phases and markers": (
        [HG, "-R", "clone", "push", "-f", "-B", "there", "repos/one"],
        "push",
    ),
    "a push in a share": ([HG, "-R", "clone", "push", "-f", "-B", "there", "shared"], "push"),
    "a bookmark": ([HG, "-R", "clone", "push", "-r", "0", "-B", "here", "repos/one"], "push"),
    "markers": ([HG, "-R", "repos/one", "debugobsolete", "-d", "0 0", "1" * 40, "2" * 40], "debugobsolete"),
    "hg init": ([HG, "init", "repos/two"], "init"),
    "strip": (STRIP, "strip"),
    "a strip that the relay finishes": ([*RELAY, "{work}/repos", "sqlite://{work}/log.db", "now"], RELAY[-1]),
    "rename": ([HG, "-R", "repos/one", "replicaterename", "--yes", "repos/three"], "replicaterename"),
    "delete": ([HG, "-R", "repos/one", "replicatedelete", "--yes"], "replicatedelete"),
}
BEGUN = {"a strip that the relay finishes": [*STRIP, "--config", "extensions.die={template}/die.py"]}


@dataclass(frozen=True)
class Site:
    """A master's machine; `start` is how it was before, `work` where things happen."""

    template: Path
    work: Path
    start: Path
    relay: subprocess.Popen[str]

    def run(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Run a command cold; or warm, if an environment is given."""
        path = os.pathsep.join(filter(None, ((environment or os.environ).get("PYTHONPATH"), str(CHECKOUT))))
        whole = {**(environment or os.environ), "HGRCPATH": str(self.template / "hgrc"), "PYTHONPATH": path}
        if environment is not None:
            argv = [str(Path(shared_hg(whole)).with_name(Path(argv[0]).name)), *argv[1:]]
        return subprocess.run(
            argv,
            cwd=self.work,
            env=whole,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=120,
        ).returncode

    def reset(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.start, self.work, symlinks=True)

    def restart(self) -> None:
        """A relay comes up and looks at everything once."""
        print(file=self.relay.stdin, flush=True)
        problem = json.loads(self.relay.stdout.readline())
        assert problem is None, problem

    def command(self, words: Sequence[str]) -> list[str]:
        return [word.format(work=self.work, template=self.template) for word in words]

    def begun(self, scenario: str) -> Self:
        """The same, but what the scenario goes on with was begun before."""
        if scenario not in BEGUN:
            return self
        begun = replace(self, start=self.template / "begun")
        self.reset()
        assert self.run(self.command(BEGUN[scenario])) == -signal.SIGKILL
        shutil.rmtree(begun.start, ignore_errors=True)
        shutil.copytree(self.work, begun.start, symlinks=True)
        return begun


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crash")
    template, work = folder / "template", folder / "work"
    (work / "repos").mkdir(parents=True)
    template.mkdir()
    with subprocess.Popen(
        [*RELAY, str(work / "repos"), f"sqlite://{work}/log.db"],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as relay:
        site = Site(template=template, work=work, start=template / "work", relay=relay)
        set_up(site)
        yield site


def set_up(site):
    (site.template / "die.py").write_text(DIE)
    (site.template / "hgrc").write_text(HGRC + MASTER.format(work=site.work))
    with open_log(f"sqlite://{site.work}/log.db", creates=True) as log:
        log.create(topics())
    (site.template / "plain").write_text(HGRC)
    names = {"HGRCPATH": str(site.template / "plain"), "MASTER": str(site.template / "hgrc")}
    path = f"{Path(shared_hg()).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-ec", SETUP.replace("AMENDED", AMENDED)],
        cwd=site.work,
        env={**os.environ, **names, "PATH": path},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.copytree(site.work, site.start, symlinks=True)


def looks(site):
    """What is there, by repository: everything that a push changes."""
    ui = uimod.ui.load()
    ui.readconfig(os.fsencode(site.template / "plain"), trust=True)
    extensions.loadall(ui)
    found = {}
    for folder in sorted(find_repositories(str(site.work / "repos"))):
        repo = MasterRepositories({str(site.work / "repos"): ""}, "hg://x").open(folder)
        assert hg.verify(repo) == 0
        changelog = repo.changelog
        found[Path(folder).name] = (
            tuple((hex(changelog.node(rev)), repo[rev].phase()) for rev in changelog),
            tuple(sorted(bookmarks.listbookmarks(repo).items())),
            tuple(sorted(observe.encode_markers(repo.obsstore))),
            tuple((number, user, tuple(nodes)) for number, user, _, nodes in api.pushes(repo, 1)),
        )
    return found


def events_by_repository(site):
    """The events in the log, first appearances, in order."""
    found = {}
    with open_log(f"sqlite://{site.work}/log.db", creates=True) as log:
        reader = log.reader({(EVENTS, partition): 0 for partition in range(log.partitions(EVENTS))})
        for record in reader.poll(0.0, limit=100_000):
            frame = wire.decode(record.value)
            events = found.setdefault(frame.event.repository, [])
            if not events or frame.event.seq > events[-1].event.seq:
                events.append(frame)
            else:
                assert any(known.event == frame.event for known in events), "another event under a known sequence"
        reader.close()
    return found


def assert_told(site, looked):
    """The log's events are one unbroken chain for each repository, and their sum is what is there."""
    at_path = {}
    for events in events_by_repository(site).values():
        level, previous = digest.START, None
        for number, frame in enumerate(events, 1):
            event = frame.event
            assert (event.seq, event.previous) == (number, previous)
            assert event.digest == digest.advance(level, event.type, event.changes)
            level, previous = event.digest, event.id
        if events[-1].event.type is not Type.DELETED:
            at_path[events[-1].event.path] = [frame.event for frame in events]
    assert at_path.keys() == looked.keys()
    for path, events in at_path.items():
        changesets, marks, markers, pushes = looked[path]
        assert events[-1].after.length == len(changesets)
        assert not changesets or events[-1].after.node == changesets[-1][0].decode()
        told = {mark.name: mark.node for event in events for mark in event.changes.bookmarks}
        told = {name: node for name, node in told.items() if node}
        stripped = {node for node in told.values() if node.encode() not in dict(changesets)}
        here = {name.decode(): node.decode() for name, node in marks}
        assert told.keys() == here.keys()
        assert all(
            told[name] in (here[name], *stripped) for name in told
        )  # the strip's own event reports those that it moved
        is_stripped = any(event.type is Type.STRIPPED for event in events)
        kept = [
            marker
            for event in events
            for marker in event.changes.markers
            if not (is_stripped and marker.precursor.node == AMENDED)
        ]
        assert len(kept) == len(markers)
        assert [event.changes.push.id for event in events if event.changes.push] == [number for number, *_ in pushes]


def strike(site, before, after, *, accepted):
    """One kill has happened: restart, look, judge."""
    site.restart()
    now = looks(site)
    assert now in (before, after)
    if accepted:
        assert now == after
    assert_told(site, now)


@functools.cache
def lines_in_functions(file):
    tree = ast.parse(Path(file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {line for node in functions for line in range(node.body[0].lineno, node.end_lineno + 1)}


def is_in_function(place):
    """Whether this line is not merely a definition that an import carries out."""
    file, _, line = place.rpartition(":")
    return int(line) in lines_in_functions(file)


def kills(site, scenario, count):
    """Kills at every Python line (its first visit) and before every mutating system call, or at `count` of them drawn by chance.

    (How many kills took place, how many were tried, how many lines and calls there are).
    """
    site = site.begun(scenario)
    command, argument = site.command(SCENARIOS[scenario][0]), SCENARIOS[scenario][1]
    site.reset()
    before = looks(site)
    steps = PythonSteps(files=FILES, argument=argument, record=site.template / "steps")
    taken = steps.taken(lambda environment: site.run(command, environment))
    lines = [number for number in first_visits(taken) if is_in_function(taken[number - 1])]
    site.restart()
    after = looks(site)
    assert_told(site, after)
    calls = made(site, command)
    every = [*(("call", call) for call in calls.values), *(("line", number) for number in lines)]
    chosen = every
    if count is not None:
        chance = random.Random(f"{SEED} {scenario}")
        half = min(count // 2, len(calls.values))
        chosen = chance.sample(every[: len(calls.values)], half)
        chosen += chance.sample(every[len(calls.values) :], min(count - half, len(lines)))
    struck = 0
    for kind, place in chosen:
        site.reset()
        if kind == "line":
            code = site.run(command, {**os.environ, **steps.environment(kill_at=place)})
        else:
            code = site.run(calls.of.struck(command, at=place))
        struck += code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        with told_with_seed(f"{scenario}: killed at {kind} {place}"):
            strike(site, before, after, accepted=code == 0)
    return struck, len(chosen), f"{len(lines)} lines and {len(calls.values)} system calls"


@dataclass(frozen=True)
class Made:
    """The mutating system calls of a command."""

    of: SystemCalls
    values: Sequence[SystemCall]


def made(site, command):
    """Runs the command and leaves the site as it was."""
    site.reset()
    calls = SystemCalls(log=site.template / "strace")
    return Made(of=calls, values=calls.made(command, site.run))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", ["strip", "a strip that the relay finishes"])
def test_a_kill_before_a_strip_deletes_its_markers_keeps_none_of_them(site, scenario):
    site = site.begun(scenario)
    command = site.command(SCENARIOS[scenario][0])
    site.reset()
    before = looks(site)
    steps = PythonSteps(files=FILES, argument=SCENARIOS[scenario][1], record=site.template / "steps")
    taken = steps.taken(lambda environment: site.run(command, environment))
    site.restart()
    after = looks(site)
    source = Path(repair.__file__).read_text().splitlines()
    [line] = [number for number, text in enumerate(source, 1) if DELETION in text]
    step = next(step for step, place in enumerate(taken, 1) if place.endswith(f"mercurial/repair.py:{line}"))
    site.reset()
    assert site.run(command, {**os.environ, **steps.environment(kill_at=step)}) == -signal.SIGKILL
    strike(site, before, after, accepted=True)


@pytest.mark.sample(2, keep=("[changesets", "strip that the relay"))
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.timeout(1800)
def test_a_kill_anywhere_loses_and_invents_nothing(site, scenario, told):
    struck, tried, places = kills(site, scenario, 4)
    told(f"{scenario}: {struck} kills, drawn from {places}")
    assert struck > tried * 0.6  # no two runs are quite alike


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.timeout(14400)
def test_a_thousand_kills_lose_and_invent_nothing(site, scenario, told):
    struck, tried, places = kills(site, scenario, MANY or None)
    told(f"{scenario}: {struck} kills, of {places}")
    assert struck > tried * 0.8


def full_disks(site, scenario, count):
    """Each call that needs room on the disk finds none, once; the number of calls."""
    site = site.begun(scenario)
    command = site.command(SCENARIOS[scenario][0])
    site.reset()
    before = looks(site)
    calls = made(site, command)
    site.restart()
    after = looks(site)
    needing = [
        call
        for call in calls.values
        if str(site.work / "repos") in call.text
        and call.name in ("write", "openat", "mkdir", "rename", "symlink", "link")
    ]
    for call in needing if count is None else random.Random(SEED).sample(needing, count):
        site.reset()
        code = site.run(calls.of.struck(command, at=call, fault="error=ENOSPC"))
        with told_with_seed(f"{scenario}: no space for {call.text}"):
            strike(site, before, after, accepted=code == 0)
    return len(needing)


@pytest.mark.timeout(1800)
def test_a_full_disk_loses_and_invents_nothing(site):
    full_disks(site, "changesets, bookmarks, phases and markers", 2)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.timeout(3600)
def test_a_full_disk_at_any_write_loses_and_invents_nothing(site, scenario, told):
    told(f"{scenario}: no space at {full_disks(site, scenario, None)} system calls")
