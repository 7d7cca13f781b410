# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator trace`: follows one push from the commit to its notice."""

import datetime
import os
import time

import click

from ..config import Config
from ..log import Record
from ..outbox.file import Outbox
from ..outbox.folder import Store
from ..relay.daemon import RelaySettings
from ..relay.lacking import find_places
from ..status import DESTINATION, Picture
from ..status.findings import RELAY_KEY
from ..status.timeline import Announcement, find_event, find_notice, is_wanted, list_steps
from ..words.errors import Refused, visible
from ..words.event import Event
from ..words.levels import RepositoryState
from .delivering import describe_delivery, read_notifier
from .display import console, table
from .options import log_of, relay_of, with_config
from .repositories import find_repository, read_picture
from .requests import when


@click.command()
@click.argument("repository")
@click.option("--push", type=int, metavar="ID", help="Follow the push with this id.")
@click.option("--event", "seq", type=int, metavar="N", help="Follow the event with this number.  [default: the newest]")
@with_config
def command(config: Config, repository: str, push: int | None, seq: int | None) -> None:
    """Follow one push of REPOSITORY (path or id) through every stage.

    Prints what has happened, when, and what is missing."""
    with log_of(config) as log:
        picture = read_picture(log)
        unsent = _find_unsent(config, picture, repository, push, seq)
        if unsent is not None:
            _show_unsent(picture, unsent, relay_of(config))
            return
        state = find_repository(picture, repository)
        found = find_event(log, state, push, seq)
        if found is None:
            raise Refused(_describe_missing(picture, state, push, seq))
        notice = find_notice(log, state, found[0])
    _show(config, picture, state, *found, notice)


def _find_unsent(config: Config, picture: Picture, named: str, push: int | None, seq: int | None) -> Event | None:
    """Find the wanted event, or the newest, in the repository's outbox, where that is on this machine."""
    relay, found = relay_of(config), None
    known = [state.path for state in picture.states.values() if named == state.repository]
    for folder in find_places((known or [named.strip("/")])[0], relay.roots) if relay else ():
        store = os.path.join(folder, ".hg", "store")
        for place in Outbox(Store(store)).unsent() if os.path.isdir(store) else ():
            if is_wanted(place.entry.event, push, seq):
                found = place.entry.event
    return found


def _describe_missing(picture: Picture, state: RepositoryState, push: int | None, seq: int | None) -> str:
    what = f"push {push}" if push is not None else "event" if seq is None else f"event {seq}"
    relays = [
        f"{name} was last seen {when(picture.seen(name))} UTC" for name in picture.reports if name.startswith(RELAY_KEY)
    ]
    text = f"{state.path}: no {what} in the log, which has seen events up to {state.seq}"
    if seq is not None and seq <= state.seq:
        return f"{text}; it is older than the retention of the log"
    older = "it is older than the retention of the log, or waits in the outbox on the master"
    return "; ".join([text, *relays, f"{older}: run this there"])


def _show_unsent(picture: Picture, event: Event, relay: RelaySettings | None) -> None:
    """Show an event that the log does not have yet."""
    _show_title(event)
    late, name = time.time() - event.time, RELAY_KEY + (relay.source if relay else "")
    seen = f"was last seen {when(picture.seen(name))} UTC" if picture.seen(name) else "was never seen"
    rows = [
        (_format_instant(event.time), "", "committed on the master"),
        ("", "", f"waits in the outbox for {late:.0f} s: not in the log, nothing is delivered; the {name} {seen}"),
    ]
    console().print(table(("when (UTC)", "after", "what"), rows))


def _show_title(event: Event) -> None:
    push = event.changes.push
    by = f", push {push.id} by {push.user}" if push else ""
    click.echo(visible(f"{event.path}  event {event.seq} ({event.type}), id {event.id}{by}"))


def _show(
    config: Config,
    picture: Picture,
    state: RepositoryState,
    event: Event,
    record: Record,
    notice: Announcement | None,
) -> None:
    _show_title(event)
    rows = [
        (_format_instant(step.at), "" if step.at is None else f"{1000 * (step.at - event.time):.0f} ms", step.text)
        for step in list_steps(picture, state, event, record, notice, time.time())
    ]
    console().print(table(("when (UTC)", "after", "what"), rows))
    if notice:
        settings = read_notifier(config)
        for group, position in sorted(picture.groups.items()):
            name = group.removeprefix(DESTINATION)
            click.echo(f"{name}: {describe_delivery(settings, name, event, is_passed=position > notice[1].offset)}")


def _format_instant(at: float | None) -> str:
    return "" if at is None else f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
