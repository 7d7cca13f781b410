# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator must know, found in the picture that the log gives. Pure."""

import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..words import roster as rosters
from ..words.clock import DAY
from ..words.levels import Ack, Reason, RepositoryState, ServiceTrouble
from ..words.rules import refused
from ..words.shape import plain
from . import AGGREGATOR, DESTINATION, SILENT, MirrorLags, Picture, count_unapplied

# Seconds after which a stalled destination is critical.
STALLED = 3600.0

# What the keys of reports begin with.
RELAY_KEY, DESTINATION_KEY = "relay ", "destination "

# What stands between a repository's folder and why it refuses pushes, in a relay's report.
REFUSES = ": refuses pushes: "

# Seconds between two reports, and some more: nothing counts as silent sooner.
REPORTED_WITHIN = 15.0

# Seconds after which a silent service is forgotten that the configuration does not name.
FORGOTTEN = 7 * DAY

# What starts a service.
START = "systemctl start vcsreplicator-"

# How many repositories a finding names.
NAMED = 3

# What an operator does about a detached repository before the mirror heals it, where there is anything to do.
HEAL_STEPS: Mapping[str, str] = {
    Reason.LOCKED: "end the process that has the lock, then",
    Reason.CRASHED: "see the log lines of that mirror, then",
    Reason.FORK: "decide on the master which history is right (docs/push.md, Forks), then",
    Reason.UNKNOWN_VERSION: "upgrade that mirror, then",
    Reason.REFUSED: "free its path (docs/runbook.md, `refused`), then",
    Reason.DISK: "make room on the disk of that mirror, then",
}
HEAL_AT_ONCE = "the mirror tries again by itself, or at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that an operator must know.

    `level` is 1 for a warning, 2 for critical; `text` is one line that says what to do.
    """

    level: int
    text: str


def findings(
    picture: Picture,
    now: float,
    *,
    warn: int = 150,
    critical: int = 600,
    patience: float = SILENT,
    destinations: Collection[str] | None = None,
    relay: str | None = None,
    lags: Mapping[str, MirrorLags] | None = None,
) -> list[Finding]:
    """Find what an operator must know, the worst first.

    `destinations`, if given, names those that must be there; findings about others are left out. `relay` is the source of the
    relay that must be there. `patience` is the number of seconds for which a relay or a destination may be silent or in trouble.
    `lags` are those of all mirrors, if the caller has measured them.
    """
    found = []
    if picture.aggregator is None or picture.silence(AGGREGATOR, now) > 30:
        told = _describe_silence(picture.seen(AGGREGATOR) if picture.aggregator else None, now)
        text = f"the aggregator {told}: no release, no notice; start it: {START}aggregator"
        found.append(Finding(level=2, text=text))
    found += [Finding(level=2, text=text) for text in (picture.aggregator.alarms if picture.aggregator else ())]
    found += _find_mirrors(picture, now, lags or picture.measure_all_lags(), warn, critical)
    found += _refused_rules(picture)
    reported = _find_reported(picture, now, patience, destinations, relay)
    found += _find_destinations(picture, now, destinations, warn, critical)
    found += _find_stalled(picture, now, destinations, reported)
    found += _find_forked(picture, now, reported)
    found += [_find_detached(picture, ack, now) for ack in picture.detached()]
    return sorted(found, key=lambda finding: -finding.level)


def _find_detached(picture: Picture, ack: Ack, now: float) -> Finding:
    """Describe a detached repository, since when it is, and what heals it."""
    state = picture.states.get(ack.repository)
    where = state.path if state else ack.repository
    text = f"{where} is detached on {ack.mirror}: {describe_detached(picture, ack, now)}"
    step = HEAL_STEPS.get(ack.detached or "", HEAL_AT_ONCE)
    return Finding(level=1, text=f"{text}; {step}: vcsreplicator heal {ack.mirror} {shlex.quote(where)}")


def describe_detached(picture: Picture, ack: Ack, now: float) -> str:
    """Say why a repository is detached, and since when."""
    since = "its mirror's release does not say since when"
    if ack.detached_since is not None:
        since = _format_lasting(picture.measure_since(ack.mirror, ack.detached_since, now), now)
    return f"{ack.detached} ({since}){f': {ack.note}' if ack.note else ''}"


def _find_mirrors(
    picture: Picture, now: float, lags: Mapping[str, MirrorLags], warn: int, critical: int
) -> list[Finding]:
    """Find mirrors that are silent, make no progress, are behind, or cannot write."""
    silent = picture.silent(now)
    found = [_find_silent(picture, name, now) for name in silent]
    for name in picture.expected():
        late = [] if name in silent else picture.late(name, lags[name], now)
        if late:
            since = _format_since(min(picture.moved[state.repository] for state in late), now)
            text = f"mirror {name} makes no progress on {_name_paths(late)} ({since}); see: {_trace(late[0])}"
            found.append(Finding(level=1, text=text))
        found += _find_behind(picture, name, lags[name], now, warn, critical)
        beat = picture.beats.get(name)
        if beat is not None and beat.trouble:
            text = f"mirror {name} cannot write on its disk, make room there: {beat.trouble}"
            if beat.trouble_since is not None:
                text += f" ({_format_lasting(picture.measure_since(name, beat.trouble_since, now), now)})"
            found.append(Finding(level=2, text=f"{text}; see `disk` in docs/runbook.md"))
    return found


def _find_behind(picture: Picture, name: str, lacks: MirrorLags, now: float, warn: int, critical: int) -> list[Finding]:
    """Find a mirror that is behind.

    A mirror that does not say how old its oldest event is has lacked it since the repository's state was written, at least.
    """
    lag = count_unapplied(lacks)
    if lag < warn:
        return []
    worst, _ = min(lacks, key=lambda each: (-each[1].unapplied, each[0].path))
    beat = picture.beats.get(name)
    if beat is not None and beat.oldest is not None:
        since = f"the oldest {_format_since(beat.oldest, now)}"
    else:
        since = f"at least {_format_since(min(picture.moved.get(state.repository, now) for state, _ in lacks), now)}"
    return [_describe_lag(f"mirror {name}", f"{lag} events", since, _trace(worst), lag >= critical)]


def _describe_lag(who: str, what: str, since: str, command: str, is_critical: bool) -> Finding:
    return Finding(level=2 if is_critical else 1, text=f"{who} is {what} behind ({since}); see: {command}")


def _trace(state: RepositoryState) -> str:
    return f"vcsreplicator trace {shlex.quote(state.path)}"


def is_overdue(reported: float, now: float) -> bool:
    """Return whether the report after one of this time is overdue.

    One that seems to come was made before the clock was set back: its distance counts.
    """
    return abs(now - reported) > REPORTED_WITHIN


def finding_of(trouble: ServiceTrouble, lasts: float, now: float) -> Finding:
    """Describe a trouble that has lasted for `lasts` seconds."""
    is_critical = trouble.is_urgent or lasts > STALLED
    return Finding(level=2 if is_critical else 1, text=f"{trouble.text} ({_format_lasting(lasts, now)})")


def _find_reported(
    picture: Picture, now: float, patience: float, destinations: Collection[str] | None, relay: str | None
) -> list[Finding]:
    """Find relays and destinations that are silent, and what the others report."""
    if not picture.has_services:
        text = "the log has no topic `services`, so nothing is known of the relay; run: vcsreplicator topics create"
        return [Finding(level=1, text=text)]
    expected = [f"{DESTINATION_KEY}{name}" for name in destinations or ()]
    expected += [f"{RELAY_KEY}{relay}"] if relay else []
    found = []
    for service in sorted(set(expected) | picture.reports.keys()):
        report, silence = picture.reports.get(service), picture.silence(service, now)
        if service.startswith(DESTINATION_KEY) and destinations is not None and service not in expected:
            continue
        if report is None or silence > max(patience, REPORTED_WITHIN):
            if service in expected or silence < FORGOTTEN:
                told = _describe_silence(picture.seen(service) if report else None, now)
                text = f"{service} {told}; start its notifier: {START}notifier"
                if service.startswith(RELAY_KEY):
                    text = f"the {service} {told}: pushes may wait in the outboxes; start it: {START}relay"
                found.append(Finding(level=2, text=text))
            continue
        for trouble in report.troubles:
            lasts = report.time - trouble.since + silence
            if trouble.is_urgent or lasts > patience:
                found.append(finding_of(trouble, lasts, now))
        if report.count > len(report.troubles):
            unit = "relay" if service.startswith(RELAY_KEY) else "notifier"
            text = f"{service}: {report.count - len(report.troubles)} more troubles; see: journalctl -u vcsreplicator-{unit}"
            found.append(Finding(level=1, text=text))
    return found


def _find_silent(picture: Picture, name: str, now: float) -> Finding:
    """Describe a silent mirror and the notices that it holds back.

    It holds back the notices of what it gates; no notice waits for a backup.
    """
    mirror = picture.roster.mirror(name) if picture.roster else None
    since = _format_since(picture.seen(name), now) if picture.seen(name) else "since it was added"
    if mirror is None or mirror.role is rosters.MirrorRole.BACKUP:
        return Finding(level=1, text=f"mirror {name} is silent {since}; it is a backup, so no notice waits for it")
    gated = [state for state in picture.waiting() if mirror.gates(state.repository, state.path)]
    held = sum(state.seq - state.noticed for state in gated)
    way_out = f"start it or: vcsreplicator roster deactivate {name} --yes"
    return Finding(level=2, text=f"mirror {name} is silent {since} and holds back notices ({held} wait); {way_out}")


def _refused_rules(picture: Picture) -> list[Finding]:
    """Find rules that cannot be evaluated, with the command that mends them.

    An older release accepted such rules.
    """
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
    """Return the command that sets this mirror's rules, with RULE for each bad one."""
    words = ["vcsreplicator", "roster", "rules", mirror.name]
    for option, rules in (("--include", mirror.rules.include), ("--exclude", mirror.rules.exclude)):
        for rule in rules:
            words += [option, "RULE" if rule in bad else shlex.quote(rule)]
    return " ".join([*words, "--yes"])


