# SPDX-License-Identifier: GPL-2.0-or-later
"""Conditions that hold notices back and need an operator. Pure.

For example, a mirror is silent, or no mirror gates a repository, or a repository waits for others.
"""

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..words.clock import Silence, format_duration
from ..words.errors import counted
from ..words.records import MIRROR_FORMAT
from ..words.roster import MirrorState, Roster
from .decisions.aggregation import Aggregation
from .decisions.outstanding import Outstanding
from .decisions.repository import Repository
from .decisions.succession import Wait
from .gate import STRANGERS, ForeignRecord

SILENT = "mirror silent"
NO_GATING = "no gating mirror"
NOTICES_HELD = "notices held"
NEWER = "events of a newer version"
BROKEN = "decisions failed"
TOO_LARGE = "message too large"
LOST = "events lost"
MISSING = "events missing in the log"
SUCCESSOR = "successor waits"
FORKED = "repository forked"
OLDER = "mirror of an older release"
UNREAD = "events not read"
FOREIGN = "foreign acks"
UNSEALED = "mirror without seal"

# What an operator can do about an alarm whose name does not say it.
STEPS = {
    FORKED: "stop what sends events of another history, then run `hg replicateadopt` where the history is right",
    NO_GATING: "activate or add a mirror (`vcsreplicator roster list`), or: vcsreplicator roster allow-empty yes --yes",
    NEWER: "upgrade the aggregator",
    BROKEN: "keep the log lines of the aggregator, then upgrade it, or: systemctl restart vcsreplicator-aggregator",
    LOST: "they get no notice; run `hg replicatesync` in the repository on the master: mirrors then copy what they lack",
    MISSING: (
        "mirrors have them, so the log lost its newest records; a running relay sends again what the outboxes keep; if the master "
        "was restored too, see docs/operating.md"
    ),
}

# How many repositories an alarm names.
NAMED = 3

OLDER_STEP = (
    "it does not say from which event on it can serve, so renames and deletions may wait indefinitely; upgrade it"
)

