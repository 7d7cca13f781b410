# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator trace`: finds pushes, and follows one from the commit to its notice."""

import datetime
import heapq
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import click

from ..config import Config
from ..log import Log
from ..log.table import find_oldest_time
from ..outbox.file import outbox_of
from ..relay.gone.finding import find_places
from ..relay.settings import RelaySettings
from ..status import Picture
from ..status.follower import Follower
from ..status.pushes import CHANGESET, FoundPush, PushQuery, find_pushes
from ..status.timeline import NoticeRecord, Stage, TimelineStep, find_event, find_notice, is_wanted, list_steps
from ..words.clock import format_delay, format_duration
from ..words.errors import Refused, visible
from ..words.event import Event
from ..words.records import RELAY_KEY, RepositoryState
from ..words.shape import plain
from .delivering import describe_delivery, find_rejects, read_notifier
from .display import print_listing
from .options import TEXT, complete_repository, relay_of, with_config, with_json, with_last
from .progress import metered_log
from .requests import when

# Seconds between two looks of `--follow`.
LOOK = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wanted event: what names its repository, its push and its number, where given."""

    named: str
    push: int | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """How far an event is, and what is known of its deliveries, by destination.

    It `is_over` once it has its notice, and every destination has passed that.
    """

    event: Event
    steps: Sequence[TimelineStep]
    deliveries: Mapping[str, str]
    is_over: bool


@click.command()
@click.argument("what", required=False, type=TEXT, metavar="[REPOSITORY|CHANGESET]", shell_complete=complete_repository)
@click.option("--push", type=int, metavar="ID", help="Follow the push with this id.")
@click.option("--event", "seq", type=int, metavar="N", help="Follow the event with this number.  [default: the newest]")
@click.option("--user", type=TEXT, default="", metavar="TEXT", help="Find pushes of users whose names contain this.")
@click.option("--bookmark", type=TEXT, default="", metavar="TEXT", help="Find moves of bookmarks with such names.")
@click.option("--repository", type=TEXT, default="", metavar="TEXT", help="Find in repositories with such paths.")
@click.option("--since", type=click.DateTime(), metavar="DATE", help="YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS, UTC.")
@with_last(default=20)
@click.option("--follow", is_flag=True, help="Print each step when it happens, until the event is delivered.")
@with_json
@with_config
def command(
    config: Config,
    what: str | None,
    push: int | None,
    seq: int | None,
    user: str,
    bookmark: str,
    repository: str,
    since: datetime.datetime | None,
    last: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Find pushes, and follow one through every stage.

    With REPOSITORY, a path or an id, the newest push to it is followed. CHANGESET is the beginning of a hash. If several pushes
    fit, they are listed. Prints when each step happened, and which steps are missing.
    """
    begin = since.replace(tzinfo=datetime.UTC).timestamp() if since else 0.0
    query = PushQuery(user=user, bookmark=bookmark, repository=repository, since=begin)
    is_numbered = push is not None or seq is not None
    if what is None and query == PushQuery():
        raise click.UsageError(
            "expected a repository, a changeset, or one of --user, --bookmark, --repository, --since"
        )
    if is_numbered and (what is None or query != PushQuery()):
        raise click.UsageError("--push and --event need a repository, and no other condition")
    if follow and as_json:
        raise click.UsageError("expected either --follow or --json")
    with metered_log(config) as log, closing(Follower(log)) as follower:
        picture = follower.update()
        wanted = Wanted(named=what or "", push=push, seq=seq)
        is_known = what is not None and _is_repository(config, picture, wanted)
        if not is_numbered and what is not None and not is_known and CHANGESET.match(what):
            query = replace(query, changeset=what.lower())
        elif what is not None and query != PushQuery():
            query = replace(query, repository=picture.find_repository(what).repository)
        found = None
        if query != PushQuery():
            found = _find_one(log, picture, query, last, as_json=as_json)
            if found is None:
                return
            wanted = Wanted(named=found.event.repository, seq=found.event.seq)
        trace = _trace(config, log, picture, wanted, found)
        if follow:
            _follow(config, log, follower, trace)
        else:
            _show(trace, as_json=as_json)


