# SPDX-License-Identifier: GPL-2.0-or-later
"""Findings about destinations that are behind, stalled, or lost notices. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..words.clock import DAY
from ..words.errors import counted
from ..words.records import DESTINATION_KEY
from . import SILENT, Picture
from .services import DOWN, STALLED, START, Expectations
from .wording import Finding, Severity, describe_lag, format_since

# The command that shows destinations.
DESTINATIONS = "vcsreplicator destination list"

# Heading of the runbook.
LATE = "VcsreplicatorDestinationLate"

# Seconds after which the notifier's next note of a destination's condition is overdue.
_NOTED_WITHIN = 15.0


def find_destinations(picture: Picture, now: float, expected: Expectations) -> list[Finding]:
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
            is_critical, what = lag >= expected.critical, counted(lag, "notice")
            found.append(
                describe_lag(f"destination {name}", what, since, DESTINATIONS, is_critical=is_critical, entry=LATE)
            )
    return found


def find_stalled(
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


def find_unread(picture: Picture, now: float, wanted: Sequence[str] | None) -> Iterator[Finding]:
    """Yield for a day which destinations lost notices, because these expired first."""
    for name, (count, since) in sorted(picture.unread.items()):
        if abs(now - since) > DAY or (wanted is not None and name not in wanted):
            continue
        text = (
            f"destination {name} lost up to {counted(count, 'notice')}, expired unread ({format_since(since, now)}); "
            "its receivers must get what they lack from json-pushes, and the topic notices needs a longer retention (docs/log.md): "
            "vcsreplicator errors list"
        )
        yield Finding(level=Severity.CRITICAL, text=text, command="vcsreplicator errors list", entry=LATE)


def is_overdue(noted: float, now: float) -> bool:
    """Return whether the notifier's note after one of this time is overdue.

    A note in the future is from before the clock was set back: its absolute distance counts.
    """
    return abs(now - noted) > _NOTED_WITHIN