def _find_destinations(
    picture: Picture, now: float, wanted: Collection[str] | None, warn: int, critical: int
) -> list[Finding]:
    lags = {group.removeprefix(DESTINATION): lag for group, lag in sorted(picture.lags.items())}
    # One that never reported is named already.
    found = [
        Finding(level=1, text=f"destination {name} has never been served; start its notifier: {START}notifier")
        for name in wanted or ()
        if name not in lags and (not picture.has_services or f"{DESTINATION_KEY}{name}" in picture.reports)
    ]
    for name, lag in lags.items():
        if wanted is not None and name not in wanted:
            continue
        if lag >= warn:
            oldest = picture.oldest.get(f"{DESTINATION}{name}", now)
            since = f"the oldest {_format_since(oldest, now)}"
            command = "vcsreplicator destination list"
            found.append(_describe_lag(f"destination {name}", f"{lag} notices", since, command, lag >= critical))
    return found


def _find_stalled(
    picture: Picture, now: float, wanted: Collection[str] | None, reported: Sequence[Finding]
) -> list[Finding]:
    """Find stalled destinations; return them with what is `reported`.

    The reported trouble of a destination is why it is stalled: it becomes as severe, and nothing else is said.
    """
    found = list(reported)
    for group, lag in sorted(picture.lags.items()):
        name, waits = group.removeprefix(DESTINATION), now - picture.oldest.get(group, now)
        if waits <= SILENT or (wanted is not None and name not in wanted):
            continue
        level = 2 if waits > STALLED else 1
        causes = [index for index, finding in enumerate(found) if finding.text.startswith(f"{DESTINATION_KEY}{name} ")]
        for index in causes:
            found[index] = replace(found[index], level=max(level, found[index].level))
        if not causes:
            text = f"destination {name} is stalled: {lag} notices wait, the first {_format_since(now - waits, now)}"
            found.append(Finding(level=level, text=f"{text}; see: vcsreplicator destination list"))
    return found


