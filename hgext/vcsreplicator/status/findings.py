# SPDX-License-Identifier: GPL-2.0-or-later
"""Findings for an operator in the picture that the log gives. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from ..words.clock import DAY
from ..words.records import (
    AGGREGATOR,
    DESTINATION_GROUP,
    DESTINATION_KEY,
    GUARDIAN_KEY,
    POLL_KEY,
    RELAY_KEY,
    STANDBY_KEYS,
    VERIFY_KEY,
    ServiceReport,
    ServiceTrouble,
)
from ..words.roster import Roster
from ..words.shape import Count, NumberRange, plain
from . import SILENT, Picture, count_unapplied
from .mirrors import (
    find_detached,
    find_mirror_troubles,
    find_notes,
    find_refused_rules,
    find_removed,
    find_unfit_candidates,
    find_unlisted,
)
from .topics import find_topic_notes, find_topics
from .wording import Finding, Severity, describe_lag, format_since, name_paths

# Seconds after which a stalled destination is critical.
STALLED = 3600.0

# Separates a repository's folder from its reason to refuse pushes, in a relay's report.
REFUSES = ": refuses pushes: "

# Seconds after which the notifier's next note of a destination's condition is overdue.
_NOTED_WITHIN = 15.0

# Seconds between two reports of a relay or a destination, and a margin: none counts as silent sooner.
REPORTED_WITHIN = 25.0

# Seconds without a heartbeat after which the aggregator is silent.
SILENT_AGGREGATOR = 30.0

# Seconds after which a silent service is forgotten that the configuration does not name.
FORGOTTEN = 7 * DAY

# The commands that start a service and show destinations.
START, DESTINATIONS = "systemctl start vcsreplicator-", "vcsreplicator destination list"

# Headings of the runbook.
DOWN, RELAY_TROUBLES = "VcsreplicatorServiceDown", "VcsreplicatorRelayTroubles"
DESTINATION_DOWN, LATE = "VcsreplicatorDestinationDown", "VcsreplicatorDestinationLate"
DIFFERS, NOT_COMPARED = "VcsreplicatorMirrorDiffers", "VcsreplicatorMirrorNotCompared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """The services that must exist, and the thresholds of findings.

    `destinations`, if given, names those that must be there; findings about others are left out. `relay` is the source of the relay
    that must be there, `mirrors` names the mirrors of the services' file. `patience` is the number of seconds for which a relay or
    a destination may be silent or in trouble.
    """

    destinations: tuple[str, ...] | None = None
    relay: str | None = None
    mirrors: tuple[str, ...] = ()
    warn: Count = 150
    critical: Count = 600
    patience: Annotated[float, NumberRange(0, 31 * DAY)] = SILENT


def findings(picture: Picture, now: float, expected: Expectations) -> list[Finding]:
    """Find the troubles that an operator must know, the worst first."""
    found = []
    if picture.aggregator is None or picture.silence(AGGREGATOR, now) > SILENT_AGGREGATOR:
        symptom = _describe_silence(picture.seen(AGGREGATOR) if picture.aggregator else None, now)
        command = f"{START}aggregator"
        text = f"the aggregator {symptom}: no release, no notice; start it: {command}"
        found.append(Finding(level=Severity.CRITICAL, text=text, command=command, entry=DOWN))
    found += [
        Finding(level=Severity.CRITICAL, text=text, entry="VcsreplicatorAggregatorAlarm")
        for text in (picture.aggregator.alarms if picture.aggregator else ())
    ]
    found += find_mirror_troubles(picture, now, expected.warn, expected.critical)
    found += find_topics(picture, now)
    found += find_refused_rules(picture)
    found += find_unfit_candidates(picture)
    found += find_unlisted(picture, now, expected.mirrors)[0]
    found += find_removed(picture, now)
    reported = _find_reported(picture, now, expected)
    found += _find_destinations(picture, now, expected)
    found += _find_stalled(picture, now, expected.destinations, reported)
    found += _find_unread(picture, now, expected.destinations)
    found += _find_forked(picture, now, reported)
    gone = picture.gone(now)
    found += [find_detached(picture, ack, now) for ack in picture.detached() if ack.mirror not in gone]
    return sort_findings(*found)


def sort_findings(*found: Finding) -> list[Finding]:
    """Sort findings, the worst first, and equals as they are."""
    return sorted(found, key=lambda finding: -finding.level)


def find_all_notes(picture: Picture, now: float, expected: Expectations) -> tuple[str, ...]:
    """Find what an operator should know although no service is in trouble."""
    notes = (*find_notes(picture, now, expected.mirrors), *find_topic_notes(picture))
    return (*notes, *_note_meant(picture, now, expected), *_note_rejects(picture))


def _note_meant(picture: Picture, now: float, expected: Expectations) -> Iterator[str]:
    """Yield what operators made so, as running services report it."""
    for service in list_watched(picture, expected):
        report = picture.reports.get(service)
        if report is None or is_silent_service(_measure_silence(picture, service, now), expected):
            continue
        yield from (trouble.text for trouble in report.troubles if trouble.is_meant)
        if (more := _count_unnamed(report)) and _ends_with_meant(report):
            yield f"{service}: {more} more that operators paused or left unsigned; see: vcsreplicator subscription list"


def _count_unnamed(report: ServiceReport) -> int:
    return report.count - len(report.troubles)


def _ends_with_meant(report: ServiceReport) -> bool:
    """Return whether what the report leaves out is meant too: that comes last."""
    return bool(report.troubles) and report.troubles[-1].is_meant


def _note_rejects(picture: Picture) -> Iterator[str]:
    """Yield the note on rejects.

    They stay until they expire, also those that an operator has dealt with.
    """
    if picture.errors:
        count = f"{picture.errors} rejects are" if picture.errors > 1 else "1 reject is"
        yield (
            f"{count} in topic errors: vcsreplicator errors list; once the reason is gone, send a message to its destination again "
            "with vcsreplicator replay, one of the decoder with vcsreplicator errors retry NUMBER --yes"
        )


def is_overdue(noted: float, now: float) -> bool:
    """Return whether the notifier's note after one of this time is overdue.

    A note in the future is from before the clock was set back: its absolute distance counts.
    """
    return abs(now - noted) > _NOTED_WITHIN


def finding_of(trouble: ServiceTrouble, lasts: float, now: float) -> Finding:
    """Describe a trouble that has lasted for `lasts` seconds."""
    is_critical = trouble.is_urgent or lasts > STALLED
    return Finding(
        level=Severity.CRITICAL if is_critical else Severity.WARNING,
        text=f"{trouble.text} ({format_since(now - lasts, now)})",
    )


def _find_reported(picture: Picture, now: float, wanted: Expectations) -> list[Finding]:
    """Find silent relays and destinations, and the troubles that others report."""
    if not picture.has_services:
        text = "the log has no topic `services`, so nothing is known about the relay; run: vcsreplicator topics create"
        return [Finding(level=Severity.WARNING, text=text, command="vcsreplicator topics create")]
    found: list[Finding] = []
    expected = _list_expected(wanted)
    for service in list_watched(picture, wanted):
        report, silence = picture.reports.get(service), _measure_silence(picture, service, now)
        if is_silent_service(silence, wanted):
            if service.startswith(STANDBY_KEYS):
                found += _find_lost_standby(picture, service, now, wanted)
            elif service.startswith(VERIFY_KEY):
                found += _find_lost_verify(picture, service, now)
            elif service in expected or silence < FORGOTTEN:
                symptom = _describe_silence(picture.seen(service) if report else None, now)
                if report is None and _has_worked(picture, service):
                    symptom = "has sent no heartbeat since the topic `services` was made again"
                command = f"{START}notifier"
                text = f"{service} {symptom}; start its notifier: {command}"
                if service.startswith(RELAY_KEY):
                    command = f"{START}relay"
                    text = f"the {service} {symptom}: pushes may wait in the outboxes; start it: {command}"
                found.append(Finding(level=Severity.CRITICAL, text=text, command=command, entry=DOWN))
            continue
        if report is None:
            continue
        entry = RELAY_TROUBLES if service.startswith(RELAY_KEY) else DESTINATION_DOWN
        is_verify, mirror = service.startswith(VERIFY_KEY), service.removeprefix(VERIFY_KEY)
        for trouble in report.troubles:
            if _is_found(trouble, lasts := report.time - trouble.since + silence, wanted):
                finding = replace(finding_of(trouble, lasts, now), entry=entry)
                if is_verify:
                    finding = replace(finding, entry=DIFFERS if trouble.is_urgent else NOT_COMPARED, mirror=mirror)
                found.append(finding)
        if (more := _count_unnamed(report)) and not _ends_with_meant(report):
            unit = "relay" if service.startswith(RELAY_KEY) else "notifier"
            command = f"journalctl -u vcsreplicator-{f'verify@{mirror}' if is_verify else unit}"
            text = f"{service}: {more} more troubles; see: {command}"
            found.append(Finding(level=Severity.WARNING, text=text, command=command, entry=entry))
    return found


def _find_lost_standby(picture: Picture, service: str, now: float, wanted: Expectations) -> Iterator[Finding]:
    """Find a process that no longer stands by, while others work on all that it did, if it worked.

    Of a guardian or a poller also find the last process: nothing else shows that none works. At a stop a process withdraws its
    report.
    """
    kind, _, host = service.partition(" ")
    others = {name: report for name, report in picture.reports.items() if name.startswith(f"{kind} ")}
    running = [report for name, report in others.items() if not is_silent_service(picture.silence(name, now), wanted)]
    works = {each for report in running for each in report.works}
    is_replaced = bool(running) and works.issuperset(others[service].works)
    if picture.silence(service, now) < FORGOTTEN and (is_replaced or service.startswith((GUARDIAN_KEY, POLL_KEY))):
        symptom = _describe_silence(picture.seen(service), now)
        command, then = f"{START}{kind}", "does not stand by" if is_replaced else "no other works in its place"
        text = f"the {kind} on {host} {symptom} and {then}; start it there: {command}"
        level = Severity.WARNING if is_replaced else Severity.CRITICAL
        yield Finding(level=level, text=text, command=command, entry=DOWN)


def _find_lost_verify(picture: Picture, service: str, now: float) -> Iterator[Finding]:
    """Find the `verify` of a mirror that has not reported for long, but was not forgotten."""
    mirror, silence = service.removeprefix(VERIFY_KEY), picture.silence(service, now)
    if STALLED < silence < FORGOTTEN:
        command = f"{START}verify@{mirror}"
        symptom = _describe_silence(picture.seen(service), now)
        text = f"{service} {symptom}: the mirror is not compared with the master; start it on its machine: {command}"
        yield Finding(level=Severity.WARNING, text=text, command=command, entry=DOWN, mirror=mirror)


def find_recent(picture: Picture, now: float, wanted: Expectations) -> Iterator[str]:
    """Yield the troubles of running relays and destinations that are no findings yet.

    They may pass, and have not lasted for `wanted.patience`.
    """
    for service in list_watched(picture, wanted):
        report, silence = picture.reports.get(service), _measure_silence(picture, service, now)
        if report is None or is_silent_service(silence, wanted):
            continue
        for trouble in report.troubles:
            if not trouble.is_meant and not _is_found(trouble, lasts := report.time - trouble.since + silence, wanted):
                yield finding_of(trouble, lasts, now).text


def _list_expected(wanted: Expectations) -> list[str]:
    """Return the keys of the services that must report."""
    relays = [f"{RELAY_KEY}{wanted.relay}"] if wanted.relay else []
    return [f"{DESTINATION_KEY}{name}" for name in wanted.destinations or ()] + relays


def list_watched(picture: Picture, wanted: Expectations) -> list[str]:
    """Return the keys of services that report or must; none of removed destinations and mirrors."""
    expected, is_closed = _list_expected(wanted), wanted.destinations is not None
    removed = {VERIFY_KEY + name for name in picture.removed()}
    others = (key for key in picture.reports if not (is_closed and key.startswith(DESTINATION_KEY)))
    return sorted({*expected, *others} - removed)


def is_silent_service(silence: float, wanted: Expectations) -> bool:
    """Return whether a relay or a destination that was silent for so long is silent."""
    return silence > max(wanted.patience, REPORTED_WITHIN)


def _is_found(trouble: ServiceTrouble, lasts: float, wanted: Expectations) -> bool:
    """Return whether an operator must know of a trouble that lasts for so long."""
    return not trouble.is_meant and (trouble.is_urgent or trouble.is_permanent or lasts > wanted.patience)


def _measure_silence(picture: Picture, service: str, now: float) -> float:
    """Return the seconds since a service reported.

    If the log shows its work and no report, the topic was made again, and they count from the first record there.
    """
    if service in picture.reports or picture.services_since is None or not _has_worked(picture, service):
        return picture.silence(service, now)
    return abs(now - picture.services_since)


def _has_worked(picture: Picture, service: str) -> bool:
    """Return whether the log shows the work of this relay or destination."""
    if service.startswith(DESTINATION_KEY):
        return service.removeprefix(DESTINATION_KEY) in picture.positions
    return any(state.source == service.removeprefix(RELAY_KEY) for state in picture.states.values())


def _find_destinations(picture: Picture, now: float, expected: Expectations) -> list[Finding]:
    wanted = expected.destinations
    # A service that never reported is named already.
    found = [
        Finding(
            level=Severity.WARNING,
            text=f"destination {name} has never been served; start its notifier: {START}notifier",
            command=f"{START}notifier",
            entry=DOWN,
        )
        for name in wanted or ()
        if name not in picture.lacking and (not picture.has_services or f"{DESTINATION_KEY}{name}" in picture.reports)
    ]
    for name, lag in sorted(picture.lacking.items()):
        if wanted is not None and name not in wanted:
            continue
        if lag >= expected.warn:
            since = f"the oldest {format_since(picture.oldest.get(name, now), now)}"
            is_critical, what = lag >= expected.critical, f"{lag} notices"
            found.append(
                describe_lag(f"destination {name}", what, since, DESTINATIONS, is_critical=is_critical, entry=LATE)
            )
    return found


def _find_stalled(
    picture: Picture, now: float, wanted: Sequence[str] | None, reported: Sequence[Finding]
) -> list[Finding]:
    """Find stalled destinations; return them with the `reported` findings.

    The reported trouble of a destination explains why it is stalled: it becomes as severe, and is the only finding.
    """
    found = list(reported)
    for name, lag in sorted(picture.lacking.items()):
        waits = now - picture.oldest.get(name, now)
        if waits <= SILENT or (wanted is not None and name not in wanted):
            continue
        severity = Severity.CRITICAL if waits > STALLED else Severity.WARNING
        causes = [index for index, finding in enumerate(found) if finding.text.startswith(f"{DESTINATION_KEY}{name} ")]
        for index in causes:
            found[index] = replace(found[index], level=max(severity, found[index].level))
        if not causes:
            count = "1 notice waits" if lag == 1 else f"{lag} notices wait, the first"
            text = f"destination {name} is stalled: {count} {format_since(now - waits, now)}"
            found.append(Finding(level=severity, text=f"{text}; see: {DESTINATIONS}", command=DESTINATIONS, entry=LATE))
    return found


def _find_unread(picture: Picture, now: float, wanted: Sequence[str] | None) -> Iterator[Finding]:
    """Yield for a day which destinations lost notices, because these expired first."""
    for name, (count, since) in sorted(picture.unread.items()):
        if abs(now - since) > DAY or (wanted is not None and name not in wanted):
            continue
        text = (
            f"destination {name} lost up to {count} notices, which left the log before it read them ({format_since(since, now)}); "
            "its receivers must ask json-pushes for what they lack, and notices need a longer retention (docs/log.md): "
            "vcsreplicator errors list"
        )
        yield Finding(level=Severity.CRITICAL, text=text, command="vcsreplicator errors list", entry=LATE)


def _find_forked(picture: Picture, now: float, reported: Sequence[Finding]) -> list[Finding]:
    """Find the forked repositories: those with two histories in the log.

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
    since = f" ({format_since(min(times), now)})" if times else ""
    names = name_paths([state.path for state in forked])
    text = f"{names} {verb} forked: {cause}{since}; {way_out}"
    entry = "VcsreplicatorRepositoryForked"
    return [Finding(level=Severity.CRITICAL, text=text, entry=entry, repository=forked[0].repository)]


