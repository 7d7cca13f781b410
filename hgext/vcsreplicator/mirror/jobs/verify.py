# SPDX-License-Identifier: GPL-2.0-or-later
"""The comparison of every repository of a mirror with the master.

Both are compared at the same sequence: heads, phases, bookmarks, markers, pushlog. Nothing is locked on either side, and pushes go
on meanwhile. A difference at the same event is reported once two successive comparisons found it. A repository that is behind,
ahead, missing, unreadable, another one or out of reach is compared again for `patience` seconds before that is reported, and so is
one whose contents change at every reading. A repository that is deleted meanwhile, or no longer carried, is skipped. So every
report is true.
"""

import logging
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from prometheus_client import Counter, Gauge

from ...log import Log
from ...log.reports import ServiceReporter
from ...status import Picture
from ...status.follower import Follower
from ...words.clock import DAY, Clock, SystemClock
from ...words.errors import Expired, Unavailable, visible
from ...words.records import VERIFY_KEY, RepositoryState, RoundProgress
from ...words.shape import Seconds, plain, within
from ..comparison import ComparisonOutcome, Verdict, judge
from ..settings import MirrorSettings
from ..task import Check, Checked, FingerprintPair, Look
from . import crew
from .comparisons import FILE, Comparisons

COMPARED = Counter("vcsreplicator_verify_repositories", "Comparisons by outcome", ["mirror", "outcome"])
DIFFERING = Gauge(
    "vcsreplicator_verify_differing_repositories",
    "Repositories that were found to differ, to be missing, or to be ahead of the master, and not equal since",
    ["mirror"],
)
UNREACHABLE = Gauge(
    "vcsreplicator_verify_unreachable_repositories",
    "Repositories that could not be compared at the last try",
    ["mirror"],
)
DONE = Gauge("vcsreplicator_verify_done_repositories", "Repositories that this round has tried", ["mirror"])
CARRIED = Gauge("vcsreplicator_verify_carried_repositories", "Repositories that a round compares", ["mirror"])
OLDEST = Gauge(
    "vcsreplicator_verify_oldest_timestamp_seconds",
    "Time since which all repositories were compared; 0 if some never were",
    ["mirror"],
)
# Seconds after which a round that failed begins again, and a log that does not answer is asked again.
RETRY = 5.0
# Outcomes that do not pass by themselves, and that an operator must look into.
NEEDS_OPERATOR = (ComparisonOutcome.DIFFERS, ComparisonOutcome.AHEAD, ComparisonOutcome.MISSING)
logger = structlog.get_logger()

ReportVerdict = Callable[[Verdict], None]

# The outcome of a comparison, a note, and the sequence.
Found = tuple[ComparisonOutcome, str, int]

