# SPDX-License-Identifier: GPL-2.0-or-later
"""The content of the pages, made from one picture of the log.

A view has mirrors, services, repositories and findings. The module is pure, and a view never changes.
"""

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..status import SILENT, MirrorLags, Picture
from ..status.findings import SILENT_AGGREGATOR, findings
from ..status.pushes import PushQuery
from ..status.services import Expectations, is_silent_service
from ..status.summary import list_decoders, list_mirrors, list_services
from ..status.wording import Finding, Severity
from ..words.records import AGGREGATOR, DESTINATION_KEY, Ack, RepositoryState, RoundProgress
from ..words.roster import MirrorState, Verb
from ..words.roster.changes import FROM
from .graphs.history import MINUTE, MinuteSample
from .recent import RecentEvent, RecentEvents

# Characters of a repository's id that stand for a name that a reader may not see.
SHORT = 8


class Condition(enum.StrEnum):
    """The condition of a repository, the worst first."""

    FORKED = "forked"
    DETACHED = "detached"
    WAITING = "waiting"
    CURRENT = "current"
    DELETED = "deleted"


class MirrorCondition(enum.StrEnum):
    """The condition of a mirror, the worst first.

    It is behind if it has lacked an event for SILENT seconds.
    """

    SILENT = "silent"
    FAILING = "cannot write"
    DETACHED = "has detached"
    BEHIND = "behind"
    INACTIVE = "not expected to run"
    CURRENT = "current"


