# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator must know, found in the picture that the log gives. Pure."""

import shlex
from collections.abc import Collection
from dataclasses import dataclass

from ..words import roster as rosters
from ..words.levels import RepositoryState
from ..words.rules import refused
from ..words.shape import plain
from . import AGGREGATOR, DESTINATION, SILENT, Picture

# Seconds after which a stalled destination is critical.
STALLED = 3600.0

# How many repositories a finding names.
NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something an operator must know: `level` 1 warning, 2 critical; one line that says what to do."""

    level: int
    text: str


def findings(
    picture: Picture,
    now: float,
    *,
    warn: int = 150,
    critical: int = 600,
    destinations: Collection[str] | None = None,
) -> list[Finding]:
    """Find what an operator must know, the worst first; `destinations`, if known, must be there and no others."""
    found = []
    if picture.aggregator is None or now - picture.seen(AGGREGATOR) > 30:
        found.append(Finding(level=2, text="the aggregator has given no sign of life for 30 s: no release, no notice"))
    found += [Finding(level=2, text=text) for text in (picture.aggregator.alarms if picture.aggregator else ())]
    silent = picture.silent(now)
    found += [_find_silent(picture, name) for name in silent]
    for name in picture.expected():
        late = [] if name in silent else picture.late(name, now)
        if late:
            text = f"mirror {name} makes no progress on {_name_paths(late)}; see: vcsreplicator trace {late[0].path}"
            found.append(Finding(level=1, text=text))
        found += _count_lag(f"mirror {name}", "events", picture.behind(name), warn, critical)
    found += _find_ungated(picture, now)
    found += _refused_rules(picture)
    found += _find_destinations(picture, now, destinations, warn, critical)
    for ack in picture.detached():
        state = picture.states.get(ack.repository)
        where = state.path if state else ack.repository
        found.append(
            Finding(level=1, text=f"{where} is detached on {ack.mirror}: {ack.detached} {ack.note or ''}".rstrip())
        )
    return sorted(found, key=lambda finding: -finding.level)


def _find_silent(picture: Picture, name: str) -> Finding:
    """Describe a silent mirror: it holds back the notices of what it gates; nothing waits for a backup."""
    mirror = picture.roster.mirror(name) if picture.roster else None
    if mirror is None or mirror.role is rosters.MirrorRole.BACKUP:
        return Finding(level=1, text=f"mirror {name} is silent; it is a backup, so no notice waits for it")
    gated = [state for state in picture.waiting() if mirror.gates(state.repository, state.path)]
    held = sum(state.seq - state.noticed for state in gated)
    way_out = f"start it or: vcsreplicator roster deactivate {name}"
    return Finding(level=2, text=f"mirror {name} is silent and holds back notices ({held} wait); {way_out}")


def _find_ungated(picture: Picture, now: float) -> list[Finding]:
    """Find notices that wait because no mirror gates them."""
    roster = picture.roster or rosters.Roster()
    alone = [
        state
        for state in picture.waiting()
        if picture.rests(state, now)
        and not roster.allow_empty
        and not any(mirror.gates(state.repository, state.path) for mirror in roster.mirrors)
    ]
    if not alone:
        return []
    return [
        Finding(
            level=2,
            text=f"the notices of {_name_paths(alone)} are held: no mirror gates them; see: vcsreplicator roster list",
        )
    ]


def _refused_rules(picture: Picture) -> list[Finding]:
    """Find rules that an older release let in and that cannot be evaluated, with the command that mends them."""
    found = []
    for mirror in picture.roster.mirrors if picture.roster else ():
        if mirror.state is rosters.MirrorState.REMOVED:
            continue
        bad = refused((*mirror.rules.include, *mirror.rules.exclude))
        for rule, problem in bad.items():
            text = f"mirror {mirror.name}: rule {rule[:200]!r} leaves nothing out, because it cannot be evaluated: {problem}"
            found.append(Finding(level=1, text=f"{text}; give it other rules: {_rules_command(mirror, bad)}"))
    return found


def _rules_command(mirror: rosters.Mirror, bad: Collection[str]) -> str:
    """Return the command that sets this mirror's rules, with RULE in place of each that is bad."""
    words = ["vcsreplicator", "roster", "rules", mirror.name]
    for option, rules in (("--include", mirror.rules.include), ("--exclude", mirror.rules.exclude)):
        for rule in rules:
            words += [option, "RULE" if rule in bad else shlex.quote(rule)]
    return " ".join([*words, "--yes"])


def _find_destinations(
    picture: Picture, now: float, wanted: Collection[str] | None, warn: int, critical: int
) -> list[Finding]:
    lags = {group.removeprefix(DESTINATION): lag for group, lag in sorted(picture.groups.items())}
    found = [
        Finding(level=1, text=f"destination {name} has never been served; does its notifier run?")
        for name in wanted or ()
        if name not in lags
    ]
    for name, lag in lags.items():
        if wanted is not None and name not in wanted:
            continue
        found += _count_lag(f"destination {name}", "notices", lag, warn, critical)
        waits = now - picture.oldest.get(DESTINATION + name, now)
        if waits > SILENT:
            text = f"destination {name} is stalled: {lag} notices wait, the first for {_format_span(waits)}"
            level = 2 if waits > STALLED else 1
            found.append(Finding(level=level, text=f"{text}; see: vcsreplicator destination list"))
    return found


def _name_paths(states: list[RepositoryState]) -> str:
    more = f" and {len(states) - NAMED} more" if len(states) > NAMED else ""
    return ", ".join(state.path for state in states[:NAMED]) + more


def _format_span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _count_lag(who: str, what: str, lag: int, warn: int, critical: int) -> list[Finding]:
    if lag < warn:
        return []
    return [Finding(level=2 if lag >= critical else 1, text=f"{who} is {lag} {what} behind")]


def as_data(picture: Picture, now: float, *, destinations: Collection[str] | None = None) -> dict[str, object]:
    """Return the picture as JSON data."""
    return {
        "roster": plain(picture.roster) if picture.roster else None,
        "aggregator": plain(picture.aggregator) if picture.aggregator else None,
        "mirrors": [
            {"name": name, "beat": plain(beat), "behind": picture.behind(name)}
            for name, beat in sorted(picture.beats.items())
        ],
        "repositories": [plain(state) for state in sorted(picture.states.values(), key=lambda state: state.path)],
        "detached": [plain(ack) for ack in picture.detached()],
        "waiting": len(picture.waiting()),
        "destinations": dict(picture.groups),
        "errors": picture.errors,
        "findings": [plain(finding) for finding in findings(picture, now, destinations=destinations)],
    }