# Gets how many repositories are done, of how many.
Show = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """The section [verify]. Times are seconds; docs/install.md explains each key."""

    workers: int = 1
    share: float = 0.1
    rest: Seconds = 3600.0
    patience: Seconds = 60.0
    again: Seconds = 1.0
    deep: bool = False

    def __post_init__(self) -> None:
        within(self, workers=(1, 100), share=(0.001, 1), rest=(0, 31 * DAY), patience=(0, DAY), again=(0, DAY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The numbers of repositories without a verdict in one round of comparisons.

    The mirror does not carry `left_out` of them; the round was stopped before it was done with `undone` of them.
    """

    left_out: int
    undone: int


@dataclass(slots=True, kw_only=True)
class _VerifyJob:
    state: RepositoryState
    since: float | None = None
    before: str = ""
    is_gone: bool = False
    # The sequence at which both are equal, while the contents are read, and since when they change whenever they are read.
    reading_at: int | None = None
    changes_since: float | None = None


def carried(picture: Picture, mirror: str, paths: Sequence[str] = ()) -> list[RepositoryState]:
    """Return the repositories to copy or compare; with `paths` only those."""
    wanted = (state for state in picture.states.values() if not paths or state.path in paths)
    return sorted((state for state in wanted if is_included(picture, mirror, state)), key=lambda state: state.path)


def is_included(picture: Picture, mirror: str, state: RepositoryState) -> bool:
    """Return whether the repository is there and no rule of the mirror leaves it out.

    A mirror that is not in the roster, because it has not joined yet, has no rules.
    """
    known = picture.roster.mirror(mirror)
    return not state.deleted and (known is None or known.carries(state.path))


def compare(
    settings: MirrorSettings,
    events: Log,
    options: VerifySettings,
    *,
    report: ReportVerdict,
    stop: threading.Event,
    clock: Clock = SystemClock(),  # noqa: B008
    paths: Sequence[str] = (),
    choose: Callable[[list[RepositoryState]], list[RepositoryState]] = lambda carried: carried,
    show: Show = lambda done, total: None,
    foretell: ReportVerdict = lambda verdict: None,
) -> Round:
    """Compare every repository (or those at `paths`) once, and report its verdict.

    Waits for a log that goes away meanwhile. With `paths` none counts as left out. `choose` gets all that the mirror carries, and
    returns those to compare, in this order. `show` is called at least ten times a second
    while it works, and `foretell` once, with the first verdict that becomes true if `patience` changes nothing.
    """
    with closing(Follower(events)) as follower:
        found = carried(follower.update(), settings.name, paths)
        jobs = [_VerifyJob(state=state) for state in choose(found)]
        left_out = sum(not state.deleted for state in follower.picture.states.values()) - len(found) if not paths else 0
        comparing = _Comparing(
            settings=settings,
            options=options,
            follower=follower,
            report=report,
            foretell=foretell,
            stop=stop,
            clock=clock,
        )
        crew.work(
            replace(settings, heavy_workers=options.workers),
            jobs,
            make_task=comparing.make_task,
            decide=comparing.decide,
            stop=stop,
            clock=clock,
            share=options.share,
            each_turn=lambda: show(comparing.done, len(jobs)),
        )
        return Round(left_out=left_out, undone=len(jobs) - comparing.done)


@dataclass(slots=True, kw_only=True)
class _Comparing:
    """One round of comparisons, and what it has done so far."""

    settings: MirrorSettings
    options: VerifySettings
    follower: Follower
    report: ReportVerdict
    foretell: ReportVerdict
    stop: threading.Event
    clock: Clock
    done: int = 0
    has_foretold: bool = False

    def make_task(self, job: _VerifyJob) -> Look | Check:
        if job.reading_at is None and job.since is not None:
            self._refresh_job(job)
        path, repository = job.state.path, job.state.repository
        folder = self.settings.local(path)
        if job.reading_at is not None:
            return Check(repository=repository, folder=folder, seq=job.reading_at)
        return Look(folder=folder, path=path, repository=repository)

    def decide(self, job: _VerifyJob, looked: FingerprintPair | Checked | None) -> float | None:
        """Report the verdict, or return in how many seconds to compare again."""
        if isinstance(looked, Checked) and looked.problem:
            self._refresh_job(job)
        delay = self._judge_job(job, looked, self.clock.monotonic())
        self.done += delay is None
        return delay

    def _refresh_job(self, job: _VerifyJob) -> None:
        """Look whether it was renamed, deleted or left out of the rules since."""
        picture = _update_patiently(self.follower, self.stop)
        job.state = picture.states.get(job.state.repository, job.state)
        job.is_gone = not is_included(picture, self.settings.name, job.state)

    def _judge_job(self, job: _VerifyJob, looked: FingerprintPair | Checked | None, now: float) -> float | None:
        reading_at, job.reading_at = job.reading_at, None
        if job.is_gone:
            return None
        if isinstance(looked, Checked):
            if self._is_changing(job, looked, now):
                return self.options.again
            self.report(self._make_verdict(job, *_judge_contents(looked, self.options), reading_at or 0))
            return None
        outcome, _, seq = found = _judge_pair(looked)
        if outcome is ComparisonOutcome.EQUAL and self.options.deep:
            job.reading_at = seq
            return 0.0
        if outcome is not ComparisonOutcome.EQUAL and not self._is_sure(job, looked, found, now):
            return self.options.again
        self.report(self._make_verdict(job, *found))
        return None

    def _is_changing(self, job: _VerifyJob, looked: Checked, now: float) -> bool:
        """Return whether the contents changed while they were read, and are read again."""
        if not looked.is_undecided or looked.is_spent:
            return False
        is_first = job.changes_since is None
        job.changes_since = now if job.changes_since is None else job.changes_since
        return is_first or now - job.changes_since < self.options.patience

    def _is_sure(self, job: _VerifyJob, looked: FingerprintPair | None, found: Found, now: float) -> bool:
        """Return whether what was found is true; if it may pass, foretell it once."""
        outcome, note, _ = found
        is_first = job.since is None
        job.since = now if job.since is None else job.since
        # Both sides could be read, and are the same repository.
        is_same = looked and looked.here and looked.there and looked.here.repository == looked.there.repository
        is_difference = outcome is ComparisonOutcome.DIFFERS and is_same
        is_sure = job.before == note if is_difference else now - job.since >= self.options.patience
        job.before = note
        if not is_first and not is_sure and not is_difference and not self.has_foretold:
            self.has_foretold = True
            self.foretell(self._make_verdict(job, *found))
        return not is_first and is_sure

    def _make_verdict(self, job: _VerifyJob, outcome: ComparisonOutcome, note: str, seq: int) -> Verdict:
        return Verdict(
            mirror=self.settings.name,
            repository=job.state.repository,
            path=job.state.path,
            outcome=outcome,
            seq=seq,
            note=note,
        )


def _update_patiently(follower: Follower, stop: threading.Event) -> Picture:
    while True:
        try:
            return follower.update()
        except Unavailable as error:
            logger.warning("log unavailable", reason=str(error))
            if stop.wait(RETRY):
                raise


def _judge_contents(checked: Checked, options: VerifySettings) -> tuple[ComparisonOutcome, str]:
    if checked.is_spent:
        return ComparisonOutcome.UNREACHABLE, f"contents: {checked.problem}"
    if checked.is_undecided:
        changing = f"contents: they changed whenever they were read, for {options.patience:g} seconds"
        return ComparisonOutcome.UNREACHABLE, changing
    if checked.problem:
        return ComparisonOutcome.DIFFERS, f"contents: {checked.problem}"
    return ComparisonOutcome.EQUAL, ""


def _judge_pair(looked: FingerprintPair | None) -> Found:
    if looked is None:
        return ComparisonOutcome.UNREACHABLE, "the worker process died", 0
    seq = looked.here.seq if looked.here else 0
    if looked.there is None:
        return ComparisonOutcome.UNREACHABLE, looked.problem, seq
    if looked.problem:
        return ComparisonOutcome.DIFFERS, looked.problem, seq
    return *judge(looked.here, looked.there), seq


def run(
    settings: MirrorSettings,
    events: Log,
    options: VerifySettings,
    *,
    stop: threading.Event,
    clock: Clock = SystemClock(),  # noqa: B008
) -> None:
    """Compare in rounds until `stop`; log, report and measure what is wrong.

    Another start continues the round.
    """
    with closing(Comparisons(Path(settings.folder) / FILE, clock.now())) as known:
        service = _VerifyService(settings=settings, known=known, clock=clock, log=events)
        while not stop.is_set():
            try:
                ended = compare(
                    settings,
                    events,
                    options,
                    report=service.take,
                    stop=stop,
                    clock=clock,
                    choose=lambda carried: known.choose(carried, clock.now()),
                    show=service.show,
                )
            except Exception as error:
                if isinstance(error, Unavailable | Expired):
                    logger.warning("log unavailable", reason=str(error))
                else:
                    logger.exception("round failed", mirror=settings.name)
                stop.wait(RETRY)
                continue
            if ended.undone or known.has_more:
                continue
            logger.info("compared", mirror=settings.name, **plain(service.measure()))
            # Set back, the clock would let the rest last too long.
            while 0.0 <= (since := clock.now() - known.began) < options.rest:
                if stop.wait(min(RETRY, options.rest - since)):
                    return
                service.show()
            known.begin_round(clock.now())


class _VerifyService:
    """What a continuous comparison of one mirror says of itself."""

    def __init__(self, *, settings: MirrorSettings, known: Comparisons, clock: Clock, log: Log) -> None:
        self._name, self._known, self._clock = settings.name, known, clock
        self._reporter = ServiceReporter(log, f"{VERIFY_KEY}{settings.name}")

    def take(self, verdict: Verdict) -> None:
        """Log, count and note a verdict."""
        COMPARED.labels(verdict.mirror, verdict.outcome.value).inc()
        _log_verdict(verdict)
        trouble = failure = ""
        if verdict.outcome in NEEDS_OPERATOR:
            trouble = f"mirror {verdict.mirror}: {visible(verdict.path)}: {verdict.outcome.value}"
            trouble += f" {visible(verdict.note)}{remedy(verdict)}"
        elif verdict.outcome is not ComparisonOutcome.EQUAL:
            failure = (
                f"mirror {verdict.mirror}: {visible(verdict.path)} ({verdict.outcome.value} {visible(verdict.note)})"
            )
        self._known.note(verdict.repository, self._clock.now(), trouble=trouble, failure=failure)

    def show(self, _done: int = 0, _total: int = 0) -> None:
        """Measure, and write a report, if one is due."""
        if time.monotonic() >= self._reporter.due:
            progress, now = self.measure(), self._clock.now()
            self._reporter.report(list(self._known.list_troubles(now)), now=now, progress=progress)

    def measure(self) -> RoundProgress:
        """Set the metrics, and return how far the round is."""
        progress = self._known.measure()
        DIFFERING.labels(self._name).set(progress.differing)
        UNREACHABLE.labels(self._name).set(progress.failing)
        DONE.labels(self._name).set(progress.done)
        CARRIED.labels(self._name).set(progress.total)
        OLDEST.labels(self._name).set(progress.oldest or 0.0)
        return progress


def remedy(verdict: Verdict) -> str:
    """Return what an operator must do, if anything.

    A copy from the master would remove what only the mirror has.
    """
    if verdict.outcome not in NEEDS_OPERATOR:
        return ""
    if verdict.outcome is ComparisonOutcome.AHEAD:
        return "; save first what only the mirror has (docs/operating.md, Restore repositories)"
    return f"; to copy it again: vcsreplicator heal {verdict.mirror} {visible(shlex.quote(verdict.path))} --yes"


def _log_verdict(verdict: Verdict) -> None:
    """Log the verdict unless both are equal.

    A verdict on which an operator must act is an error; if it may pass, a warning.
    """
    if verdict.outcome is ComparisonOutcome.EQUAL:
        return
    severity = logging.ERROR if verdict.outcome in NEEDS_OPERATOR else logging.WARNING
    logger.log(severity, "not equal", **{**plain(verdict), "outcome": verdict.outcome.value})
