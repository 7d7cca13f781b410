# SPDX-License-Identifier: GPL-2.0-or-later
"""Findings about mirrors and their detached repositories. Pure."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

from ..words import roster as rosters
from ..words.errors import counted
from ..words.records import Ack, Reason
from ..words.rules import refused
from . import MirrorLags, Picture, count_unapplied
from .wording import NAMED, Finding, Severity, describe_lag, format_since, name_paths, name_trace

# The operator's step before the mirror can heal a detached repository, if any.
HEAL_STEPS: Mapping[str, str] = {
    Reason.LOCKED: "end the process that has the lock, then",
    Reason.CRASHED: "see the log lines of that mirror, then",
    Reason.FORK: "decide on the master which history is right (docs/push.md, Forks), then",
    Reason.UNKNOWN_VERSION: "upgrade that mirror, then",
    Reason.REFUSED: "free its path (docs/runbook.md, `refused`), then",
    Reason.DISK: "make room on the disk of that mirror, then",
}
# The same for a mirror that may not use a file, and what the system says then.
GIVE_BACK = "let the user of that mirror own its files (`disk` in docs/runbook.md), then"
_FORBIDDEN = ("Permission denied", "Operation not permitted")
HEAL_AT_ONCE = "the mirror tries again by itself, or at once"

# Headings of the runbook.
QUIET, BEHIND, REASONS = "VcsreplicatorMirrorSilent", "VcsreplicatorMirrorBehind", "Reasons of detached repositories"

# One of these is in the text of a trouble if the disk is full.
_FULL = ("disk is full", "No space left on device", "Disk quota exceeded")


def find_mirror_troubles(picture: Picture, now: float, warn: int, critical: int) -> list[Finding]:
    """Find mirrors that are silent, make no progress, are behind, or cannot write."""
    lags, silent = picture.measure_all_lags(now), picture.silent(now)
    found = [_find_silent(picture, name, now) for name in silent]
    for name in picture.expected():
        late = [] if name in silent else picture.late(name, lags[name], now)
        if late:
            since = format_since(min(picture.lacks_since(name, state, now) for state in late), now)
            paths = name_paths([state.path for state in late])
            command = name_trace(late[0])
            text = f"mirror {name} makes no progress on {paths} ({since}); see: {command}"
            about = {"mirror": name, "repository": late[0].repository}
            found.append(Finding(level=Severity.WARNING, text=text, command=command, entry=BEHIND, **about))
        found += _find_behind(picture, name, lags[name], now, warn, critical)
        beat = picture.heartbeats.get(name)
        if beat is not None and beat.trouble:
            since = ""
            if beat.trouble_since is not None:
                since = f" ({format_since(now - picture.measure_since(name, beat.trouble_since, now), now)})"
            found.append(_find_unwritable(name, beat.trouble, since))
    return found


def _find_silent(picture: Picture, name: str, now: float) -> Finding:
    """Describe a silent mirror and the notices that it holds back.

    Those are of events that it lacks, in the repositories that it gates; no notice waits for a backup.
    """
    mirror = picture.roster.mirror(name)
    since = format_since(picture.seen(name), now) if picture.seen(name) else "since it was added"
    if mirror is None or mirror.role is rosters.MirrorRole.BACKUP:
        return Finding(
            level=Severity.WARNING,
            text=f"mirror {name} is silent {since}; it is a backup, so no notice waits for it",
            entry=QUIET,
            mirror=name,
        )
    gated = [state for state in picture.waiting() if mirror.gates(state.repository, state.path)]
    held = sum(state.seq - state.noticed for state in gated if picture.measure_lag(name, state).is_late)
    what = counted(held, "notice") if held else "the notices of new pushes"
    start = f"systemctl start vcsreplicator-mirror@{name}"
    way_out = (
        f"if it cannot start, deactivate it with `vcsreplicator roster deactivate {name} --yes`; start it: {start}"
    )
    text = f"mirror {name} is silent {since}, and holds back {what}; {way_out}"
    return Finding(level=Severity.CRITICAL, text=text, command=start, entry=QUIET, mirror=name)


def _find_unwritable(name: str, trouble: str, since: str) -> Finding:
    """Describe a mirror that cannot write its notes, and the remedy.

    If their folder was removed, only a restart helps.
    """
    see = "see `disk` in docs/runbook.md"
    if any(sign in trouble for sign in _FULL):
        text = f"mirror {name} cannot write to its disk, make room there: {trouble}{since}; {see}"
        return Finding(level=Severity.CRITICAL, text=text, entry=REASONS, mirror=name)
    restart = f"systemctl restart vcsreplicator-mirror@{name}"
    step = f"restore that folder, or make it writable, then: {restart}"
    text = f"mirror {name} cannot write to its disk: {trouble}{since}; {see}; {step}"
    return Finding(level=Severity.CRITICAL, text=text, command=restart, entry=REASONS, mirror=name)


def _find_behind(picture: Picture, name: str, lacks: MirrorLags, now: float, warn: int, critical: int) -> list[Finding]:
    """Find a mirror that is behind.

    A mirror reports the age of the oldest event that it queues. That does not cover detached repositories: they have lacked events
    at least since their state was written.
    """
    lag = count_unapplied(lacks)
    if lag < warn:
        return []
    worst, _ = min(lacks, key=lambda each: (-each[1].unapplied, each[0].path))
    beat = picture.heartbeats.get(name)
    since = (
        f"at least {format_since(known := min(picture.moved.get(state.repository, now) for state, _ in lacks), now)}"
    )
    if beat is not None and beat.oldest is not None and beat.oldest <= known:
        since = f"the oldest {format_since(beat.oldest, now)}"
    about = {"mirror": name, "repository": worst.repository, "entry": BEHIND}
    is_critical = lag >= critical
    return [
        describe_lag(
            f"mirror {name}", counted(lag, "event"), since, name_trace(worst), is_critical=is_critical, **about
        )
    ]


def find_refused_rules(picture: Picture) -> list[Finding]:
    """Find rules of older releases that cannot be evaluated, and what fixes them."""
    found = []
    for mirror in picture.roster.mirrors:
        if mirror.state is rosters.MirrorState.REMOVED:
            continue
        bad = refused((*mirror.rules.include, *mirror.rules.exclude))
        for rule, problem in bad.items():
            text = f"mirror {mirror.name}: rule {rule[:200]!r} leaves nothing out, because it cannot be evaluated: {problem}"
            command = _rules_command(mirror, bad)
            text = f"{text}; give it other rules: {command}"
            found.append(Finding(level=Severity.WARNING, text=text, command=command, mirror=mirror.name))
    return found


def find_unfit_candidates(picture: Picture) -> list[Finding]:
    """Find mirrors that are meant to become the master, and by the roster could not."""
    found = []
    for mirror in picture.roster.mirrors:
        if not mirror.candidate or mirror.state is rosters.MirrorState.REMOVED:
            continue
        left_out = [
            state.path for state in picture.states.values() if not state.deleted and not mirror.carries(state.path)
        ]
        if left_out:
            command = f"vcsreplicator roster rules {mirror.name} --yes"
            why, step = f"its rules leave out {name_paths(left_out)}", f"let it carry all: {command}"
        elif mirror.state is rosters.MirrorState.INACTIVE:
            command = f"vcsreplicator roster join {mirror.name}"
            why, step = "it is inactive, so its lag is not watched", f"run {command}, or remove it if promoted"
        else:
            continue
        text = f"mirror {mirror.name} is meant to become the master, but {why}; {step}"
        found.append(Finding(level=Severity.WARNING, text=text, command=command, mirror=mirror.name))
    return found


def _rules_command(mirror: rosters.Mirror, bad: Collection[str]) -> str:
    """Return the command that sets this mirror's rules, with RULE for each bad one."""
    words = ["vcsreplicator", "roster", "rules", mirror.name]
    for option, rules in (("--include", mirror.rules.include), ("--exclude", mirror.rules.exclude)):
        for rule in rules:
            words += [option, "RULE" if rule in bad else shlex.quote(rule)]
    return " ".join([*words, "--yes"])


