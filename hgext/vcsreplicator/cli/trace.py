# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator trace`: follows one push from the commit to its notice."""

import datetime
import os
import time
from dataclasses import dataclass, field

import click

from ..config import Config
from ..log import Record
from ..outbox.file import outbox_of
from ..relay.lacking import find_places
from ..relay.settings import RelaySettings
from ..status import DESTINATION, Picture
from ..status.findings import RELAY_KEY
from ..status.timeline import NoticeRecord, find_event, find_notice, is_wanted, list_steps
from ..words.errors import Refused, visible
from ..words.event import Event
from ..words.records import RepositoryState
from ..words.shape import plain
from .delivering import describe_delivery, read_notifier
from .display import print_listing
from .options import relay_of, with_config, with_json
from .progress import metered_log
from .repositories import find_repository, read_picture
from .requests import when


@click.command()
@click.argument("repository")
@click.option("--push", type=int, metavar="ID", help="Follow the push with this id.")
@click.option("--event", "seq", type=int, metavar="N", help="Follow the event with this number.  [default: the newest]")
@with_json
@with_config
def command(config: Config, repository: str, push: int | None, seq: int | None, as_json: bool) -> None:
    """Follow one push of REPOSITORY (path or id) through every stage.

    Prints when each step happened, and which steps are missing."""
    with metered_log(config) as log:
        picture = read_picture(log)
        unsent = _find_unsent(config, picture, repository, push, seq)
        if unsent is not None:
            _show(_trace_unsent(picture, unsent, relay_of(config)), as_json=as_json)
            return
        state = find_repository(picture, repository)
        found = find_event(log, state, push, seq)
        if found is None:
            raise Refused(_describe_missing(picture, state, push, seq))
        notice = find_notice(log, state, found[0])
    _show(_trace_sent(config, picture, state, *found, notice), as_json=as_json)


def _find_unsent(config: Config, picture: Picture, named: str, push: int | None, seq: int | None) -> Event | None:
    """Find the wanted event, or the newest, among the unsent events of its outbox.

    Returns None if the outbox is not on this machine, or has no such event.
    """
    relay, found = relay_of(config), None
    known = [state.path for state in picture.states.values() if named == state.repository]
    for folder in find_places((known or [named.strip("/")])[0], relay.roots) if relay else ():
        for place in outbox_of(folder).unsent() if os.path.isdir(os.path.join(folder, ".hg", "store")) else ():
            if is_wanted(place.entry.event, push, seq):
                found = place.entry.event
    return found


def _describe_missing(picture: Picture, state: RepositoryState, push: int | None, seq: int | None) -> str:
    what = "event" if seq is None else f"event {seq}"
    if push is not None:
        what = f"push {push}"
    relays = [
        f"{name} was last seen {when(picture.seen(name))} UTC" for name in picture.reports if name.startswith(RELAY_KEY)
    ]
    text = f"{state.path}: no {what} in the log, which has seen events up to {state.seq}"
    if seq is not None and seq <= state.seq:
        return f"{text}; it is older than the retention of the log"
    older = "it is older than the retention of the log, or waits in the outbox on the master"
    return "; ".join([text, *relays, f"{older}: run this there"])


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTrace:
    """The history of an event.

    `steps` have their times, None for a step that has not happened yet. `deliveries` describe its delivery to each destination.
    """

    event: Event
    steps: list[tuple[float | None, str]]
    deliveries: dict[str, str] = field(default_factory=dict)


def _trace_unsent(picture: Picture, event: Event, relay: RelaySettings | None) -> EventTrace:
    """Trace an event that the log does not have yet."""
    late, name = time.time() - event.time, RELAY_KEY + (relay.source if relay else "")
    seen = f"was last seen {when(picture.seen(name))} UTC" if picture.seen(name) else "was never seen"
    waits = f"waits in the outbox for {late:.0f} s: not in the log, nothing is delivered; the {name} {seen}"
    return EventTrace(event=event, steps=[(event.time, "committed on the master"), (None, waits)])


def _trace_sent(
    config: Config, picture: Picture, state: RepositoryState, event: Event, record: Record, notice: NoticeRecord | None
) -> EventTrace:
    steps = [(step.at, step.text) for step in list_steps(picture, state, event, record, notice, time.time())]
    deliveries = {}
    if notice:
        settings = read_notifier(config)
        for group, position in sorted(picture.groups.items()):
            name = group.removeprefix(DESTINATION)
            deliveries[name] = describe_delivery(settings, name, event, is_passed=position > notice[1].offset)
    return EventTrace(event=event, steps=steps, deliveries=deliveries)


def _show(trace: EventTrace, *, as_json: bool) -> None:
    event, push = trace.event, trace.event.changes.push
    data = {
        "repository": event.repository,
        "path": event.path,
        "event": event.seq,
        "type": event.type.value,
        "id": event.id,
        "push": plain(push) if push else None,
        "steps": [{"at": at, "what": what} for at, what in trace.steps],
        "destinations": trace.deliveries,
    }
    if not as_json:
        by = f", push {push.id} by {push.user}" if push else ""
        click.echo(visible(f"{event.path}  event {event.seq} ({event.type}), id {event.id}{by}"))
    rows = [(_format_instant(at), _format_delay(at, event), what) for at, what in trace.steps]
    print_listing(data, ("when (UTC)", "after", "what"), rows, as_json=as_json)
    if not as_json:
        for name, said in trace.deliveries.items():
            click.echo(visible(f"{name}: {said}"))


def _format_delay(at: float | None, event: Event) -> str:
    return "" if at is None or at == event.time else f"{1000 * (at - event.time):.0f} ms"


def _format_instant(at: float | None) -> str:
    return "" if at is None else f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
