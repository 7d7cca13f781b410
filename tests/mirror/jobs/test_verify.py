# SPDX-License-Identifier: GPL-2.0-or-later
"""When a verdict is reported, and that nothing ends the comparing: scripted answers of workers, a clock moved by hand."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from hgext.vcsreplicator.log import ROSTER, STATE, NewRecord, reports, topics
from hgext.vcsreplicator.mirror import MirrorSettings
from hgext.vcsreplicator.mirror.comparison import ComparisonOutcome, Fingerprint, Verdict
from hgext.vcsreplicator.mirror.jobs import verify
from hgext.vcsreplicator.mirror.task import Checked, FingerprintPair, Look
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.status.follower import Follower
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import RepositoryState, RoundProgress, ServiceReport
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import some_state
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock

SETTINGS = MirrorSettings(name="alpha", root="/repos")
OPTIONS = verify.VerifySettings(patience=60.0, again=1.0)
SAME = Fingerprint(
    repository="1" * 32,
    incarnation="2" * 32,
    seq=3,
    id="3" * 32,
    digest="",
    length=2,
    changesets="",
    heads="",
    phases="",
    bookmarks="",
    markers="",
    pushlog="",
)
STATE_OF_IT = some_state(
    repository=SAME.repository,
    incarnation=SAME.incarnation,
    path="one",
    seq=3,
    event=SAME.id,
    digest="",
    released=3,
    noticed=3,
)
EQUAL = FingerprintPair(here=SAME, there=SAME)
CHANGED = FingerprintPair(here=replace(SAME, bookmarks="x"), there=SAME)
RECREATED = FingerprintPair(here=SAME, there=replace(SAME, repository="9" * 32))
GONE = FingerprintPair(here=None, there=None, problem="404")
MISSING = FingerprintPair(here=None, there=SAME)
SOUND = Checked(repository=SAME.repository, problem=None)
LOST = Checked(repository=SAME.repository, problem="it is not here any more")
CHANGES = Checked(repository=SAME.repository, problem=None, is_undecided=True)
DEEP = replace(OPTIONS, deep=True)
Step = FingerprintPair | Checked | Callable[[], None]


def test_a_mirror_that_has_not_joined_copies_and_compares_all() -> None:
    picture = Picture(states={STATE_OF_IT.repository: STATE_OF_IT}, roster=Roster(mirrors=()))
    assert verify.carried(picture, "alpha") == [STATE_OF_IT]
    assert not verify.is_included(picture, "alpha", replace(STATE_OF_IT, deleted=True))


class Round:
    """One comparison of each repository: looks in turn, and between them what happens meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = HandClock()
        self.log = MemoryLog(clock=self.clock)
        self.log.create(topics(partitions=1))
        self.state(STATE_OF_IT)
        self.roster(Mirror(name="alpha", state=MirrorState.ACTIVE))
        self.reported: list[Verdict] = []
        self.foretold: list[tuple[float, str]] = []
        self._monkeypatch = monkeypatch

    def work_by(self, work: Callable[..., None]) -> None:
        """Have what it is given in place of workers."""
        self._monkeypatch.setattr(verify.crew, "work", work)

    def compare_by(self, compare: Callable[..., verify.Round]) -> None:
        """Have what it is given in place of a round of comparisons."""
        self._monkeypatch.setattr(verify, "compare", compare)

    def state(self, state: RepositoryState) -> None:
        self.log.append([NewRecord(topic=STATE, key=state.repository, value=to_json(state))])

    def roster(self, mirror: Mirror) -> None:
        self.log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(Roster(mirrors=(mirror,))))])

    def runs(self, *steps: Step, options: verify.VerifySettings | None = None) -> list[ComparisonOutcome]:
        """Return what is reported; every answer but the last asks for another task, which fits the answer."""
        left = iter(steps)

        def work(_: object, jobs: Sequence[Any], *, make_task: Any, decide: Any, **more: object) -> None:
            for job in jobs:
                delay: float | None = 0.0
                while delay is not None:
                    task, answer = make_task(job), self._look(left)
                    assert isinstance(task, Look) == isinstance(answer, FingerprintPair)
                    delay = decide(job, answer)
                    self.clock.advance(delay or 0.0)

        self.work_by(work)
        self.ended = verify.compare(
            SETTINGS,
            self.log,
            options or OPTIONS,
            report=self.reported.append,
            foretell=lambda verdict: self.foretold.append((self.clock.monotonic(), verdict.outcome)),
            stop=threading.Event(),
            clock=self.clock,
        )
        assert list(left) == []
        return [verdict.outcome for verdict in self.reported]

    def _look(self, left: Iterator[Step]) -> FingerprintPair | Checked:
        for step in left:
            if isinstance(step, FingerprintPair | Checked):
                return step
            step()
        raise AssertionError("one look too many")

    def wait(self) -> None:
        self.clock.advance(OPTIONS.patience)


