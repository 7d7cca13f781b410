# SPDX-License-Identifier: GPL-2.0-or-later
"""The summary that `status` and `check` show, from one picture of the log. Pure.

A summary travels as JSON from a running dashboard to these verbs (`dashboard.asked`), so `words.shape` checks all its members.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..words.clock import format_duration
from ..words.errors import counted
from ..words.records import (
    AGGREGATOR,
    DESTINATION_KEY,
    RELAY_KEY,
    STANDBY_KEYS,
    VERIFY_KEY,
    RoundProgress,
)
from ..words.shape import Count, Time
from . import MirrorLags, Picture, count_unapplied
from .findings import find_all_notes, findings
from .services import FORGOTTEN, REPORTED_WITHIN, Expectations, find_recent, list_watched
from .wording import Finding

# Most repositories with waiting notices that a summary lists.
SHOWN = 15
# Most things below their limits that are said in one line.
SAID = 5
# Seconds within which a mirror and the aggregator send three heartbeats.
BEATS_WITHIN = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorLine:
    """A mirror; `state` is None if no roster has it, `seen` if it was never seen.

    `verified` is what its `verify` reported last, None if it has none.
    """

    name: str
    state: str | None = None
    repositories: Count
    behind: Count
    detached: Count
    seen: Time | None = None
    verified: RoundProgress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLine:
    """A service by its key in `services` or `watches`, or a decoder.

    `oldest` is when the first notice that it lacks was written, `seen` when it reported last; `standby` whether it only stands by
    for others, None for a service that never does. `partitions` are a decoder's, each as `TOPIC/NUMBER`.
    """

    name: str
    behind: Count | None = None
    oldest: Time | None = None
    seen: Time | None = None
    troubles: tuple[str, ...] = ()
    standby: bool | None = None
    partitions: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name, and of services with standbys whether this process works, or its partitions."""
        if self.standby is None:
            return self.name
        return f"{self.name} ({'standby' if self.standby else ', '.join(self.partitions) or 'active'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLine:
    """A repository with events that lack a notice, and the mirrors that it waits for."""

    path: str
    seq: Count
    released: Count
    noticed: Count
    holding: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The state of the installation as of `now`, by the log's clock.

    `waiting` are the repositories with the longest queues of the `waiting_repositories`, in which `waiting_events` lack a notice.
    `aggregator` is when the aggregator was seen last, None for never, and `roster` the version that it said then.
    `watched` names the watched services, in words. `recent` says what is not as it should be, but for less than its limit. `notes`
    are of possible interest to an operator.
    """

    now: Time
    repositories: Count
    events: Count
    announced: Count
    waiting_events: Count
    waiting_repositories: Count
    errors: Count
    aggregator: Time | None = None
    roster: Count | None = None
    mirrors: tuple[MirrorLine, ...]
    services: tuple[ServiceLine, ...]
    waiting: tuple[WaitingLine, ...]
    findings: tuple[Finding, ...]
    watched: str
    recent: tuple[str, ...] = ()
    notes: tuple[str, ...]

    def describe_well(self) -> str:
        """Say that all is caught up, or what has not reached its limit."""
        verb = "are" if " and " in self.watched else "is"
        if not self.recent:
            return f"{self.watched} {verb} caught up"
        shown = [*self.recent[:SAID], *([f"{len(self.recent) - SAID} more"] if len(self.recent) > SAID else [])]
        return f"{self.watched} {verb} within {'their' if verb == 'are' else 'its'} limits: {'; '.join(shown)}"

    def measure_silence(self, service: str) -> float:
        """Return the seconds since this service reported; many if it never did.

        A report in the future is from before the clock was set back: its absolute distance counts.
        """
        seen = next((line.seen for line in self.services if line.name == service), None)
        return abs(self.now - (seen or 0.0))


def make_summary(picture: Picture, now: float, expected: Expectations) -> Summary:
    """Summarize a picture to which the destinations were added."""
    states, waiting = picture.states.values(), picture.waiting()
    lags, beat = picture.measure_all_lags(now), picture.aggregator
    return Summary(
        now=now,
        repositories=len(states),
        events=sum(state.base + state.seq for state in states),
        announced=sum(state.base + state.noticed for state in states),
        waiting_events=sum(state.seq - state.noticed for state in waiting),
        waiting_repositories=len(waiting),
        errors=picture.errors,
        aggregator=picture.seen(AGGREGATOR) if beat else None,
        roster=beat.roster if beat else None,
        mirrors=tuple(list_mirrors(picture, lags)),
        services=(*list_services(picture, expected.relay), *list_decoders(picture, now)),
        waiting=tuple(
            WaitingLine(
                path=state.path,
                seq=state.seq,
                released=state.released,
                noticed=state.noticed,
                holding=tuple(picture.holding(state)),
            )
            for state in waiting[:SHOWN]
        ),
        findings=tuple(findings(picture, now, expected)),
        watched=_describe_watched(picture, now, expected),
        recent=(
            *_list_lags(picture, lags, expected),
            *_list_late(picture, now, expected),
            *find_recent(picture, now, expected),
        ),
        notes=find_all_notes(picture, now, expected),
    )


def _describe_watched(picture: Picture, now: float, expected: Expectations) -> str:
    """Say of which services the findings are."""
    reporting = {name for name in picture.reports if picture.silence(name, now) < FORGOTTEN}
    relays = {name for name in reporting if name.startswith(RELAY_KEY)}
    relays |= {f"{RELAY_KEY}{expected.relay}"} if expected.relay else set()
    wanted = expected.destinations
    if wanted is None:
        named = {name.removeprefix(DESTINATION_KEY) for name in reporting if name.startswith(DESTINATION_KEY)}
        wanted = tuple(named | picture.lacking.keys())
    watched = ["aggregator"]
    if relays:
        watched.append("relay" if len(relays) == 1 else f"{len(relays)} relays")
    for count, what in ((len(picture.expected()), "mirror"), (len(wanted), "destination")):
        if count:
            watched.append(counted(count, what))
    return " and ".join([", ".join(watched[:-1]), watched[-1]] if len(watched) > 1 else watched)


def _list_lags(picture: Picture, lags: Mapping[str, MirrorLags], expected: Expectations) -> Iterator[str]:
    """Yield how many notices wait, and who lacks how much of what is in the log."""
    if count := sum(state.seq - state.noticed for state in picture.waiting()):
        yield f"{count} notice{' waits' if count == 1 else 's wait'}"
    behind = {f"mirror {name}": (count_unapplied(lags[name]), "event") for name in picture.expected()}
    for name, lag in sorted(picture.lacking.items()):
        if expected.destinations is None or name in expected.destinations:
            behind[DESTINATION_KEY + name] = lag, "notice"
    for who, (lag, what) in behind.items():
        if lag:
            yield f"{who} is {counted(lag, what)} behind"


def _list_late(picture: Picture, now: float, expected: Expectations) -> Iterator[str]:
    """Yield the services whose heartbeats are late, and not yet called silent."""
    beating = {"the aggregator": AGGREGATOR, **{f"mirror {name}": name for name in picture.expected()}}
    for who, name in {**beating, **{name: name for name in list_watched(picture, expected)}}.items():
        silence = picture.silence(name, now)
        if (BEATS_WITHIN if who in beating else REPORTED_WITHIN) < silence < FORGOTTEN:
            yield f"{who} was last seen {format_duration(silence)} ago"


def list_mirrors(picture: Picture, lags: Mapping[str, MirrorLags]) -> Iterator[MirrorLine]:
    """Yield the mirrors whose lags were measured."""
    known = {mirror.name: mirror.state.value for mirror in picture.roster.mirrors}
    carried = Counter(mirror for mirror, _ in picture.acks)
    detached = Counter(ack.mirror for ack in picture.detached())
    for name, lacks in lags.items():
        report = picture.reports.get(VERIFY_KEY + name)
        yield MirrorLine(
            name=name,
            state=known.get(name),
            repositories=carried[name],
            behind=count_unapplied(lacks),
            detached=detached[name],
            seen=picture.seen(name) if name in picture.heard else None,
            verified=report.progress if report else None,
        )


def list_services(picture: Picture, relay: str | None) -> Iterator[ServiceLine]:
    """Yield services that reported, have a position, or must exist."""
    known = {DESTINATION_KEY + name for name in picture.positions} | ({RELAY_KEY + relay} if relay else set())
    for name in sorted(picture.reports.keys() | known, reverse=True):
        report, destination = picture.reports.get(name), name.removeprefix(DESTINATION_KEY)
        yield ServiceLine(
            name=name,
            behind=picture.lacking.get(destination),
            oldest=picture.oldest.get(destination),
            seen=picture.seen(name) if report else None,
            troubles=tuple(trouble.text for trouble in report.troubles) if report else (),
            standby=report.is_standby if report and name.startswith(STANDBY_KEYS) else None,
        )


def list_decoders(picture: Picture, now: float) -> Iterator[ServiceLine]:
    """Yield the decoders that divide topics, as the log knows them now."""
    for decoder, share in sorted(picture.decoders.items()):
        partitions = tuple(f"{topic}/{number}" for topic, number in sorted(share))
        yield ServiceLine(name=f"decode {decoder}", seen=now, standby=not share, partitions=partitions)
