# SPDX-License-Identifier: GPL-2.0-or-later
"""Findings for an operator in the picture that the log gives. Pure."""

from collections.abc import Collection, Iterator, Sequence

from ..words.path import MAX_PATH
from ..words.records import (
    AGGREGATOR,
    DESTINATION_GROUP,
)
from ..words.roster import Roster
from ..words.shape import plain
from . import Picture, count_unapplied
from .destinations import find_destinations, find_stalled, find_unread
from .mirrors import (
    find_detached,
    find_mirror_troubles,
    find_notes,
    find_refused_rules,
    find_removed,
    find_unfit_candidates,
    find_unlisted,
)
from .services import (
    DOWN,
    START,
    Expectations,
    describe_silence,
    find_reported,
    find_undecoded,
    note_meant,
)
from .topics import find_topic_notes, find_topics
from .wording import Finding, Severity, format_since, name_paths

# Separates a repository's folder from its reason to refuse pushes, in a relay's report.
REFUSES = ": refuses pushes: "

# Seconds without a heartbeat after which the aggregator is silent.
SILENT_AGGREGATOR = 30.0


def findings(picture: Picture, now: float, expected: Expectations) -> list[Finding]:
    """Find the troubles that an operator must know, the worst first."""
    found = []
    if picture.aggregator is None or picture.silence(AGGREGATOR, now) > SILENT_AGGREGATOR:
        symptom = describe_silence(picture.seen(AGGREGATOR) if picture.aggregator else None, now)
        command = f"{START}aggregator"
        text = f"the aggregator {symptom}: no release, no notice; start it: {command}"
        found.append(Finding(level=Severity.CRITICAL, text=text, command=command, entry=DOWN))
    found += [
        Finding(level=Severity.CRITICAL, text=text, entry="VcsreplicatorAggregatorAlarm")
        for text in (picture.aggregator.alarms if picture.aggregator else ())
    ]
    found += [
        Finding(level=Severity.WARNING, text=text) for text in (picture.aggregator.waits if picture.aggregator else ())
    ]
    found += find_mirror_troubles(picture, now, expected.warn, expected.critical)
    found += find_topics(picture, now)
    found += find_refused_rules(picture)
    found += find_unfit_candidates(picture)
    found += find_unlisted(picture, now, expected.mirrors)[0]
    found += find_removed(picture, now)
    reported = find_reported(picture, now, expected)
    found += find_destinations(picture, now, expected)
    found += find_stalled(picture, now, expected.destinations, reported)
    found += find_unread(picture, now, expected.destinations)
    found += find_undecoded(picture, now, expected)
    found += _find_forked(picture, now, reported)
    found += find_detached(picture, now)
    return sort_findings(*found)


def sort_findings(*found: Finding) -> list[Finding]:
    """Sort findings, the worst first, and equals as they are."""
    return sorted(found, key=lambda finding: -finding.level)


def find_all_notes(picture: Picture, now: float, expected: Expectations) -> tuple[str, ...]:
    """Find what an operator should know although no service is in trouble."""
    notes = (*find_notes(picture, now, expected.mirrors), *find_topic_notes(picture))
    return (*notes, *note_meant(picture, now, expected), *_note_rejects(picture))


def _note_rejects(picture: Picture) -> Iterator[str]:
    """Yield the note on rejects.

    They stay until they expire, including those that an operator has dealt with.
    """
    if picture.errors:
        count = f"{picture.errors} rejects are" if picture.errors > 1 else "1 reject is"
        yield (
            f"{count} in topic errors: vcsreplicator errors list; once the cause is gone, send messages to a destination again "
            "with vcsreplicator replay, documents to the decoder with vcsreplicator errors retry NUMBER --yes"
        )


def _find_forked(picture: Picture, now: float, reported: Sequence[Finding]) -> list[Finding]:
    """Find the forked repositories: those with two histories in the log.

    One whose relay names it is left out: `reported` has its folder. A folder stands for the repository with the longest path that
    fits. A deleted repository cannot be adopted.
    """
    forked = [state for state in picture.states.values() if state.fork and not state.deleted]
    if not forked:
        return []
    folders = [finding.text.partition(REFUSES)[0] for finding in reported if REFUSES in finding.text]
    paths = {state.path for state in picture.states.values()}
    named = {_find_end(folder, paths) for folder in folders}
    forked = sorted((state for state in forked if state.path not in named), key=lambda state: state.path)
    if not forked:
        return []
    verb = "is" if len(forked) == 1 else "are"
    cause = "the log received events of another history (from a copy, a restored master, or a second relay?)"
    way_out = "stop what sends them, then run `hg replicateadopt` where the history is right (docs/push.md, Forks)"
    times = [state.forked_at for state in forked if state.forked_at is not None]
    since = f" ({format_since(min(times), now)})" if times else ""
    names = name_paths([state.path for state in forked])
    text = f"{names} {verb} forked: {cause}{since}; {way_out}"
    entry = "VcsreplicatorRepositoryForked"
    return [Finding(level=Severity.CRITICAL, text=text, entry=entry, repository=forked[0].repository)]


def _find_end(folder: str, paths: Collection[str]) -> str | None:
    """Return the longest of the paths with which a folder ends; None if it ends with none."""
    end = folder[-MAX_PATH - 1 :]
    while end not in paths:
        _, slash, end = end.partition("/")
        if not slash:
            return None
    return end


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