def find_detached(picture: Picture, now: float) -> Iterator[Finding]:
    """Yield the detached repositories of each mirror, since when they are detached, and the remedy.

    More than NAMED with one reason, as after a full disk, are one finding.
    """
    gone, groups = picture.gone(now), dict[tuple[str, str | None], list[Ack]]()
    for ack in picture.detached():
        if ack.mirror not in gone:
            groups.setdefault((ack.mirror, ack.detached), []).append(ack)
    for acks in groups.values():
        for together in [acks] if len(acks) > NAMED else [[ack] for ack in acks]:
            yield _describe_detachment(picture, together, now)


def _describe_detachment(picture: Picture, acks: Sequence[Ack], now: float) -> Finding:
    """Describe one detached repository, or many of one mirror and reason."""
    first = min(acks, key=lambda ack: ack.detached_since or now)
    paths = [state.path if (state := picture.states.get(ack.repository)) else ack.repository for ack in acks]
    verb, before = ("is", "") if len(acks) == 1 else ("are", "the first ")
    why = describe_detached(picture, first, now, before)
    text = f"{name_paths(paths)} {verb} detached on {first.mirror}: {why}"
    step = HEAL_STEPS.get(first.detached or "", HEAL_AT_ONCE)
    if first.detached == Reason.DISK and any(sign in (first.note or "") for sign in _FORBIDDEN):
        step = GIVE_BACK
    command = shlex.join(["vcsreplicator", "heal", first.mirror, *(paths if len(acks) == 1 else ())])
    return Finding(
        level=Severity.WARNING,
        text=f"{text}; {step}: {command}",
        command=command,
        entry=REASONS,
        mirror=first.mirror,
        repository=first.repository if len(acks) == 1 else None,
    )