@pytest.fixture
def round_(monkeypatch: pytest.MonkeyPatch) -> Round:
    return Round(monkeypatch)


def test_equal_is_reported_at_once(round_: Round) -> None:
    assert round_.runs(EQUAL) == [ComparisonOutcome.EQUAL]


def test_a_difference_is_reported_when_found_twice(round_: Round) -> None:
    assert round_.runs(CHANGED, CHANGED) == [ComparisonOutcome.DIFFERS]


def test_what_waits_for_the_mirror_is_said_once_long_before_its_verdict(round_: Round) -> None:
    began = round_.clock.monotonic()
    round_.state(replace(STATE_OF_IT, repository="8" * 32, path="two"))
    round_.runs(*[MISSING, MISSING, MISSING, round_.wait, MISSING] * 2)
    assert round_.foretold == [(began + OPTIONS.again, ComparisonOutcome.MISSING)]


def test_what_passes_at_once_and_a_difference_are_not_foretold(round_: Round) -> None:
    round_.runs(MISSING, CHANGED, EQUAL)
    assert round_.foretold == []


def test_a_difference_that_passes_is_not_reported(round_: Round) -> None:
    assert round_.runs(CHANGED, EQUAL) == [ComparisonOutcome.EQUAL]


def test_a_repository_deleted_meanwhile_is_no_alarm(round_: Round) -> None:
    assert round_.runs(GONE, lambda: round_.state(replace(STATE_OF_IT, seq=4, deleted=True)), GONE, GONE) == []


def test_a_repository_made_again_is_no_alarm_before_its_time(round_: Round) -> None:
    new = replace(SAME, repository="9" * 32)
    assert round_.runs(RECREATED, RECREATED, RECREATED, FingerprintPair(here=new, there=new)) == [
        ComparisonOutcome.EQUAL
    ]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_repository_whose_path_another_one_has_taken_is_no_alarm(round_: Round, when: str) -> None:
    """A master's repository may be removed and made again by hand, or adopted without its outbox."""
    ended = replace(STATE_OF_IT, deleted=True)
    if when == "before":
        round_.state(ended)
        assert round_.runs() == []
        assert round_.ended.left_out == 0
    else:
        assert round_.runs(RECREATED, lambda: round_.state(ended), RECREATED, RECREATED) == []


def test_another_repository_that_stays_is_reported(round_: Round) -> None:
    assert round_.runs(RECREATED, round_.wait, RECREATED) == [ComparisonOutcome.DIFFERS]


def test_a_repository_renamed_meanwhile_is_looked_at_where_it_is(round_: Round) -> None:
    assert round_.runs(GONE, lambda: round_.state(replace(STATE_OF_IT, path="two")), GONE, EQUAL) == [
        ComparisonOutcome.EQUAL
    ]
    assert round_.reported[0].path == "two"


def test_a_repository_no_longer_carried_is_no_alarm(round_: Round) -> None:
    rules = Rules(exclude=("path:one",))
    dropped = Mirror(name="alpha", state=MirrorState.ACTIVE, rules=rules)
    assert round_.runs(MISSING, lambda: round_.roster(dropped), MISSING, MISSING) == []