def _describe_silence(seen: float | None, now: float) -> str:
    """Say since when a service is silent; `seen` is None if it never spoke."""
    if seen is None:
        return "has never sent a heartbeat"
    return f"has sent no heartbeat {format_since(seen, now)}"


def as_data(picture: Picture, now: float, expected: Expectations, here: Sequence[Finding] = ()) -> dict[str, object]:
    """Return the picture for programs; the log does not show the findings `here`."""
    lags, gone = picture.measure_all_lags(now), picture.gone(now)
    return {
        "roster": None if picture.roster == Roster() else plain(picture.roster),
        "aggregator": plain(picture.aggregator) if picture.aggregator else None,
        "mirrors": [
            {"name": name, "beat": plain(beat), "behind": count_unapplied(lags[name])}
            for name, beat in sorted(picture.heartbeats.items())
            if name in lags
        ],
        "repositories": [plain(state) for state in sorted(picture.states.values(), key=lambda state: state.path)],
        "detached": [plain(ack) for ack in picture.detached() if ack.mirror not in gone],
        "waiting": len(picture.waiting()),
        "services": {
            name: {"seen": picture.seen(name), **plain(report)} for name, report in sorted(picture.reports.items())
        },
        "destinations": {f"{DESTINATION_GROUP}{name}": lag for name, lag in picture.lacking.items()},
        "errors": picture.errors,
        "findings": [plain(each) for each in sort_findings(*here, *findings(picture, now, expected))],
        "notes": find_all_notes(picture, now, expected),
    }