def describe_detached(picture: Picture, ack: Ack, now: float, before: str = "") -> str:
    """Say why a repository is detached, and since when.

    `before` stands before the time: "the first " if the words are about several repositories.
    """
    since = "its mirror's release does not say since when"
    if ack.detached_since is not None:
        since = before + format_since(now - picture.measure_since(ack.mirror, ack.detached_since, now), now)
    return f"{ack.detached} ({since}){f': {ack.note}' if ack.note else ''}"


def find_removed(picture: Picture, now: float) -> list[Finding]:
    """Find mirrors that run although they were removed from the roster."""
    gone = picture.gone(now)
    return [
        Finding(
            level=Severity.WARNING,
            text=f"mirror {name} runs although it was removed from the roster, so no notice waits for it and its clients may lack "
            f"what is announced; stop it: systemctl disable --now vcsreplicator-mirror@{name}, "
            f"or: vcsreplicator roster add {name}",
            command=f"systemctl disable --now vcsreplicator-mirror@{name}",
            mirror=name,
        )
        for name in picture.removed()
        if name not in gone
    ]


def find_unlisted(picture: Picture, now: float, named: Collection[str]) -> tuple[list[Finding], tuple[str, ...]]:
    """Find mirrors of the services' file that were never in the roster.

    Returns those that run as findings, because their clients may lack announced changes, and the others as notes: their sections
    may be for later, or for another machine.
    """
    listed = {mirror.name for mirror in picture.roster.mirrors}
    found, notes = [], []
    for name in sorted(set(named) - listed):
        text = f"is not in the roster, so no notice waits for it; to add it: vcsreplicator roster add {name}"
        if picture.runs(name, now):
            text, command = f"mirror {name} runs and {text}", f"vcsreplicator roster add {name}"
            found.append(Finding(level=Severity.WARNING, text=text, command=command, mirror=name))
        else:
            notes.append(f"section [mirror.{name}] of the file {text}")
    return found, tuple(notes)


def find_notes(picture: Picture, now: float, named: Collection[str]) -> tuple[str, ...]:
    """Find what an operator may want to know of mirrors for which no notice waits.

    These are the inactive ones, but for backups, those that are deactivated for a repository, and those of the services' file that
    do not run and were never in the roster. Other notes are that mirrors have no key although the aggregator has one, that a mirror
    does not know a setting of the master, and that notices go out without any mirror.
    """
    notes = list(find_unlisted(picture, now, named)[1])
    for mirror in picture.roster.mirrors:
        if mirror.state is rosters.MirrorState.INACTIVE and mirror.role is not rosters.MirrorRole.BACKUP:
            since = f" ({format_since(mirror.since, now)})" if mirror.since else ""
            way_out = f"to change that: vcsreplicator roster join {mirror.name}"
            notes.append(f"mirror {mirror.name} is inactive{since}, so no notice waits for it; {way_out}")
        notes += _note_deactivated(picture, mirror)
    keyless = [
        one.name for one in picture.roster.mirrors if not one.keys and one.state is not rosters.MirrorState.REMOVED
    ]
    if keyless and picture.roster.aggregator_keys:
        does = "do not count" if picture.roster.requires_keys else "count without a seal"
        way_out = f"on its machine: vcsreplicator key {keyless[0]}, then: vcsreplicator roster add-key {keyless[0]} KEY"
        notes.append(f"acks of {', '.join(keyless)} {does}, because the roster has no key of it; {way_out}")
    if picture.roster.allow_empty:
        way_out = "to hold them again: vcsreplicator roster allow-empty no --yes"
        notes.append(f"notices of a repository that no mirror gates go out; {way_out}")
    return (*notes, *_note_assumed(picture, now))


def _note_assumed(picture: Picture, now: float) -> Iterator[str]:
    """Yield for each mirror where it does not know a setting of the master."""
    gone, paths = picture.gone(now), dict[str, list[str]]()
    for (name, repository), ack in picture.acks.items():
        state = picture.states.get(repository) if ack.assumed and name not in gone else None
        if state is not None and not state.deleted:
            paths.setdefault(name, []).append(state.path)
    for name in sorted(paths):
        way_out = "to have it follow the master, push to them, or run hg replicatesync in them there"
        where = name_paths(sorted(paths[name]))
        yield f"mirror {name} does not know whether the master is publishing, and does not publish, in {where}; {way_out}"


def _note_deactivated(picture: Picture, mirror: rosters.Mirror) -> Iterator[str]:
    """Yield the note that a mirror is deactivated for repositories."""
    known = (picture.states.get(name) for name in mirror.deactivated)
    given_up = sorted((state for state in known if state and not state.deleted), key=lambda state: state.path)
    if given_up and mirror.state is not rosters.MirrorState.REMOVED:
        way_out = f"vcsreplicator roster activate {mirror.name} --repository {shlex.quote(given_up[0].path)}"
        finding = f"mirror {mirror.name} is deactivated for {name_paths([state.path for state in given_up])}"
        yield f"{finding}, so no notice there waits for it, and its lag there is not reported; to end that: {way_out}"