# How many successors get an alarm of their own.
SUCCESSORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One alarm; equal while the same condition lasts, even if its numbers change.

    Numbers of a silent mirror: `seconds` without a heartbeat, `lag` events that it has not applied, `held` notices that wait
    for it. All others: `held` events, or `lost` or `missing` ones, of how many `repositories`; `paths` names some of these. A
    repository that waits for the one before it at its path has an alarm of its own, which `story` describes.
    """

    kind: str
    mirror: str | None = None
    repository: str | None = None
    story: str | None = field(default=None, compare=False)
    numbers: Mapping[str, float] = field(default_factory=dict, compare=False)
    paths: tuple[str, ...] = field(default=(), compare=False)

    def describe(self, since: float) -> str:
        """Return the alarm in one line, with the time since when it lasts.

        The stories of waiting notices and of successors say it themselves.
        """
        lasts = time.strftime(" (since %Y-%m-%d %H:%M:%S UTC)", time.gmtime(since))
        begin = f"{self.kind}{f' {self.mirror}' if self.mirror else ''}: "
        if self.story is not None:
            return f"{begin}{self.story}{lasts if self.kind in (OLDER, UNREAD, TOO_LARGE, UNSEALED) else ''}"
        numbers = ", ".join(
            counted(round(value), "repository") if name == "repositories" else f"{value} {name}"
            for name, value in self.numbers.items()
        )
        where = f" ({', '.join(self.paths)})" if self.paths else ""
        step = f"; {STEPS[self.kind]}" if self.kind in STEPS else ""
        return f"{begin}{numbers}{where}{lasts}{step}"

    @property
    def named(self) -> dict[str, object]:
        """The members of its log line that name repositories."""
        named = {"paths": self.paths, "repository": self.repository, "what": self.story}
        return {name: value for name, value in named.items() if value}


@dataclass(slots=True, kw_only=True)
class Waiting:
    """What is outstanding, and for how many seconds.

    `lags` and `unserved` are those of the mirrors in the roster. By mirror, `silent` says how long it has sent no heartbeat. `held`
    says by repository how long its first notice has been the first; `successors` says how long each waits.
    """

    outstanding: Outstanding
    lags: Mapping[str, int]
    unserved: Mapping[str, int]
    silent: Mapping[str, float]
    held: Mapping[str, float]
    successors: Sequence[tuple[Wait, float]]


def alarms(
    aggregation: Aggregation,
    waiting: Waiting,
    patience: float,
    missing: Mapping[str, int] | None = None,
    *,
    unread: str = "",
) -> tuple[Alarm, ...]:
    """Return what is wrong after `patience` silent seconds.

    `missing` counts, by repository, the events that only mirrors have. `unread` says why it is not known that all of
    `events` is read, and what an operator can do.
    """
    found, outstanding = [Alarm(kind=UNREAD, story=unread)] if unread else [], waiting.outstanding
    for name, seconds in waiting.silent.items():
        if seconds >= patience:
            numbers = {"seconds": round(seconds), "lag": waiting.lags[name], "held": waiting.unserved[name]}
            found.append(Alarm(kind=SILENT, mirror=name, numbers=numbers))
        if aggregation.levels.formats.get(name, MIRROR_FORMAT) < MIRROR_FORMAT:
            found.append(Alarm(kind=OLDER, mirror=name, story=OLDER_STEP))
    found += _alarm_counted(NO_GATING, outstanding.alone)
    found += _alarm_held(aggregation, waiting, patience)
    found += (*_alarm_counted(NEWER, outstanding.newer), *_alarm_counted(BROKEN, outstanding.broken))
    found += _alarm_refused(aggregation)
    if forked := outstanding.forked:
        paths = tuple(sorted(forked.values())[:NAMED])
        found.append(Alarm(kind=FORKED, numbers={"repositories": len(forked)}, paths=paths))
    found += _alarm_repositories(aggregation, LOST, "lost", aggregation.lost)
    found += _alarm_repositories(aggregation, MISSING, "missing", missing or {})
    return (*found, *_alarm_successors(aggregation, waiting, patience))


def _alarm_counted(kind: str, events: Mapping[str, int]) -> list[Alarm]:
    """Return the alarm about these events, counted by repository, if there are any."""
    numbers = {"held": sum(events.values()), "repositories": len(events)}
    return [Alarm(kind=kind, numbers=numbers)] if events else []


def _alarm_held(aggregation: Aggregation, waiting: Waiting, patience: float) -> list[Alarm]:
    """Return the alarm about notices that wait for `patience` seconds.

    Notices do not count if another alarm explains their wait.
    """
    silent = {name for name, seconds in waiting.silent.items() if seconds >= patience}
    held: dict[str, int] = {}
    mirrors: set[str] = set()
    for name, seconds in waiting.held.items():
        repository = aggregation.repositories[name]
        is_explained = name in aggregation.poison.faults or name in aggregation.poison.refused
        if seconds < patience or is_explained or repository.is_stored_newer:
            continue
        late = set(repository.find_late(aggregation.roster))
        if repository.gating(aggregation.roster) and not (late and late <= silent):
            held[name] = len(repository.queue)
            mirrors |= late - silent
    if not held:
        return []
    paths = sorted(aggregation.repositories[name].path for name in held)
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    whom = f", for {', '.join(sorted(mirrors))}" if mirrors else ""
    longest = max(waiting.held[name] for name in held)
    story = f"{sum(held.values())} of {', '.join(paths[:NAMED])}{more} wait{whom}, the oldest for {format_duration(longest)}"
    story = f"{story}; see: vcsreplicator trace {shlex.quote(paths[0])}"
    return [Alarm(kind=NOTICES_HELD, story=story)]


def _alarm_refused(aggregation: Aggregation) -> Iterator[Alarm]:
    """Yield the alarm about repositories whose record is too large for a topic."""
    refused = aggregation.poison.refused
    if not refused:
        return
    waits = []
    for topic in sorted({each.topic for each in refused.values()}):
        largest = {name: each for name, each in refused.items() if each.topic == topic}
        known = aggregation.repositories
        paths = sorted(known[name].path if name in known else name for name in largest)
        more = f" and {len(paths) - NAMED} more wait" if len(paths) > NAMED else " wait"
        names = f"{', '.join(paths[:NAMED])}{more if len(paths) > 1 else ' waits'}"
        newest = max(largest.values(), key=lambda each: each.size)
        limit = "" if newest.limit is None else f" (it takes {newest.limit})"
        waits.append(f"{names}, for topic {topic} refuses a message of {newest.size} bytes{limit}")
    yield Alarm(kind=TOO_LARGE, story=f"{'; '.join(waits)}; correct max.message.bytes, see: vcsreplicator topics check")


def _alarm_successors(aggregation: Aggregation, waiting: Waiting, patience: float) -> Iterator[Alarm]:
    """Yield the alarms of waiting successors.

    If only an operator can end the wait, the alarm comes at once, else after `patience` seconds.
    """
    due = []
    for wait, seconds in waiting.successors:
        is_due = seconds >= patience
        causes = [
            (other, cause) for other in wait.predecessors if (cause := _find_cause(aggregation, other, is_due=is_due))
        ]
        if causes:
            due.append((wait, causes))
    for wait, causes in due[:SUCCESSORS]:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wait.held.since))
        reasons = "; ".join(f"{_name_repository(other)}, {cause}" for other, cause in causes)
        story = f"{wait.held.event.path} ({wait.successor.id}) waits since {since} UTC for all notices of {reasons}"
        yield Alarm(kind=SUCCESSOR, repository=wait.successor.id, story=story)
    if len(due) > SUCCESSORS:
        yield Alarm(kind=SUCCESSOR, story=f"{len(due) - SUCCESSORS} more")


def _find_cause(aggregation: Aggregation, other: Repository, *, is_due: bool) -> str | None:
    """Return why notices of `other` do not come, and the remedy; None if they may."""
    broken = aggregation.poison.faults.get(other.id)
    if broken is not None:
        return f"about which decisions failed ({broken.reason[:200]}): restart the aggregator, or upgrade it"
    if other.is_refused:
        return "of which a topic refuses a message for its size: raise the topic's `max.message.bytes`"
    if other.newer or other.is_stored_newer:
        return "which has events of a newer version: upgrade the aggregator"
    if other.queue and not other.gating(aggregation.roster) and not aggregation.roster.allow_empty:
        return (
            f"which no mirror gates: `vcsreplicator roster activate MIRROR --repository {other.id}`, "
            "or `vcsreplicator roster allow-empty yes --yes`"
        )
    mirrors = other.find_late(aggregation.roster)
    if is_due and mirrors:
        return f"which mirrors lack ({', '.join(mirrors)}): `vcsreplicator roster deactivate MIRROR --repository {other.id} --yes`"
    return None


def alarm_seals(foreign: Mapping[str, ForeignRecord], unsealed: Iterable[str]) -> Iterator[Alarm]:
    """Yield the alarms about seals.

    `foreign` are the records that another program wrote in a mirror's name, by key; `unsealed` names mirrors that seal none.
    """
    for mirror in sorted({key.partition("/")[0] for key in foreign}):
        found = {key: each for key, each in foreign.items() if key.partition("/")[0] == mirror}
        key, newest = max(found.items(), key=lambda item: item[1].offset)
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest.written))
        is_open = any(each.is_open for each in found.values())
        then = "the mirror writes its own again while it runs" if is_open else "the mirror has written its own again"
        story = (
            f"another program wrote records in its name under {counted(len(found), 'key')}, the newest under {key[:100]} "
            f"at offset {newest.offset} of acks, {written} UTC; they do not count, and {then}; "
            "on Kafka, the authorizer's log on the broker names the user"
        )
        yield Alarm(kind=FOREIGN, mirror=mirror, story=story)
    for name in sorted(unsealed):
        story = (
            "nothing that it wrote is sealed with a key that the roster has for it, so none of it counts; "
            f"start it, and compare the roster's key with the one on its machine: vcsreplicator key {name}"
        )
        yield Alarm(kind=UNSEALED, mirror=name, story=story)


def alarm_crowded(mirrors: Iterable[str]) -> Iterator[Alarm]:
    """Yield the alarms about records that had no room in the gate; "" names unlisted mirrors."""
    for name in sorted(mirrors):
        story = (
            f"more than {STRANGERS} levels in its name are of repositories that the log does not have, and further ones do not "
            "count; if the log lost its newest records, wait for the relay to send them again; if not, the mirror invents "
            "levels: stop it, and remove it from the roster"
        )
        if not name:
            story = (
                f"acks has more than {STRANGERS} records of mirrors that are not in the roster, and further ones do not count; "
                "add the mirror that wrote them, or find the program that writes them and take the right to write acks from it"
            )
        yield Alarm(kind=FOREIGN, mirror=name or None, story=story)


def _name_repository(repository: Repository) -> str:
    return f"{repository.state.path} ({repository.id})" if repository.state else repository.id


def _alarm_repositories(aggregation: Aggregation, kind: str, what: str, counts: Mapping[str, int]) -> list[Alarm]:
    """Return the alarm about the events that are counted by repository, if any are."""
    if not counts:
        return []
    paths = tuple(sorted(aggregation.repositories[name].path for name in counts)[:NAMED])
    return [Alarm(kind=kind, numbers={what: sum(counts.values()), "repositories": len(counts)}, paths=paths)]


def survey(aggregation: Aggregation, silence: Silence, now: float) -> Waiting:
    """Find what is outstanding, and measure how long it has been.

    `silence` remembers the signs that were seen before. Costs what changed and what waits.
    """
    names = [one.name for one in aggregation.roster.mirrors if one.state is not MirrorState.REMOVED]
    waits, outstanding = aggregation.succession.waits(), aggregation.find_outstanding()
    return Waiting(
        outstanding=outstanding,
        lags={name: outstanding.lags[name] for name in names},
        unserved={name: outstanding.unserved[name] for name in names},
        silent=measure_silence(aggregation.roster, silence, now),
        # Since the first event without a notice became the first.
        held={name: _measure_since(silence, (name, "held"), first, now) for name, first in outstanding.firsts.items()},
        successors=[
            (each, _measure_since(silence, (each.successor.id, "waits"), each.held.since, now)) for each in waits
        ],
    )


def _measure_since(silence: Silence, key: tuple[str, str], sign: object, now: float) -> float:
    """Return the seconds for which the sign under this key has been the same."""
    silence.heard(key, sign, now)
    return silence.seconds(key, now)


def measure_silence(roster: Roster, silence: Silence, now: float) -> dict[str, float]:
    """Return the silent seconds of each mirror that must send heartbeats.

    They begin with its last heartbeat, or when it came into its state if that was later.
    """
    found = {}
    for mirror in roster.mirrors:
        if mirror.state in (MirrorState.ACTIVE, MirrorState.JOINING):
            standing = mirror.name, "standing"
            silence.heard(standing, mirror.since, now)
            found[mirror.name] = min(silence.seconds(mirror.name, now), silence.seconds(standing, now))
    return found
