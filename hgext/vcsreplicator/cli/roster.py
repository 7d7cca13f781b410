# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator roster`: which mirrors there are, and which of them gate.

A change is a request to the aggregator, and the verb waits for its decision. A change that lets notices go out earlier, or makes
them wait, is only described without `--yes`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..config import Config
from ..log import Log
from ..status import Picture
from ..status.follower import read_picture
from ..words.errors import Refused, counted
from ..words.records import RepositoryState
from ..words.roster import Decision, Mirror, MirrorRole, MirrorState, Roster, RosterRequest, Verb
from ..words.roster.changes import decide
from ..words.rules import Rules
from ..words.shape import plain
from .display import console, make_listing, print_json
from .options import complete_mirror, complete_repository, with_config, with_json, with_wait, with_yes
from .progress import metered_log
from .requests import ask_aggregator, make_request, when

# A running aggregator sends a heartbeat within this many of its intervals.
BEATS = 2.5


@click.group()
def command() -> None:
    """Show and change the mirrors and which of them gate.

    Notices of a repository wait for every mirror that gates it. A mirror gates a repository if it is active or joining,
    its rules include the repository, it is not a backup, and it is not deactivated for the repository.
    """


def _make_request_verb(verb: Verb, *options: Callable[..., Any]) -> Callable[[Callable[[], None]], click.Command]:
    """Make a verb that asks for a change; what it decorates has only the help.

    `options` have the names of the request's members.
    """

    def ask(
        config: Config, *, reason: str, wait: float, offline: bool = False, yes: bool = True, **members: Any
    ) -> None:
        with metered_log(config) as log:
            picture = read_picture(log)
            request = make_request(verb, reason, **_read_members(picture, **members))
            if not offline:  # which knows the copy of a roster that the log lost
                # Raises Refused as the aggregator would now.
                decide(picture.require_roster(), request, positions={}, now=request.time)
            if not yes and verb is not Verb.ADD:
                raise Refused(f"{_describe_effect(picture, request)}; add --yes to do it")
            if not yes:
                _check_section(config, request.mirror)
            decided = _decide_offline(config, log, request) if offline else ask_aggregator(log, request, wait)
            _print_decision(*decided)

    def make(described: Callable[[], None]) -> click.Command:
        wrapped: Callable[..., Any] = with_config(ask)
        for option in (_with_wait, _with_reason, *reversed(options)):
            wrapped = option(wrapped)
        return command.command(verb.value, help=described.__doc__)(wrapped)

    return make


def _read_members(
    picture: Picture,
    *,
    repository: str | None = None,
    backup: bool | None = None,
    include: tuple[str, ...] | None = None,
    exclude: tuple[str, ...] = (),
    answer: str | None = None,
    **members: Any,
) -> dict[str, Any]:
    """Return the members of a request from the values of a verb's options."""
    if repository is not None:
        members["repository"] = picture.find_repository(repository).repository
    if backup is not None:
        members["role"] = MirrorRole.BACKUP if backup else MirrorRole.SERVING
    if include is not None:
        members["rules"] = Rules(include=include, exclude=exclude)
    if answer is not None:
        members["allow"] = answer == "yes"
    return members


def _check_section(config: Config, name: str | None) -> None:
    """Raise Refused if the file has sections of mirrors, but none of this one."""
    there = sorted(config.tables.get("mirror", ()))
    if there and name not in there:
        raise Refused(
            f"{config.file}: section [mirror.{name}] is missing (there are: {', '.join(there)}); "
            "add --yes if another machine's file has it"
        )


_with_reason = click.option("--reason", default="", metavar="TEXT", help="Recorded with the decision.")
_with_wait = with_wait(default=10.0, help="How long to wait for the decision of the aggregator.")
_with_mirror = click.argument("mirror", metavar="NAME", shell_complete=complete_mirror)
_with_answer = click.argument("answer", type=click.Choice(["yes", "no"]))
# For the verbs of `offline_roster.VERBS`; the others need an aggregator.
_with_offline = click.option("--offline", is_flag=True, help="Decide here, while no aggregator runs.")