def _is_repository(config: Config, picture: Picture, wanted: Wanted) -> bool:
    """Return whether the log or an outbox on this machine knows a repository by this name."""
    named = wanted.named.strip("/")
    if any(named in (state.path, state.repository) for state in picture.states.values()):
        return True
    return _find_unsent(config, picture, wanted) is not None


def _find_one(log: Log, picture: Picture, query: PushQuery, last: int, *, as_json: bool) -> FoundPush | None:
    """Find the one event that fits; if several do, list the newest and return None.

    Raises Refused if none does. Bundles are read only for a changeset that no event names.
    """
    found = heapq.nlargest(last + 1, find_pushes(log, query), key=_find_time)
    if not found and query.changeset:
        from ..hg.replica.apply import list_changesets

        found = heapq.nlargest(last + 1, find_pushes(log, query, list_changesets), key=_find_time)
    if not found:
        raise Refused(_describe_unfound(log, query))
    if len(found) == 1 and found[0].event.repository in picture.states:
        return found[0]
    _list_found(found, last, as_json=as_json)
    return None


def _find_time(found: FoundPush) -> float:
    return found.event.time


def _describe_unfound(log: Log, query: PushQuery) -> str:
    oldest = find_oldest_time(log, "events")
    text = f"no push in the log matches; the log begins {when(oldest)} UTC" if oldest else "the log has no event"
    if query.changeset:
        text = f"changeset {query.changeset}: {text}; not searched: bundles in the blob store or on the master"
    return f"{text}; what waits in an outbox is found on the master by its repository: vcsreplicator trace REPOSITORY"


def _list_found(found: Sequence[FoundPush], last: int, *, as_json: bool) -> None:
    shown = [each.event for each in found[:last]]
    data = [
        {"repository": event.repository, "path": event.path, "event": event.seq, "type": event.type.value}
        | {"time": event.time, "push": event.changes.push and plain(event.changes.push), "changeset": each.changeset}
        for event, each in zip(shown, found, strict=False)
    ]
    rows = [
        (when(event.time)[:16], each.changeset[:12], str(event.seq), _name_user(event), event.path)
        for event, each in zip(shown, found, strict=False)
    ]
    print_listing(data, "pushes", ("when (UTC)", "changeset", "event", "user", "repository"), rows, as_json=as_json)
    if not as_json:
        if len(found) > last:
            click.echo(f"these are the newest {last}; list more with --last, or fewer with --since")
        newest = shown[0]
        click.echo(visible(f"follow one: vcsreplicator trace {shlex.quote(newest.path)} --event {newest.seq}"))


def _name_user(event: Event) -> str:
    return event.changes.push.user if event.changes.push else ""


def _trace(config: Config, log: Log, picture: Picture, wanted: Wanted, found: FoundPush | None = None) -> Trace:
    """Trace an event; raises Refused if neither the log nor an outbox on this machine has it."""
    unsent = None if found else _find_unsent(config, picture, wanted)
    if unsent is not None:
        steps = _describe_unsent(picture, unsent, relay_of(config))
        return Trace(event=unsent, steps=steps, deliveries={}, is_over=False)
    state = picture.find_repository(wanted.named)
    place = (found.event, found.record) if found else find_event(log, state, wanted.push, wanted.seq)
    if place is None:
        raise Refused(_describe_missing(config, picture, state, wanted.push, wanted.seq))
    event, record = place
    notice = find_notice(log, state, event)
    rejects = find_rejects(log, event, notice[1]) if notice else {}
    return Trace(
        event=event,
        steps=list_steps(picture, state, event, record, notice, time.time()),
        deliveries=_describe_deliveries(config, picture, event, notice, rejects),
        is_over=notice is not None and all(at > notice[1].offset for at in picture.positions.values()),
    )


def _follow(config: Config, log: Log, follower: Follower, trace: Trace) -> None:
    """Print each step once it is done, and each delivery when more is known of it."""
    event, printed, said = trace.event, set[tuple[Stage, str | None]](), dict[str, str]()
    _print_title(event)
    while True:
        for step in trace.steps:
            if step.is_done and (step.stage, step.mirror) not in printed:
                printed.add((step.stage, step.mirror))
                at, after = _format_instant(step.at), _format_delay(step.at, event)
                click.echo(visible(f"{at:23}  {after:>9}  {step.text}"))
        for name, text in trace.deliveries.items():
            if said.get(name) != text:
                click.echo(visible(f"{name}: {text}"))
        said |= trace.deliveries
        if trace.is_over:
            return
        time.sleep(LOOK)
        trace = _trace(config, log, follower.update(), Wanted(named=event.repository, seq=event.seq))