def test_a_repository_deleted_before_it_is_read_is_no_alarm(round_: Round) -> None:
    assert round_.runs(EQUAL, LOST, options=DEEP) == [ComparisonOutcome.DIFFERS]
    round_.reported.clear()
    deleted = replace(STATE_OF_IT, seq=4, deleted=True)
    assert round_.runs(EQUAL, lambda: round_.state(deleted), LOST, options=DEEP) == []
    round_.state(STATE_OF_IT)
    dropped = Mirror(name="alpha", state=MirrorState.ACTIVE, rules=Rules(exclude=("path:one",)))
    assert round_.runs(EQUAL, lambda: round_.roster(dropped), LOST, options=DEEP) == []


def test_contents_that_change_at_each_reading_are_not_compared(round_: Round) -> None:
    assert round_.runs(EQUAL, CHANGES, EQUAL, SOUND, options=DEEP) == [ComparisonOutcome.EQUAL]
    round_.reported.clear()
    assert round_.runs(EQUAL, CHANGES, EQUAL, round_.wait, CHANGES, options=DEEP) == [ComparisonOutcome.UNREACHABLE]
    assert round_.reported[0].note == "contents: they changed whenever they were read, for 60 seconds"


def test_without_patience_it_is_looked_at_twice_all_the_same(round_: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OPTIONS", replace(OPTIONS, patience=0.0))
    assert round_.runs(MISSING, EQUAL) == [ComparisonOutcome.EQUAL]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once."""
    monkeypatch.setattr(verify, "RETRY", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_round_goes_on_when_the_log_was_away_or_lost_records_meanwhile(round_: Round) -> None:
    older, answers = round_.log.copied(STATE), [False, False]

    def fail(*_: object) -> None:
        if answers:
            answers.pop()
            raise Unavailable("the broker went away")

    def lose() -> None:
        round_.log.restore(STATE, older)
        round_.log.before["ends"] = fail

    round_.state(replace(STATE_OF_IT, path="lost"))
    assert round_.runs(GONE, lose, GONE, EQUAL) == [ComparisonOutcome.EQUAL]
    assert answers == []
    assert round_.reported[0].path == "one"


@pytest.mark.usefixtures("at_once")
def test_a_round_that_fails_is_begun_again(round_: Round) -> None:
    stop, rounds = threading.Event(), [RuntimeError("a fault of our own"), BlockingIOError("no more processes"), None]

    def compare(*arguments: object, **more: object) -> verify.Round:
        failure = rounds.pop(0)
        if failure is None:
            stop.set()
            return verify.Round(left_out=0, undone=0)
        raise failure

    round_.compare_by(compare)
    verify.run(SETTINGS, round_.log, OPTIONS, stop=stop)
    assert rounds == []


def metrics_of(round_: Round, *rounds: dict[str, ComparisonOutcome]) -> list[tuple[float | None, float | None]]:
    """Return after each round, in which the repositories have these outcomes, how many differ and how many are unreachable."""
    found: list[tuple[float | None, float | None]] = []
    stop, left = threading.Event(), list(rounds)
    kinds = ("differing", "unreachable")

    def read_gauges() -> None:
        labels = {"mirror": "counted"}
        values = [REGISTRY.get_sample_value(f"vcsreplicator_verify_{kind}_repositories", labels) for kind in kinds]
        found.append((values[0], values[1]))

    def compare(
        settings: MirrorSettings,
        *arguments: object,
        report: Callable[[Verdict], None],
        choose: Callable[[list[RepositoryState]], object],
        **more: object,
    ) -> verify.Round:
        if len(left) < len(rounds):
            read_gauges()
        outcomes = left.pop(0)
        choose([replace(STATE_OF_IT, repository=repository) for repository in outcomes])
        for repository, outcome in outcomes.items():
            report(Verdict(mirror="counted", repository=repository, path="one", outcome=outcome, seq=3, note=""))
        if not left:
            stop.set()
        return verify.Round(left_out=0, undone=0)

    round_.compare_by(compare)
    verify.run(replace(SETTINGS, name="counted"), round_.log, replace(OPTIONS, rest=0.0), stop=stop)
    read_gauges()
    return found


def test_the_metrics_of_a_round_count_all_that_needs_an_operator(round_: Round) -> None:
    outcomes = {f"{number:032x}": outcome for number, outcome in enumerate(ComparisonOutcome)}
    assert metrics_of(round_, outcomes) == [(3, 2)]


def test_a_repository_that_differs_counts_until_it_is_equal_or_gone(
    round_: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    equal, differs, unreachable = ComparisonOutcome.EQUAL, ComparisonOutcome.DIFFERS, ComparisonOutcome.UNREACHABLE
    found = metrics_of(
        round_,
        {"a": differs, "b": differs, "c": unreachable},
        {"a": unreachable, "b": ComparisonOutcome.BEHIND, "c": unreachable},
        {"a": equal, "b": unreachable, "c": equal},
        {"a": unreachable, "c": equal},
    )
    assert found == [(2, 1), (2, 3), (1, 1), (0, 1)]


@pytest.mark.usefixtures("at_once")
def test_a_restart_continues_the_round_and_reports_what_differs(
    round_: Round, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = MirrorSettings(name="alpha", root="/repos", state=str(tmp_path))
    for number in range(3):
        round_.state(replace(STATE_OF_IT, repository=f"{number + 4}" * 32, path=f"r{number}"))
    round_.state(replace(STATE_OF_IT, seq=4, deleted=True))
    paths = list[str]()

    def run_until(count: int) -> ServiceReport:
        """Run the service until it has compared so many repositories; return its last report."""
        stop, compared = threading.Event(), 0

        def work(_: object, jobs: Sequence[Any], *, decide: Any, each_turn: Callable[[], None], **more: object) -> None:
            nonlocal compared
            for job in jobs:
                paths.append(job.state.path)
                answer = CHANGED if job.state.path == "r1" else EQUAL
                while decide(job, answer) is not None:
                    pass
                round_.clock.advance(10.0)
                each_turn()
                compared += 1
                if compared == count:
                    stop.set()
                    return

        round_.work_by(work)
        monkeypatch.setattr(reports, "INTERVAL", 0.0)
        verify.run(settings, round_.log, replace(OPTIONS, rest=0.0), stop=stop, clock=round_.clock)
        report = Follower(round_.log).update().reports["verify alpha"]
        assert report.progress is not None
        return report

    first = run_until(2)
    assert first.progress == RoundProgress(done=2, total=3, oldest=None, differing=1)
    [trouble] = first.troubles
    assert trouble.text == (
        "mirror alpha: r1: differs at event 3: bookmarks; to copy it again: vcsreplicator heal alpha r1 --yes"
    )
    began = round_.clock.now() - 20.0
    second = run_until(1)
    assert second.progress == RoundProgress(done=3, total=3, oldest=began, differing=1)
    assert second.troubles == (trouble,)
    assert run_until(2).progress == RoundProgress(done=2, total=3, oldest=began + 20.0, differing=1)
    assert paths == ["r0", "r1", "r2", "r0", "r1"]


def test_the_rest_between_two_rounds_is_not_longer_than_wanted(round_: Round) -> None:
    stop, began = threading.Event(), list[float]()

    def compare(*arguments: object, **more: object) -> verify.Round:
        began.append(time.monotonic())
        if len(began) == 3:
            stop.set()
        return verify.Round(left_out=0, undone=0)

    round_.compare_by(compare)
    verify.run(SETTINGS, round_.log, replace(OPTIONS, rest=0.05), stop=stop)
    assert began[-1] - began[0] < verify.RETRY


def test_what_only_the_mirror_has_is_saved_before_a_copy_removes_it() -> None:
    """After a restore of the master, the mirror may be the only place that has the newest pushes."""
    said = {
        outcome: verify.remedy(Verdict(mirror="alpha", repository="1", path="one", outcome=outcome))
        for outcome in ComparisonOutcome
    }
    assert {outcome for outcome, text in said.items() if "heal alpha one" in text} == {
        ComparisonOutcome.DIFFERS,
        ComparisonOutcome.MISSING,
    }
    assert "docs/operating.md, Restore repositories" in said[ComparisonOutcome.AHEAD]