def with_rules(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--include` and `--exclude`, the rules of a mirror."""
    include = "Carry only these: path:EXACT or re:EXPRESSION; may be repeated. Without rules, all."
    exclude = "Of those, do not carry these; may be repeated."
    function = click.option("--exclude", multiple=True, metavar="RULE", help=exclude)(function)
    return click.option("--include", multiple=True, metavar="RULE", help=include)(function)


@command.command("list")
@click.option("--decisions", is_flag=True, help="Show the newest decisions too: who made each request, and why.")
@click.option("--all", "is_whole", is_flag=True, help="List removed mirrors too.")
@with_json
@with_config
def list_(config: Config, decisions: bool, is_whole: bool, as_json: bool) -> None:
    """List the mirrors, their lag, and the notices they hold."""
    with metered_log(config) as log:
        picture = read_picture(log)
    roster = picture.roster
    if as_json:
        mirrors = [
            {**plain(mirror), "behind": picture.behind(mirror.name), "holds": _count_held(picture, mirror)}
            for mirror in roster.mirrors
        ]
        print_json({**plain(roster), "mirrors": mirrors})
        return
    shown = [mirror for mirror in roster.mirrors if is_whole or mirror.state is not MirrorState.REMOVED]
    console().print(_list_mirrors(picture, shown))
    if hidden := len(roster.mirrors) - len(shown):
        click.echo(f"{hidden} removed; to list {'it' if hidden == 1 else 'them'} too: vcsreplicator roster list --all")
    click.echo(f"version {roster.version}; {_describe_empty(roster)}")
    if decisions:
        console().print(_list_decisions(roster))


@_make_request_verb(
    Verb.ADD,
    _with_mirror,
    click.option("--backup", is_flag=True, help="No notice waits for it, and it ignores deletions."),
    click.option("--inactive", is_flag=True, help="Add it without gating; it gates after `roster join`."),
    with_rules,
    click.option("--key", metavar="KEY", help="Count only what it seals with this key (vcsreplicator key NAME)."),
    click.option("--yes", is_flag=True, help="Add it even if the file has sections of mirrors and none of this one."),
)
def add() -> None:
    """Add a mirror and let it join.

    Notices of later pushes wait for it.
    """


@_make_request_verb(Verb.JOIN, _with_mirror)
def join() -> None:
    """Let an inactive mirror join.

    Notices of later pushes wait for it. It becomes active once it serves everything that is released.
    """


@_make_request_verb(
    Verb.ACTIVATE,
    _with_mirror,
    click.option(
        "--repository",
        metavar="PATH|ID",
        help="End the deactivation of this repository only.",
        shell_complete=complete_repository,
    ),
    _with_offline,
)
def activate() -> None:
    """Make a mirror active at once.

    All notices that are not written yet wait for it.
    """


@_make_request_verb(
    Verb.DEACTIVATE,
    _with_mirror,
    click.option(
        "--repository",
        metavar="PATH|ID",
        help="Deactivate it for this repository only.",
        shell_complete=complete_repository,
    ),
    with_yes,
    _with_offline,
)
def deactivate() -> None:
    """Deactivate a mirror: notices no longer wait for it.

    With --repository, only the notices of that repository.
    """


@_make_request_verb(Verb.REMOVE, _with_mirror, with_yes)
def remove() -> None:
    """Remove an inactive mirror for good, and forget its levels."""


@_make_request_verb(Verb.RULES, _with_mirror, with_rules, with_yes, _with_offline)
def rules() -> None:
    """Set which repositories a mirror carries (default: all)."""


@_make_request_verb(Verb.ADD_KEY, _with_mirror, click.argument("key"))
def add_key() -> None:
    """Give a mirror a key, or a second one.

    From then on only what it seals counts. `vcsreplicator key NAME` on its machine makes KEY.
    """


@_make_request_verb(Verb.REMOVE_KEY, _with_mirror, click.argument("key"), with_yes)
def remove_key() -> None:
    """Remove a key of a mirror: what it sealed no longer counts."""


@_make_request_verb(Verb.CANDIDATE, _with_mirror, _with_answer)
def candidate() -> None:
    """Mark a mirror that is meant to become the master.

    `vcsreplicator check` warns while the log shows that the mirror could not become it.
    """


@_make_request_verb(Verb.REQUIRE_KEYS, _with_answer, with_yes)
def require_keys() -> None:
    """Decide whether acks of mirrors without a key count."""


@_make_request_verb(Verb.ALLOW_EMPTY, _with_answer, with_yes, _with_offline)
def allow_empty() -> None:
    """Allow or hold notices that no mirror gates."""


def _describe_effect(picture: Picture, request: RosterRequest) -> str:
    """Describe the effect of the request, with the number of notices concerned."""
    if request.verb is Verb.ALLOW_EMPTY:
        return f"notices of a repository that no mirror gates would {'go out' if request.allow else 'be held'}"
    if request.verb in (Verb.REQUIRE_KEYS, Verb.REMOVE_KEY):
        return _describe_key_effect(picture, request)
    if request.verb is Verb.REMOVE:
        return f"{request.mirror} would be removed and its levels forgotten"
    if request.verb is Verb.RULES:
        wanted, present = request.rules or Rules(), [state for state in picture.states.values() if not state.deleted]
        carried = sum(wanted.carries(state.path) for state in present)
        return f"{request.mirror} would carry {carried} of {counted(len(present), 'repository')}"
    mirror = picture.roster.mirror(request.mirror)
    held = _count_held(picture, mirror, request.repository) if mirror else 0
    what = "notice that waits" if held == 1 else "notices that wait"
    return (
        f"{held} {what} for {request.mirror} would wait for the other mirrors only: what these serve goes out at once"
    )


def _describe_key_effect(picture: Picture, request: RosterRequest) -> str:
    """Describe what counts after the request."""
    if request.verb is Verb.REMOVE_KEY:
        mirror = picture.roster.mirror(request.mirror)
        if mirror is not None and len(mirror.keys or ()) > 1:
            return f"what {mirror.name} sealed with this key only would not count any more"
        return f"{request.mirror} would have no key: any program that may write acks could write them in its name"
    keyless = [one.name for one in picture.roster.mirrors if not one.keys and one.state is not MirrorState.REMOVED]
    names = f" ({', '.join(keyless)})" if keyless else ""
    return f"acks of mirrors without a key{names} would {'not count' if request.allow else 'count'}"


def _decide_offline(config: Config, log: Log, request: RosterRequest) -> tuple[Decision, Roster]:
    from ..aggregator.offline_roster import check_silence, decide_offline
    from ..aggregator.settings import AggregatorSettings

    check_silence(log, BEATS * config.settings(AggregatorSettings, "aggregator").beat)
    return decide_offline(log, request)


def _print_decision(decision: Decision, roster: Roster) -> None:
    if decision.refusal:
        raise Refused(decision.refusal)
    mirror = roster.mirror(decision.request.mirror)
    what = (
        f"{mirror.name} is {mirror.state.value}{', candidate' if mirror.candidate else ''}"
        if mirror
        else _describe_empty(roster)
    )
    if decision.request.verb is Verb.REQUIRE_KEYS:
        what = f"acks of mirrors without a key {'do not count' if roster.requires_keys else 'count'}"
    click.echo(f"roster version {roster.version}: {what}")


def _describe_empty(roster: Roster) -> str:
    return f"notices of a repository that no mirror gates {'go out' if roster.allow_empty else 'are held'}"


def _list_mirrors(picture: Picture, mirrors: Iterable[Mirror]) -> Table | Text:
    paths = {name: state.path for name, state in picture.states.items()}
    rows = [
        (
            mirror.name,
            mirror.state.value,
            mirror.described_role,
            _describe_rules(mirror),
            ", ".join(paths.get(name, name) for name in mirror.deactivated),
            str(picture.behind(mirror.name)),
            str(_count_held(picture, mirror)),
        )
        for mirror in mirrors
    ]
    return make_listing("mirrors", ("mirror", "state", "role", "rules", "deactivated for", "behind", "holds"), rows)


def _count_held(picture: Picture, mirror: Mirror, repository: str | None = None) -> int:
    """Count the notices that wait for this mirror, of one repository or of all."""
    return sum(
        max(0, state.seq - max(state.noticed, _find_level(picture, mirror.name, state)))
        for state in picture.waiting()
        if repository in (None, state.repository) and mirror.gates(state.repository, state.path)
    )


def _find_level(picture: Picture, name: str, state: RepositoryState) -> int:
    """Return the last event whose notice does not wait for this mirror.

    It does for an event that is not applied, or released and not served, and for those behind it.
    """
    lag = picture.measure_lag(name, state)
    return state.released - lag.unserved if lag.unserved else state.seq - lag.unapplied


def _describe_rules(mirror: Mirror) -> str:
    rules = [f"+{rule}" for rule in mirror.rules.include] + [f"-{rule}" for rule in mirror.rules.exclude]
    return " ".join(rules) or "all"


def _list_decisions(roster: Roster) -> Table | Text:
    rows = []
    for decision in roster.recent:
        request = decision.request
        what = " ".join(word for word in (request.verb.value, request.mirror, request.repository) if word)
        rows.append(
            (when(decision.time), str(decision.version), request.who, what, request.reason, decision.refusal or "")
        )
    return make_listing("decisions", ("when (UTC)", "version", "who", "what", "reason", "refused"), rows)
