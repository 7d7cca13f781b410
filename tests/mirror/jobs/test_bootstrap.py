# SPDX-License-Identifier: GPL-2.0-or-later
"""A new mirror is filled from the master while pushes go on, survives kills, and joins when nothing is missing."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.aggregator import loop
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.cli.bootstrap import ask_for_mirror
from hgext.vcsreplicator.cli.requests import ask_aggregator, make_request
from hgext.vcsreplicator.log import ACKS, ROSTER_REQUESTS, STATE, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror.comparison import ComparisonOutcome, Verdict
from hgext.vcsreplicator.mirror.jobs.bootstrap import BootstrapSettings, CopyFailed, Progress, bootstrap
from hgext.vcsreplicator.mirror.jobs.verify import VerifySettings, compare
from hgext.vcsreplicator.mirror.namesake import SILENT
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.status.follower import Follower
from hgext.vcsreplicator.words.errors import BadConfig, Refused
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AGGREGATOR, AggregatorHeartbeat, MirrorHeartbeat
from hgext.vcsreplicator.words.roster import MirrorRole, MirrorState, Verb
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import some_state
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import NAME, PATIENCE, Bench
from testing.waiting import eventually
from testing.warm import warm_starts

pytestmark = pytest.mark.processes


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A master, its log and a running aggregator."""
    stop, ready = threading.Event(), threading.Event()
    with Bench(tmp_path) as bench, open_log(bench.url, creates=True) as log, warm_starts():
        bench.serve_master()
        deciding = threading.Thread(target=lambda: loop.run(AggregatorSettings(), log, stop=stop, ready=ready.set))
        deciding.start()
        try:
            assert ready.wait(PATIENCE)
            yield bench
        finally:
            stop.set()
            deciding.join()


def fill(
    bench: Bench, rules: Rules | None = None, *, act: Callable[[Progress | CopyFailed], None] = lambda event: None
) -> list[Progress | CopyFailed]:
    """Return what a bootstrap in this process reports."""
    reported: list[Progress | CopyFailed] = []

    def keep(event: Progress | CopyFailed) -> None:
        reported.append(event)
        act(event)

    def ask(verb: Verb, wanted: Rules | None) -> None:
        ask_for_mirror(bench.log, verb, NAME, wanted, backup=False, wait=PATIENCE)

    options, stop = BootstrapSettings(workers=2), threading.Event()
    assert bootstrap(bench.settings(), bench.log, options, ask=ask, report=keep, stop=stop, rules=rules)
    return reported


def repositories(bench: Bench, count: int) -> list[Author]:
    """Repositories on the master that the log knows, with hidden changesets, drafts and bookmarks."""
    authors = [bench.author(f"folder/{number}") for number in range(count)]
    for author in authors:
        author.push()
        author.obsolete(author.tip)
        author.bookmark("stable", author.tip)
    bench.send(*authors)
    return authors


def outcomes(bench: Bench) -> set[ComparisonOutcome]:
    reported: list[Verdict] = []
    options = VerifySettings(share=1.0, patience=PATIENCE, again=0.1)
    compare(bench.settings(), bench.log, options, report=reported.append, stop=threading.Event())
    return {verdict.outcome for verdict in reported}


def state_of(bench: Bench) -> MirrorState | None:
    with contextlib.closing(Follower(bench.log)) as follower:
        roster = follower.update().roster
    mirror = roster.mirror(NAME) if roster else None
    return mirror.state if mirror else None


def wait_known(bench: Bench, authors: list[Author]) -> None:
    """Returns once the aggregator has seen all of it."""
    with contextlib.closing(Follower(bench.log)) as follower:
        wanted = {author.repository: author.seq for author in authors}
        eventually(lambda: wanted.items() <= {name: s.seq for name, s in follower.update().states.items()}.items())


@contextlib.contextmanager
def pushes_to(bench: Bench, authors: list[Author], *, pause: float = 0.1) -> Iterator[None]:
    """Meanwhile pushes go on to these repositories, with `pause` seconds between one to each of them and the next."""
    over = threading.Event()

    def push() -> None:
        while not over.wait(pause):
            for author in authors:
                author.push()
            bench.send(*authors)

    pushing = threading.Thread(target=push)
    pushing.start()
    try:
        yield
    finally:
        over.set()
        pushing.join()


def test_every_repository_is_copied_whole_and_the_mirror_joins(bench: Bench) -> None:
    authors = repositories(bench, 4)
    wait_known(bench, authors)
    reported = fill(bench)
    last = reported[-1]
    assert isinstance(last, Progress)
    assert (last.total, last.present, last.failed) == (4, 4, 0)
    assert last.bytes > 0
    assert state_of(bench) in (MirrorState.JOINING, MirrorState.ACTIVE)
    assert outcomes(bench) == {ComparisonOutcome.EQUAL}
    with bench.mirror():
        for author in authors:
            author.push()
        bench.send(*authors)
        bench.wait_served(*authors)
    assert outcomes(bench) == {ComparisonOutcome.EQUAL}
    assert bench.notes() == []


