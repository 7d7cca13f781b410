# SPDX-License-Identifier: GPL-2.0-or-later
"""Findings about the topics of the log. Pure.

Only what endangers records or promises at any chosen retention; `vcsreplicator topics check` names the rest.
"""

from collections.abc import Iterator

from ..log import EVENTS, SERVICES, SINGLE, UNUSED
from . import AGGREGATOR, SILENT, Picture
from .wording import Finding, Severity


def find_topics(picture: Picture, now: float) -> Iterator[Finding]:
    """Find topics that are missing, or whose records are not kept as they must be."""
    missing = [topic.name for topic in picture.topics if topic.found is None and topic.is_shown]
    if not picture.has_services:  # as in a log of an older release, which another finding names
        missing = [name for name in missing if name != SERVICES]
    if missing:
        some = "topics" if len(missing) > 1 else "topic"
        text = f"the log lacks the {some} {', '.join(missing)}; run: vcsreplicator topics create"
        if EVENTS in missing:
            text += " (with the --partitions of its first creation, if not 16)"
        yield Finding(level=Severity.CRITICAL, text=text)
    for topic in picture.topics:
        if topic.name == EVENTS and topic.found is not None:
            yield from _find_former_counts(picture, topic.found.partitions, now)
        if loss := topic.describe_loss():
            yield Finding(level=Severity.CRITICAL, text=loss)


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
        told = ", ".join(f"{name} ({found})" for name, found in former.items())
        text = f"topic {EVENTS} has {count} partitions now, and some services began with another number: {told}"
        way_out = "repositories stall until each of them is restarted (docs/log.md, Topics)"
        yield Finding(level=Severity.CRITICAL, text=f"{text}; {way_out}: systemctl restart 'vcsreplicator-*'")


def find_topic_notes(picture: Picture) -> tuple[str, ...]:
    """Find topics with partitions that are not used."""
    names = [
        topic.name
        for topic in picture.topics
        if topic.name in SINGLE and topic.found is not None and topic.found.partitions > 1
    ]
    return (f"more than one partition in topic {', '.join(names)}: {UNUSED}",) if names else ()
