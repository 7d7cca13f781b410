# SPDX-License-Identifier: GPL-2.0-or-later
"""Findings about the topics of the log. Pure.

Only what can lose or delay records at any chosen retention; `vcsreplicator topics check` names the rest.
"""

from collections.abc import Iterator

from ..log import EVENTS, RISKS, SERVICES, SINGLE, UNUSED
from ..words.errors import counted
from ..words.records import AGGREGATOR
from . import SILENT, Picture
from .wording import Finding, Severity


def find_topics(picture: Picture, now: float) -> Iterator[Finding]:
    """Find topics that are missing, or whose records are not kept as they must be."""
    missing = [topic.name for topic in picture.topics if topic.found is None and topic.is_shown]
    if not picture.has_services:  # as in a log of an older release, which another finding names
        missing = [name for name in missing if name != SERVICES]
    if missing:
        some = "topics" if len(missing) > 1 else "topic"
        command = "vcsreplicator topics create"
        how = " (with the --partitions of its first creation, if not 16)" if EVENTS in missing else ""
        text = f"the log lacks the {some} {', '.join(missing)}; run{how}: {command}"
        yield Finding(level=Severity.CRITICAL, text=text, command=command)
    for topic in picture.topics:
        if topic.name == EVENTS and topic.found is not None:
            yield from _find_former_counts(picture, topic.found.partitions, now)
        if loss := topic.describe_loss():
            yield Finding(level=Severity.CRITICAL, text=loss)
    for said in picture.held_up:
        yield Finding(
            level=Severity.WARNING, text=f"{said}; until then its readers see nothing newer (docs/log.md, Topics)"
        )
    yield from _find_risks(picture)


def _find_risks(picture: Picture) -> Iterator[Finding]:
    """Find settings that can lose or delay records, those of several topics at once."""
    named: dict[tuple[str, str, str], list[str]] = {}
    for topic in picture.topics:
        for each in topic.differences:
            if each.is_must and each.setting in RISKS:
                named.setdefault((each.setting, each.found, each.needed), []).append(topic.name)
    for (setting, found, needed), names in named.items():
        which = f"topic{'' if len(names) == 1 else 's'} {', '.join(names)}"
        text = f"{which}: {setting} is {found}, must be {needed}: {RISKS[setting]}; for the remedy: vcsreplicator topics check"
        yield Finding(level=Severity.WARNING, text=text, command="vcsreplicator topics check")


def _find_former_counts(picture: Picture, count: int, now: float) -> Iterator[Finding]:
    """Find running services that began with another number of partitions.

    They neither read nor write what other services write to the new ones.
    """
    counts: dict[str, int | None] = {name: len(beat.positions) or None for name, beat in picture.heartbeats.items()}
    counts |= {name: report.partitions for name, report in picture.reports.items()}
    counts[AGGREGATOR] = picture.aggregator.partitions if picture.aggregator else None
    former = {
        f"mirror {name}" if name in picture.heartbeats else name: found
        for name, found in sorted(counts.items())
        if found not in (None, count) and picture.silence(name, now) <= SILENT
    }
    if former:
        numbers = ", ".join(f"{name} ({found})" for name, found in former.items())
        text = f"topic {EVENTS} has {counted(count, 'partition')} now, and some services began with another number: {numbers}"
        way_out = "repositories stall until each of them is restarted (docs/log.md, Topics)"
        command = "systemctl restart 'vcsreplicator-*'"
        yield Finding(level=Severity.CRITICAL, text=f"{text}; {way_out}: {command}", command=command)


def find_topic_notes(picture: Picture) -> tuple[str, ...]:
    """Find topics with unused partitions, and those that could not be compared."""
    names = [
        topic.name
        for topic in picture.topics
        if topic.name in SINGLE and topic.found is not None and topic.found.partitions > 1
    ]
    hidden = [topic.name for topic in picture.topics if not topic.is_shown]
    notes = [f"more than one partition in topic {', '.join(names)}: {UNUSED}"] if names else []
    if hidden:
        notes.append(f"topic {', '.join(hidden)}: not compared, its settings are hidden by ACLs (docs/log.md, Access)")
    return tuple(notes)
