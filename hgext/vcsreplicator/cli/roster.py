# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator roster`: which mirrors there are and which of them gate.

A change is a request in the log, which the aggregator decides; the verb waits for its word. What lets notices go out earlier or
makes them wait is shown first and done with `--yes`.
"""

import functools
import json
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import click
from rich.table import Table

from ..config import Config
from ..log import ROSTER, ROSTER_REQUESTS, Log, NewRecord
from ..status import Follower, Picture
from ..words import roster as rosters
from ..words.errors import Refused
from ..words.levels import RepositoryState
from ..words.roster import Decision, Mirror, MirrorRole, Roster, RosterRequest, Verb
from ..words.rules import Rules
from ..words.shape import from_json, plain, to_json
from .display import console, table
from .options import SECONDS, log_of, with_config
from .requests import when, who

RULE = "path:EXACT or re:EXPRESSION"
TURN = 0.2  # seconds until somebody who wants to stop is noticed
BEATS = 2.5  # of an aggregator that would have given a sign of life, if it ran


@click.group()
def command() -> None:
    """Show and change which mirrors gate.

    Notices of a repository wait for every mirror that gates it: active or joining, carrying it by its rules, no backup,
    and not deactivated for it.
    """


def _asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every verb that asks for a change."""

    @click.option("--reason", default="", metavar="TEXT", help="Kept with the decision.")
    @click.option(
        "--wait", default=10.0, type=SECONDS, show_default=True, metavar="SECONDS", help="For the aggregator's word."
    )
    @click.option("--offline", is_flag=True, help="While no aggregator runs: decide it here.")
    @with_config
    @functools.wraps(function)
    def wrapped(
        config: Config, *arguments: Any, reason: str, wait: float, offline: bool, yes: bool = True, **options: Any
    ) -> None:
        with log_of(config) as log:
            picture = _picture(log)
            request = function(picture, reason, *arguments, **options)
            _check(picture, request)
            if not yes:
                raise Refused(f"{_effect(picture, request)}; add --yes to do it")
            _tell(_offline(config, log, request) if offline else ask(log, request, wait))

    return wrapped