def _find_unsent(config: Config, picture: Picture, wanted: Wanted) -> Event | None:
    """Find the wanted event, or the newest, among the unsent events of its outbox.

    Returns None if the outbox is not on this machine, or has no such event.
    """
    relay, found = relay_of(config), None
    known = [state.path for state in picture.states.values() if wanted.named == state.repository]
    for folder in find_places((known or [wanted.named.strip("/")])[0], relay.roots) if relay else ():
        for place in outbox_of(folder).unsent() if os.path.isdir(os.path.join(folder, ".hg", "store")) else ():
            if is_wanted(place.entry.event, wanted.push, wanted.seq):
                found = place.entry.event
    return found


def _describe_missing(
    config: Config, picture: Picture, state: RepositoryState, push: int | None, seq: int | None
) -> str:
    what = "event" if seq is None else f"event {seq}"
    if push is not None:
        what = f"push {push}"
    relays = [
        f"{name} was last seen {when(picture.seen(name))} UTC" for name in picture.reports if name.startswith(RELAY_KEY)
    ]
    text = f"{state.path}: no {what} in the log, which has seen events up to {state.seq}"
    if seq is not None and seq <= state.seq:
        return f"{text}; it is older than the retention of the log"
    relay = relay_of(config)
    if relay and any(os.path.isdir(folder) for folder in find_places(state.path, relay.roots)):
        neither = "nor does it wait in an outbox on this machine"
        return f"{text}, {neither}: it was never made, or is older than the retention of the log"
    older = "it is older than the retention of the log, or waits in the outbox on the master"
    return "; ".join([text, *relays, f"{older}: run this there"])


def _describe_unsent(picture: Picture, event: Event, relay: RelaySettings | None) -> list[TimelineStep]:
    """Return the steps of an event that the log does not have yet."""
    late, name = time.time() - event.time, RELAY_KEY + (relay.source if relay else "")
    seen = f"was last seen {when(picture.seen(name))} UTC" if picture.seen(name) else "was never seen"
    waits = f"waits in the outbox for {format_duration(late)}: not in the log, nothing is delivered; the {name} {seen}"
    committed = TimelineStep(stage=Stage.COMMITTED, text="committed on the master", at=event.time)
    return [committed, TimelineStep(stage=Stage.LOGGED, text=waits, is_done=False)]


def _describe_deliveries(
    config: Config,
    picture: Picture,
    event: Event,
    notice: NoticeRecord | None,
    rejects: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Describe the delivery of an event to each destination, once it has a notice."""
    if notice is None:
        return {}
    settings = read_notifier(config)
    return {
        name: describe_delivery(settings, name, event, is_passed=at > notice[1].offset, rejects=rejects.get(name, ()))
        for name, at in sorted(picture.positions.items())
    }


def _show(trace: Trace, *, as_json: bool) -> None:
    event = trace.event
    data = {
        "repository": event.repository,
        "path": event.path,
        "event": event.seq,
        "type": event.type.value,
        "id": event.id,
        "push": plain(event.changes.push) if event.changes.push else None,
        "steps": [{"at": step.at, "what": step.text} for step in trace.steps],
        "destinations": trace.deliveries,
    }
    if not as_json:
        _print_title(event)
    rows = [(_format_instant(step.at), _format_delay(step.at, event), step.text) for step in trace.steps]
    print_listing(data, "steps", ("when (UTC)", "after", "what"), rows, as_json=as_json)
    if not as_json:
        for name, said in trace.deliveries.items():
            click.echo(visible(f"{name}: {said}"))


def _print_title(event: Event) -> None:
    push = event.changes.push
    by = f", push {push.id} by {push.user}" if push else ""
    click.echo(visible(f"{event.path}  event {event.seq} ({event.type}), id {event.id}{by}"))


def _format_delay(at: float | None, event: Event) -> str:
    return "" if at is None or at == event.time else format_delay(at - event.time)


def _format_instant(at: float | None) -> str:
    return "" if at is None else f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