def _find_forked(picture: Picture, now: float, reported: Sequence[Finding]) -> list[Finding]:
    """Find the repositories of which the log has two histories.

    One whose relay names it is left out: `reported` has its folder. A folder stands for the repository with the longest path that
    fits. A deleted repository cannot be adopted.
    """
    forked = [state for state in picture.states.values() if state.fork and not state.deleted]
    if not forked:
        return []
    folders = [finding.text.partition(REFUSES)[0] for finding in reported if REFUSES in finding.text]
    paths = [
        [state.path for state in picture.states.values() if f"/{folder}".endswith(f"/{state.path}")]
        for folder in folders
    ]
    named = {max(fitting, key=len) for fitting in paths if fitting}
    forked = sorted((state for state in forked if state.path not in named), key=lambda state: state.path)
    if not forked:
        return []
    verb = "is" if len(forked) == 1 else "are"
    cause = "the log got events of another history (from a copy, a restored master, or a second relay?)"
    way_out = "stop what sends them, then run `hg replicateadopt` where the history is right (docs/push.md, Forks)"
    times = [state.forked_at for state in forked if state.forked_at is not None]
    since = f" ({_format_since(min(times), now)})" if times else ""
    return [Finding(level=2, text=f"{_name_paths(forked)} {verb} forked{since}: {cause}; {way_out}")]


def _name_paths(states: list[RepositoryState]) -> str:
    more = f" and {len(states) - NAMED} more" if len(states) > NAMED else ""
    return ", ".join(state.path for state in states[:NAMED]) + more


def _describe_silence(seen: float | None, now: float) -> str:
    """Say since when a service is silent.

    `seen` is None if it never gave a sign of life.
    """
    if seen is None:
        return "has never given a sign of life"
    return f"has given no sign of life {_format_since(seen, now)}"


def _format_lasting(seconds: float, now: float) -> str:
    return _format_since(now - seconds, now)


def _format_since(then: float, now: float) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(then))
    return f"for {_format_span(max(0.0, now - then))}, since {at} UTC"


def _format_span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def as_data(
    picture: Picture, now: float, *, destinations: Collection[str] | None = None, relay: str | None = None
) -> dict[str, object]:
    """Return the picture as JSON data."""
    lags = picture.measure_all_lags()
    return {
        "roster": plain(picture.roster) if picture.roster else None,
        "aggregator": plain(picture.aggregator) if picture.aggregator else None,
        "mirrors": [
            {"name": name, "beat": plain(beat), "behind": count_unapplied(lags[name])}
            for name, beat in sorted(picture.beats.items())
        ],
        "repositories": [plain(state) for state in sorted(picture.states.values(), key=lambda state: state.path)],
        "detached": [plain(ack) for ack in picture.detached()],
        "waiting": len(picture.waiting()),
        "services": {
            name: {"seen": picture.seen(name), **plain(report)} for name, report in sorted(picture.reports.items())
        },
        "destinations": dict(picture.lags),
        "errors": picture.errors,
        "findings": [
            plain(finding) for finding in findings(picture, now, destinations=destinations, relay=relay, lags=lags)
        ],
    }
