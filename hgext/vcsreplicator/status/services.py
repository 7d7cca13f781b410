# SPDX-License-Identifier: GPL-2.0-or-later
"""Findings about services that are silent, or report a trouble. Pure."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from ..words.clock import DAY
from ..words.records import (
    DESTINATION_KEY,
    GUARDIAN_KEY,
    POLL_KEY,
    RELAY_KEY,
    STANDBY_KEYS,
    VERIFY_KEY,
    ServiceReport,
    ServiceTrouble,
)
from ..words.shape import Count, NumberRange
from . import SILENT, Picture
from .wording import Finding, Severity, format_since

# Seconds after which a trouble is critical.
STALLED = 3600.0

# Seconds between two reports of a relay or a destination, and a margin: none counts as silent sooner.
REPORTED_WITHIN = 25.0

# Seconds after which a silent service is forgotten that the configuration does not name.
FORGOTTEN = 7 * DAY

# The command that starts a service.
START = "systemctl start vcsreplicator-"

# Headings of the runbook.
DOWN, RELAY_TROUBLES, DESTINATION_DOWN = (
    "VcsreplicatorServiceDown",
    "VcsreplicatorRelayTroubles",
    "VcsreplicatorDestinationDown",
)
DIFFERS, NOT_COMPARED = "VcsreplicatorMirrorDiffers", "VcsreplicatorMirrorNotCompared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """The services that must exist, and the thresholds of findings.

    `destinations`, if given, names those that must be there; findings about others are left out. `relay` is the source of the relay
    that must be there, `mirrors` names the mirrors of the services' file, `raw` the topic that decoders read. `patience` is the
    number of seconds for which a relay or a destination may be silent or in trouble, and documents may wait without a decoder.
    """

    destinations: tuple[str, ...] | None = None
    relay: str | None = None
    mirrors: tuple[str, ...] = ()
    raw: str | None = None
    warn: Count = 150
    critical: Count = 600
    patience: Annotated[float, NumberRange(0, 31 * DAY)] = SILENT


def find_reported(picture: Picture, now: float, wanted: Expectations) -> list[Finding]:
    """Find silent relays and destinations, and the troubles that others report."""
    if not picture.has_services:
        text = "the log has no topic `services`, so nothing is known about the relay; run: vcsreplicator topics create"
        return [Finding(level=Severity.WARNING, text=text, command="vcsreplicator topics create")]
    found: list[Finding] = []
    expected, running = _list_expected(wanted), _collect_running(picture, now, wanted)
    for service in list_watched(picture, wanted):
        report, silence = picture.reports.get(service), _measure_silence(picture, service, now)
        if is_silent_service(silence, wanted):
            if service.startswith(STANDBY_KEYS):
                found += _find_lost_standby(picture, service, now, running)
            elif service.startswith(VERIFY_KEY):
                found += _find_lost_verify(picture, service, now)
            elif service in expected or silence < FORGOTTEN:
                symptom = describe_silence(picture.seen(service) if report else None, now)
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
            unit = f"vcsreplicator-{f'verify@{mirror}' if is_verify else unit}"
            command = f"journalctl -u {shlex.quote(unit)}"
            text = f"{service}: {more} more troubles; see: {command}"
            found.append(Finding(level=Severity.WARNING, text=text, command=command, entry=entry))
    return found


def _collect_running(picture: Picture, now: float, wanted: Expectations) -> dict[str, set[str]]:
    """Return what running processes work on, by kind of service; a kind without any is absent."""
    running = dict[str, set[str]]()
    for service, report in picture.reports.items():
        if not is_silent_service(picture.silence(service, now), wanted):
            running.setdefault(service.partition(" ")[0], set()).update(report.works)
    return running


def _find_lost_standby(
    picture: Picture, service: str, now: float, running: Mapping[str, set[str]]
) -> Iterator[Finding]:
    """Find a lost process of a service with standbys, if others work on all that it worked on.

    Find a lost guardian or poller also if no other works: nothing else shows that none does. At a stop a process withdraws its
    report.
    """
    kind, _, host = service.partition(" ")
    is_replaced = kind in running and running[kind].issuperset(picture.reports[service].works)
    if picture.silence(service, now) < FORGOTTEN and (is_replaced or service.startswith((GUARDIAN_KEY, POLL_KEY))):
        symptom = describe_silence(picture.seen(service), now)
        command, then = f"{START}{kind}", "does not stand by" if is_replaced else "no other works in its place"
        text = f"the {kind} on {host} {symptom} and {then}; start it there: {command}"
        level = Severity.WARNING if is_replaced else Severity.CRITICAL
        yield Finding(level=level, text=text, command=command, entry=DOWN)


def _find_lost_verify(picture: Picture, service: str, now: float) -> Iterator[Finding]:
    """Find the `verify` of a mirror that has not reported for long, but was not forgotten."""
    mirror, silence = service.removeprefix(VERIFY_KEY), picture.silence(service, now)
    if STALLED < silence < FORGOTTEN:
        command = f"systemctl start {shlex.quote(f'vcsreplicator-verify@{mirror}')}"
        symptom = describe_silence(picture.seen(service), now)
        text = f"{service} {symptom}: the mirror is not compared with the master; start it on its machine: {command}"
        yield Finding(level=Severity.WARNING, text=text, command=command, entry=DOWN, mirror=mirror)


def find_undecoded(picture: Picture, now: float, wanted: Expectations) -> Iterator[Finding]:
    """Yield the topic whose documents wait for longer than `wanted.patience` in partitions that no decoder has."""
    late = {key: since for key, since in picture.undecoded.items() if now - since > wanted.patience}
    if late:
        command, partitions = f"{START}decode", ", ".join(f"{topic}/{number}" for topic, number in sorted(late))
        text = f"no decoder has {partitions}, where documents wait ({format_since(min(late.values()), now)})"
        yield Finding(level=Severity.WARNING, text=f"{text}; start one: {command}", command=command, entry=DOWN)


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


def note_meant(picture: Picture, now: float, expected: Expectations) -> Iterator[str]:
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


def finding_of(trouble: ServiceTrouble, lasts: float, now: float) -> Finding:
    """Describe a trouble that has lasted for `lasts` seconds."""
    is_critical = trouble.is_urgent or lasts > STALLED
    return Finding(
        level=Severity.CRITICAL if is_critical else Severity.WARNING,
        text=f"{trouble.text} ({format_since(now - lasts, now)})",
    )


def describe_silence(seen: float | None, now: float) -> str:
    """Say since when a service is silent; `seen` is None if it never spoke."""
    if seen is None:
        return "has never sent a heartbeat"
    return f"has sent no heartbeat {format_since(seen, now)}"