def test_pushes_and_new_repositories_meanwhile_are_there_in_the_end(bench: Bench) -> None:
    authors = repositories(bench, 3)
    wait_known(bench, authors)
    with pushes_to(bench, authors[:3]):
        fill(bench)
    authors.append(bench.author("late"))
    authors[-1].push()
    bench.send(authors[-1])
    with bench.mirror():
        bench.wait_served(*authors)
    assert outcomes(bench) == {ComparisonOutcome.EQUAL}


def test_a_mirror_joins_once_a_former_one_of_its_name_is_silent(bench: Bench) -> None:
    """Its service would wait for that while notices wait for the mirror."""
    value = to_json(MirrorHeartbeat(mirror=NAME, time=1.0, positions={}, version="1", instance="aaaa@there"))
    former = NewRecord(topic=ACKS, key=NAME, value=value)
    bench.log.append([former])
    joining = []

    def ask(verb: Verb, wanted: Rules | None) -> None:
        joining.append(verb is Verb.JOIN and (Path(bench.settings().folder) / SILENT).exists())
        ask_for_mirror(bench.log, verb, NAME, wanted, backup=False, wait=PATIENCE)

    def run(stop: threading.Event) -> bool:
        settings = replace(bench.settings(), beat_interval=0.1)
        return bootstrap(settings, bench.log, BootstrapSettings(), ask=ask, report=lambda event: None, stop=stop)

    class Alive(threading.Event):
        """The former mirror sends a heartbeat while this one waits."""

        def wait(self, timeout: float | None = None) -> bool:
            bench.log.append([former])
            return super().wait(timeout)

    with pytest.raises(BadConfig, match="another mirror of this name works on there"):
        run(Alive())
    assert (state_of(bench), joining) == (MirrorState.INACTIVE, [False])
    assert run(threading.Event())
    assert joining == [False, True]


def test_only_what_the_rules_include_is_copied(bench: Bench) -> None:
    authors = repositories(bench, 3)
    wait_known(bench, authors)
    fill(bench, Rules(include=("path:folder/1",)))
    assert {found.checkpoint.path for found in bench.found().values() if found.checkpoint} == {"folder/1"}


@pytest.mark.slow
def test_no_folder_is_emptied_that_a_state_names(bench: Bench) -> None:
    victim, staging = bench.folder / "victim", Path(bench.settings().folder) / "staging"
    victim.mkdir()
    (victim / "file").write_text("ours\n")
    staging.mkdir(parents=True)  # of an earlier bootstrap
    name = os.path.relpath(victim, staging)
    bench.log.append([NewRecord(topic=STATE, key=name, value=to_json(some_state(repository=name)))])

    def end(event: Progress | CopyFailed) -> None:
        if isinstance(event, CopyFailed):
            raise Refused(event.note)

    with contextlib.suppress(Refused):
        fill(bench, act=end)
    assert (victim / "file").read_text() == "ours\n"


def test_a_mirror_of_the_roster_becomes_no_backup_and_is_told_how(bench: Bench) -> None:
    config = bench.folder / "bootstrap.toml"
    config.write_text(f'log = "{bench.url}"\n[mirror.{NAME}]\nroot = "{bench.root}"\nmaster = "{bench.master_url}"\n')
    run = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "bootstrap", NAME, "-c", str(config), "--backup"]
    ask_for_mirror(bench.log, Verb.ADD, NAME, None, backup=False, wait=PATIENCE)
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    refusal = f"{NAME} is in the roster, but not as a backup; to make it one: vcsreplicator roster remove {NAME} --yes, then run"
    assert refusal in done.stderr
    assert state_of(bench) is MirrorState.INACTIVE, "it does not join"
    ask_aggregator(bench.log, make_request(Verb.REMOVE, "test", mirror=NAME), PATIENCE)
    for _ in range(2):  # repeated, it continues
        assert subprocess.run(run, capture_output=True, check=False).returncode == 0
    with contextlib.closing(Follower(bench.log)) as follower:
        roster = follower.update().roster
    assert roster is not None
    assert [mirror.role for mirror in roster.mirrors] == [MirrorRole.BACKUP]


def test_a_repository_that_cannot_be_copied_keeps_the_mirror_out(bench: Bench) -> None:
    authors = repositories(bench, 2)
    wait_known(bench, authors)
    (bench.root / "folder").mkdir(parents=True)
    (bench.root / "folder" / "1").write_text("a file of an operator is in the way")
    with pytest.raises(Refused, match="not joined: 1 repository could not be copied: folder/1"):
        fill(bench)
    assert state_of(bench) is MirrorState.INACTIVE
    assert [found.checkpoint.path for found in bench.found().values() if found.checkpoint] == ["folder/0"]
    (bench.root / "folder" / "1").unlink()
    fill(bench)
    assert outcomes(bench) == {ComparisonOutcome.EQUAL}