_ORDER = {condition: number for number, condition in enumerate(Condition)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRow:
    """A mirror.

    `lag` is the number of seconds for which the oldest event that it lacks has been in the log. `seen` is 0 for never. `verified`
    is what its `verify` reported last, None if it has none.
    """

    name: str
    condition: MirrorCondition
    standing: str
    repositories: int
    behind: int
    lag: float
    detached: int
    seen: float
    verified: RoundProgress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRow:
    """The aggregator, a relay, a destination or a decoder.

    `oldest` is when the first notice that it lacks was written. It `is_silent` if it has sent no heartbeat for too long.
    """

    name: str
    seen: float
    is_silent: bool
    behind: int | None = None
    position: int | None = None
    oldest: float | None = None
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryRow:
    """A repository; `waits` counts its events without a notice."""

    state: RepositoryState
    condition: Condition
    waits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The log as of `now`, by its own clock.

    `newest` are the remembered events without those of adoptions, `events` all of each repository, both with the newest first.
    `pushes` is the number of pushes that came in the last minute. `lags` are those of each mirror, and `detached` the levels of
    detached repositories.
    """

    now: float
    picture: Picture
    findings: tuple[Finding, ...]
    mirrors: tuple[MirrorRow, ...]
    services: tuple[ServiceRow, ...]
    repositories: tuple[RepositoryRow, ...]
    newest: tuple[RecentEvent, ...]
    events: Mapping[str, list[RecentEvent]]
    pushes: int
    lags: Mapping[str, MirrorLags]
    detached: tuple[Ack, ...]

    @property
    def level(self) -> Severity:
        """The severity of the worst finding."""
        return max((finding.level for finding in self.findings), default=Severity.OK)

    @property
    def waiting(self) -> int:
        """The number of events that have no notice yet."""
        return sum(row.waits for row in self.repositories)

    def is_announced(self, event: RecentEvent) -> bool:
        """Return whether the event has its notice.

        The aggregator may not have seen the event's repository yet.
        """
        state = self.picture.states.get(event.repository)
        if event.notice is not None or state is None:
            return event.notice is not None
        return state.incarnation == event.incarnation and state.noticed >= event.seq

    def list_roster(self) -> list[dict[str, Any]]:
        """List the mirrors of the roster, without those that were removed and do not run.

        Each has its `mirror`, in `holds` the number of repositories in which notices wait for it, the paths for which it is
        `deactivated`, and the `verbs` that an operator may use on it.
        """
        waiting = (row.state for row in self.repositories if row.waits)
        holds = Counter(name for state in waiting for name in self.picture.holding(state))
        states, gone = self.picture.states, self.picture.gone(self.now)
        return [
            {
                "mirror": mirror,
                "holds": holds[mirror.name],
                "deactivated": [states[each].path if each in states else each for each in mirror.deactivated],
                "verbs": [verb for verb in (Verb.ACTIVATE, Verb.DEACTIVATE) if mirror.state in FROM[verb]],
            }
            for mirror in self.picture.roster.mirrors
            if mirror.name not in gone
        ]

    def find_verb(self, state: RepositoryState, name: str) -> Verb | None:
        """Return the verb that an operator may use on a mirror for one repository.

        The verb makes notices wait for the mirror again, or no longer.
        """
        mirror = self.picture.roster.mirror(name)
        if mirror is None or mirror.state is MirrorState.REMOVED:
            return None
        if state.repository in mirror.deactivated:
            return Verb.ACTIVATE
        return Verb.DEACTIVATE if mirror.gates(state.repository, state.path) else None


def make_view(picture: Picture, recent: RecentEvents, now: float, expected: Expectations) -> View:
    """Make a view that shares nothing with the picture, which goes on changing."""
    kept = replace(
        picture,
        states=dict(picture.states),
        acks=dict(picture.acks),
        heartbeats=dict(picture.heartbeats),
        heard=dict(picture.heard),
        moved=dict(picture.moved),
        reports=dict(picture.reports),
    )
    events = sorted(recent.newest(), key=lambda event: event.logged, reverse=True)
    by_repository: dict[str, list[RecentEvent]] = {}
    for event in events:
        by_repository.setdefault(event.repository, []).append(event)
    lags = picture.measure_all_lags(now)
    return View(
        now=now,
        picture=kept,
        findings=tuple(findings(picture, now, expected)),
        mirrors=tuple(_list_mirrors(kept, recent, lags, now)),
        services=tuple(_list_services(kept, expected, now)),
        repositories=tuple(_list_repositories(kept, now)),
        newest=tuple(event for event in events if not event.is_adoption),
        events=by_repository,
        pushes=recent.count_pushes(now),
        lags=lags,
        detached=tuple(picture.detached()),
    )


def make_sample(picture: Picture, recent: RecentEvents, now: float) -> MinuteSample:
    """Measure what the graphs show."""
    took = sorted(
        event.announced - event.time
        for event in recent.announced
        if event.announced is not None and now - MINUTE < event.announced <= now
    )
    lags = {
        name: _measure_wait(picture, recent, [(state, lag.unapplied) for state, lag in found if lag.unapplied], now)
        for name, found in picture.measure_all_lags(now).items()
    }
    return MinuteSample(
        at=now,
        pushes=recent.count_pushes(now),
        waiting=sum(state.seq - state.noticed for state in picture.waiting()),
        lags=lags,
        median=took[len(took) // 2] if took else None,
        slow=took[len(took) * 95 // 100] if took else None,
    )


def _list_mirrors(
    picture: Picture, recent: RecentEvents, lags: Mapping[str, MirrorLags], now: float
) -> Iterable[MirrorRow]:
    known = {mirror.name: mirror for mirror in picture.roster.mirrors}
    silent, expected = picture.silent(now), picture.expected()
    for line in list_mirrors(picture, lags):
        lacks = [(state, lag.unapplied) for state, lag in lags[line.name] if lag.unapplied]
        mirror, beat = known.get(line.name), picture.heartbeats.get(line.name)
        lag = _measure_wait(picture, recent, lacks, now)
        conditions = {
            MirrorCondition.SILENT: line.name in silent,
            MirrorCondition.INACTIVE: line.name not in expected and not picture.runs(line.name, now),
            MirrorCondition.FAILING: beat is not None and beat.trouble is not None,
            MirrorCondition.DETACHED: line.detached > 0,
            MirrorCondition.BEHIND: lag >= SILENT,
            MirrorCondition.CURRENT: True,
        }
        yield MirrorRow(
            name=line.name,
            condition=next(condition for condition, holds in conditions.items() if holds),
            standing=f"{mirror.state}, {mirror.role}" if mirror else "not in the roster",
            repositories=line.repositories,
            behind=line.behind,
            lag=lag,
            detached=line.detached,
            seen=line.seen or 0.0,
            verified=line.verified,
        )


def _measure_wait(
    picture: Picture, recent: RecentEvents, lacks: Iterable[tuple[RepositoryState, int]], now: float
) -> float:
    """Return the seconds since the log got the oldest event that a mirror lacks.

    The result is a lower bound, because old events are not remembered.
    """
    oldest = now
    for state, count in lacks:
        logged = [event.logged for event in recent.of(state.repository) if event.seq > state.seq - count]
        oldest = min([oldest, *logged] if logged else [oldest, picture.moved.get(state.repository, now)])
    return max(0.0, now - oldest)


def _list_services(picture: Picture, expected: Expectations, now: float) -> Iterable[ServiceRow]:
    alarms, seen = picture.aggregator.alarms if picture.aggregator else (), picture.seen(AGGREGATOR)
    is_silent = picture.silence(AGGREGATOR, now) > SILENT_AGGREGATOR
    yield ServiceRow(name=AGGREGATOR, seen=seen, is_silent=is_silent, troubles=alarms)
    for line in list_services(picture, expected.relay):
        yield ServiceRow(
            name=line.title,
            seen=line.seen or 0.0,
            is_silent=picture.has_services and is_silent_service(picture.silence(line.name, now), expected),
            behind=line.behind,
            position=picture.positions.get(line.name.removeprefix(DESTINATION_KEY)),
            oldest=line.oldest,
            troubles=line.troubles,
        )
    for line in list_decoders(picture, now):
        yield ServiceRow(name=line.title, seen=now, is_silent=False)


def _list_repositories(picture: Picture, now: float) -> list[RepositoryRow]:
    """List the repositories, the worst first."""
    gone = picture.gone(now)
    detached = {ack.repository for ack in picture.acks.values() if ack.detached and ack.mirror not in gone}
    rows = [
        RepositoryRow(state=state, condition=_find_condition(state, detached), waits=max(0, state.seq - state.noticed))
        for state in picture.states.values()
    ]
    return order_rows(rows, lambda row: row.state.path)


def order_rows(rows: Iterable[RepositoryRow], find_name: Callable[[RepositoryRow], str]) -> list[RepositoryRow]:
    """Sort repositories, the worst first, and equals by this name."""
    return sorted(rows, key=lambda row: (_ORDER[row.condition], -row.waits, find_name(row)))


# What columns are sorted by, if a reader asks for it; the default is the order of the rows.
SORTS: Mapping[str, Callable[[Any], Any]] = {
    "event": lambda row: -row.state.seq,
    "released": lambda row: -row.state.released,
    "announced": lambda row: -row.state.noticed,
    "mirror": lambda row: row.name,
    "state": lambda row: list(MirrorCondition).index(row.condition),
    "behind": lambda row: -row.behind,
    "lag": lambda row: -row.lag,
    "detached": lambda row: -row.detached,
    "seen": lambda row: row.seen,
}


def _find_condition(state: RepositoryState, detached: Collection[str]) -> Condition:
    if state.fork:
        return Condition.FORKED
    if state.repository in detached:
        return Condition.DETACHED
    if state.noticed < state.seq:
        return Condition.WAITING
    return Condition.DELETED if state.deleted else Condition.CURRENT


def select_rows(
    rows: Iterable[RepositoryRow], text: str, condition: Condition | None, find_name: Callable[[str, str], str]
) -> list[RepositoryRow]:
    """Select the repositories whose shown name contains the text.

    So a search tells nothing of names that are not shown. `WAITING` also selects repositories in a worse condition that wait.
    """
    wanted = text.strip("/ ").lower()
    return [
        row
        for row in rows
        if (condition in (None, row.condition) or (condition is Condition.WAITING and row.waits))
        and wanted in find_name(row.state.repository, row.state.path).lower()
    ]


def select_pushes(
    events: Iterable[RecentEvent], words: Collection[str], query: PushQuery, show: Callable[[RecentEvent], RecentEvent]
) -> Iterator[RecentEvent]:
    """Yield the events that have each word, in lower case, and fit the query.

    `show` removes what the reader may not see, so a search tells nothing of it.
    """
    is_narrow = query != PushQuery()
    for event in events:
        shown = show(event)
        if all(shown.has_word(word) for word in words) and (
            not is_narrow
            or query.fits(
                repository=shown.repository,
                path=shown.path,
                user=shown.user,
                bookmarks=shown.bookmarks,
                nodes=shown.nodes,
                at=shown.logged,
            )
        ):
            yield event