def _with_yes(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--yes", is_flag=True, help="Do it; without, only say what it would do.")(function)


def _with_rules(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--exclude", multiple=True, metavar="RULE", help=f"{RULE}; may be repeated.")(function)
    return click.option("--include", multiple=True, metavar="RULE", help=f"{RULE}; may be repeated.")(function)


@command.command("list")
@click.option("--decisions", is_flag=True, help="Also the newest decisions: who asked for what, and why.")
@click.option("--json", "as_json", is_flag=True, help="For programs: the whole roster.")
@with_config
def list_(config: Config, decisions: bool, as_json: bool) -> None:
    """List the mirrors, where they stand, and what waits for them."""
    with log_of(config) as log:
        picture = _picture(log)
    roster = picture.roster or Roster()
    if as_json:
        click.echo(json.dumps(plain(roster), indent=2))
        return
    console().print(_mirrors(picture, roster))
    click.echo(f"version {roster.version}; without a gating mirror notices {_empty(roster.allow_empty)}")
    if decisions:
        console().print(_decisions(roster))


@command.command()
@click.argument("name")
@click.option("--backup", is_flag=True, help="Nothing waits for it, and it ignores deletions.")
@click.option("--inactive", is_flag=True, help="Only make it known: it gates from `join` on.")
@_with_rules
@_asking
def add(
    picture: Picture, reason: str, name: str, backup: bool, inactive: bool, include: Any, exclude: Any
) -> RosterRequest:
    """Add a mirror: it joins, so whatever is pushed from now on waits for it."""
    rules = Rules(include=include, exclude=exclude)
    role = MirrorRole.BACKUP if backup else MirrorRole.SERVING
    return _request(Verb.ADD, reason, mirror=name, role=role, inactive=inactive, rules=rules)


@command.command()
@click.argument("name")
@_asking
def join(picture: Picture, reason: str, name: str) -> RosterRequest:
    """Let an inactive mirror gate what is pushed from now on; it is active once it serves all the rest."""
    return _request(Verb.JOIN, reason, mirror=name)


@command.command()
@click.argument("name")
@click.option("--repository", metavar="PATH|ID", help="End the deactivation of this repository only.")
@_asking
def activate(picture: Picture, reason: str, name: str, repository: str | None) -> RosterRequest:
    """Make a mirror active at once: everything not yet announced waits for it."""
    return _request(Verb.ACTIVATE, reason, mirror=name, repository=_repository(picture, repository))


@command.command()
@click.argument("name")
@click.option("--repository", metavar="PATH|ID", help="Only for this repository.")
@_with_yes
@_asking
def deactivate(picture: Picture, reason: str, name: str, repository: str | None) -> RosterRequest:
    """Let nothing wait for a mirror any more, or nothing of one repository."""
    return _request(Verb.DEACTIVATE, reason, mirror=name, repository=_repository(picture, repository))


@command.command()
@click.argument("name")
@_with_yes
@_asking
def remove(picture: Picture, reason: str, name: str) -> RosterRequest:
    """Remove an inactive mirror for good; its levels are forgotten."""
    return _request(Verb.REMOVE, reason, mirror=name)


@command.command()
@click.argument("name")
@_with_rules
@_with_yes
@_asking
def rules(picture: Picture, reason: str, name: str, include: Any, exclude: Any) -> RosterRequest:
    """Set which repositories a mirror carries; without rules all of them."""
    return _request(Verb.RULES, reason, mirror=name, rules=Rules(include=include, exclude=exclude))


@command.command("allow-empty")
@click.argument("answer", type=click.Choice(["yes", "no"]))
@_with_yes
@_asking
def allow_empty(picture: Picture, reason: str, answer: str) -> RosterRequest:
    """Whether notices go out where no mirror gates."""
    return _request(Verb.ALLOW_EMPTY, reason, allow=answer == "yes")


def _request(verb: Verb, reason: str, **members: Any) -> RosterRequest:
    return RosterRequest(id=secrets.token_hex(8), verb=verb, who=who(), time=time.time(), reason=reason, **members)


def _picture(log: Log) -> Picture:
    follower = Follower(log)
    try:
        return follower.update()
    finally:
        follower.close()


def _repository(picture: Picture, named: str | None) -> str | None:
    """The id of the repository with this id or path; the newest of those that have had the path."""
    if named is None or named in picture.states:
        return named
    found = [state for state in picture.states.values() if state.path == named.strip("/")]
    if not found:
        raise Refused(f"repository {named}: neither a path nor an id that the log knows")
    return max(found, key=lambda state: (not state.deleted, state.generation)).repository


def _check(picture: Picture, request: RosterRequest) -> None:
    """Raises Refused if the aggregator would refuse this as things stand now."""
    decided = rosters.decide(picture.roster or Roster(), request, positions={}, now=request.time)
    if isinstance(decided, rosters.Refusal):
        raise Refused(decided.reason)


def _effect(picture: Picture, request: RosterRequest) -> str:
    """What the request would do, in words, with the number of notices it concerns."""
    if request.verb is Verb.ALLOW_EMPTY:
        return f"without a gating mirror notices would {'go out' if request.allow else 'be held'}"
    held = sum(
        state.seq - max(state.noticed, _serving(picture, request.mirror, state))
        for state in picture.waiting()
        if request.repository in (None, state.repository) and _gates(picture, request.mirror, state)
    )
    what = {
        Verb.DEACTIVATE: f"{held} notices that wait for {request.mirror} would wait for the other mirrors only",
        Verb.REMOVE: f"{request.mirror} would be removed and its levels forgotten",
        Verb.RULES: f"{request.mirror} would carry {_carried(picture, request.rules or Rules())}",
    }
    return what[request.verb]


def _carried(picture: Picture, wanted: Rules) -> str:
    present = [state for state in picture.states.values() if not state.deleted]
    return f"{sum(wanted.carries(state.path) for state in present)} of {len(present)} repositories"


def _gates(picture: Picture, name: str | None, state: RepositoryState) -> bool:
    mirror = picture.roster.mirror(name) if picture.roster else None
    return mirror is not None and mirror.gates(state.repository, state.path)


def _serving(picture: Picture, name: str | None, state: RepositoryState) -> int:
    ack = picture.acks.get((name or "", state.repository))
    return ack.serving if ack and ack.incarnation == state.incarnation else 0


def _offline(config: Config, log: Log, request: RosterRequest) -> tuple[Decision, Roster]:
    from ..aggregator.loop import AggregatorSettings
    from ..aggregator.offline_roster import check_silence, decide_offline

    check_silence(log, BEATS * config.settings(AggregatorSettings, "aggregator").beat)
    return decide_offline(log, request)


def ask(
    log: Log, request: RosterRequest, patience: float, stop: threading.Event | None = None
) -> tuple[Decision, Roster]:
    """The aggregator's decision; raises Refused if it does not come in time, or before `stop` is set."""
    reader = log.reader({(ROSTER, 0): log.ends(ROSTER)[0]})
    try:
        log.append([NewRecord(topic=ROSTER_REQUESTS, key=request.id, value=to_json(request))])
        end = time.monotonic() + patience
        while (left := end - time.monotonic()) > 0 and not (stop and stop.is_set()):
            for record in reader.poll(min(left, TURN)):
                roster = from_json(Roster, record.value) if record.value else Roster()
                if decision := roster.decision(request.id):
                    return decision, roster
    finally:
        reader.close()
    raise Refused(f"the aggregator has not decided within {patience:g} s; it will when it runs (request {request.id})")


def _tell(decided: tuple[Decision, Roster]) -> None:
    decision, roster = decided
    if decision.refusal:
        raise Refused(decision.refusal)
    mirror = roster.mirror(decision.request.mirror)
    if mirror is None:
        click.echo(f"roster version {roster.version}: without a gating mirror notices {_empty(roster.allow_empty)}")
    else:
        click.echo(f"roster version {roster.version}: {mirror.name} is {mirror.state.value}")


def _empty(allowed: bool) -> str:
    return "go out" if allowed else "are held"


def _mirrors(picture: Picture, roster: Roster) -> Table:
    rows = [
        (
            mirror.name,
            mirror.state.value,
            mirror.role.value,
            _rules(mirror),
            ", ".join(_path(picture, name) for name in mirror.deactivated),
            str(picture.behind(mirror.name)),
            str(_held(picture, mirror)),
        )
        for mirror in roster.mirrors
    ]
    return table(("mirror", "state", "role", "rules", "deactivated for", "behind", "holds"), rows)


def _held(picture: Picture, mirror: Mirror) -> int:
    """How many notices wait for this mirror."""
    return sum(
        max(0, state.seq - max(state.noticed, _serving(picture, mirror.name, state)))
        for state in picture.waiting()
        if mirror.gates(state.repository, state.path)
    )


def _rules(mirror: Mirror) -> str:
    return (
        " ".join([f"+{rule}" for rule in mirror.rules.include] + [f"-{rule}" for rule in mirror.rules.exclude]) or "all"
    )


def _path(picture: Picture, repository: str) -> str:
    state = picture.states.get(repository)
    return state.path if state else repository


def _decisions(roster: Roster) -> Table:
    rows = []
    for decision in roster.recent:
        request = decision.request
        what = " ".join(word for word in (request.verb.value, request.mirror, request.repository) if word)
        told = (request.who, what, request.reason, decision.refusal or "")
        rows.append((when(decision.time), str(decision.version), *told))
    return table(("when", "version", "who", "what", "reason", "refused"), rows)