def test_a_repository_that_is_deleted_meanwhile_is_not_waited_for(bench: Bench) -> None:
    kept, doomed = repositories(bench, 2)
    wait_known(bench, [kept, doomed])
    doomed.event(Type.DELETED)
    shutil.rmtree(doomed.folder)
    reported: list[Progress | CopyFailed] = []

    def act(event: Progress | CopyFailed) -> None:
        if isinstance(event, CopyFailed) and not any(isinstance(before, CopyFailed) for before in reported):
            bench.send(doomed)
        reported.append(event)

    fill(bench, act=act)
    assert reported[-1] == Progress(total=1, present=1, failed=0, bytes=reported[-1].bytes)  # type: ignore[union-attr]
    assert outcomes(bench) == {ComparisonOutcome.EQUAL}


def test_it_can_be_interrupted_while_it_waits_for_the_aggregator(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        config = tmp_path / "bootstrap.toml"
        config.write_text(f'log = "{bench.url}"\n[mirror.{NAME}]\nroot = "{bench.root}"\n')
        command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "bootstrap", NAME, "-c", str(config)]
        with subprocess.Popen([*command, "--wait", "3600"], stderr=subprocess.PIPE, text=True) as run:
            try:
                eventually(lambda: bench.log.ends(ROSTER_REQUESTS)[0] > 0, "the aggregator asked")
                run.send_signal(signal.SIGINT)
                _, reported = run.communicate(timeout=PATIENCE)
            finally:
                run.kill()
        assert (run.returncode, reported) == (130, "stopped; run the same command again to continue\n")
        assert bench.log.stored(bench.settings().group, "events") == {}


def test_a_mirror_that_the_lost_roster_does_not_have_is_not_said_to_join(tmp_path: Path) -> None:
    """The aggregator added it, and then the log lost that version."""
    settings = MirrorSettings(name=NAME, root=str(tmp_path / "root"))
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())

        def ask(verb: Verb, rules: Rules | None) -> None:
            beat = to_json(AggregatorHeartbeat(time=1.0, roster=1, held=0))
            log.append([NewRecord(topic=STATE, key=AGGREGATOR, value=beat)])

        with pytest.raises(Refused, match="topic roster: expected version 1, as the aggregator has it, found 0"):
            bootstrap(settings, log, BootstrapSettings(), ask=ask, report=lambda event: None, stop=threading.Event())


def fill_killed(bench: Bench, wanted: int, *, behind: int = 0) -> tuple[int, list[dict[int, int]]]:
    """The command, killed when it got on (with more than `behind` repositories there) and run again until it has joined.

    Returns the number of kills, and the positions after each run.
    """
    config = bench.folder / "bootstrap.toml"
    config.write_text(f'log = "{bench.url}"\n[mirror.{NAME}]\nroot = "{bench.root}"\nmaster = "{bench.master_url}"\n')
    command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "bootstrap", NAME, "--json", "--workers", "2"]
    positions: list[dict[int, int]] = []
    kills, joined, before = 0, False, behind
    while not joined:
        with subprocess.Popen(
            [*command, "-c", str(config)], stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as run:
            assert run.stdout is not None
            for line in run.stdout:
                event = json.loads(line)
                if kills < wanted and event["event"] == "progress" and event["present"] > before:
                    before = event["present"]
                    kills += 1
                    os.killpg(run.pid, signal.SIGKILL)
                    break
            run.wait(PATIENCE)
            joined = run.returncode == 0
            assert joined or run.returncode == -signal.SIGKILL
        positions.append(bench.log.stored(bench.settings().group, "events"))
    return kills, positions


@pytest.mark.parametrize("wanted", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_killed_anywhere_it_goes_on_where_it_was(bench: Bench, wanted: int) -> None:
    authors = repositories(bench, 6)
    wait_known(bench, authors)
    kills, positions = fill_killed(bench, wanted)
    assert kills
    assert all(each == positions[0] for each in positions)
    assert outcomes(bench) == {ComparisonOutcome.EQUAL}
    with bench.mirror():
        bench.wait_served(*authors)


def fill_many(bench: Bench, count: int) -> str:
    """Many repositories, pushes that go on, and a kill in the middle; how it went."""
    authors = repositories(bench, count)
    wait_known(bench, authors)
    began = time.monotonic()
    with pushes_to(
        bench, authors[:: count // 5], pause=0.5
    ):  # ten a second; else there are soon 30,000 to catch up with
        kills, _ = fill_killed(bench, 1, behind=count // 2)
    seconds = time.monotonic() - began
    with bench.mirror():
        bench.wait_served(*authors)
    assert kills == 1
    assert bench.notes() == []
    assert outcomes(bench) == {ComparisonOutcome.EQUAL}
    pushed = sum(author.seq for author in authors) - 4 * count
    return f"{count} repositories in {seconds:.0f} s, killed once, {pushed} pushes meanwhile"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_repositories_are_copied_through_pushes_and_a_kill(
    bench: Bench, told: Callable[[object], None]
) -> None:
    told(fill_many(bench, 1000))
