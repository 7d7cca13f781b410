# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator trace`: follows one push from the commit to its notice."""

import datetime
import os
import time
from collections.abc import Mapping, Sequence

import click

from ..config import Config
from ..outbox.file import outbox_of
from ..relay.gone.finding import find_places
from ..relay.settings import RelaySettings
from ..status import Picture
from ..status.follower import read_picture
from ..status.timeline import NoticeRecord, Stage, TimelineStep, find_event, find_notice, is_wanted, list_steps
from ..words.errors import Refused, visible
from ..words.event import Event
from ..words.records import RELAY_KEY, RepositoryState
from ..words.shape import plain
from .delivering import describe_delivery, find_rejects, read_notifier
from .display import print_listing
from .options import relay_of, with_config, with_json
from .progress import metered_log
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
            _show(unsent, _describe_unsent(picture, unsent, relay_of(config)), {}, as_json=as_json)
            return
        state = picture.find_repository(repository)
        found = find_event(log, state, push, seq)
        if found is None:
            raise Refused(_describe_missing(config, picture, state, push, seq))
        event, record = found
        notice = find_notice(log, state, event)
        rejects = find_rejects(log, event, notice[1]) if notice else {}
    steps = list_steps(picture, state, event, record, notice, time.time())
    _show(event, steps, _describe_deliveries(config, picture, event, notice, rejects), as_json=as_json)


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
    waits = f"waits in the outbox for {late:.0f} s: not in the log, nothing is delivered; the {name} {seen}"
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


def _show(event: Event, steps: Sequence[TimelineStep], deliveries: Mapping[str, str], *, as_json: bool) -> None:
    push = event.changes.push
    data = {
        "repository": event.repository,
        "path": event.path,
        "event": event.seq,
        "type": event.type.value,
        "id": event.id,
        "push": plain(push) if push else None,
        "steps": [{"at": step.at, "what": step.text} for step in steps],
        "destinations": deliveries,
    }
    if not as_json:
        by = f", push {push.id} by {push.user}" if push else ""
        click.echo(visible(f"{event.path}  event {event.seq} ({event.type}), id {event.id}{by}"))
    rows = [(_format_instant(step.at), _format_delay(step.at, event), step.text) for step in steps]
    print_listing(data, ("when (UTC)", "after", "what"), rows, as_json=as_json)
    if not as_json:
        for name, said in deliveries.items():
            click.echo(visible(f"{name}: {said}"))


def _format_delay(at: float | None, event: Event) -> str:
    return "" if at is None or at == event.time else f"{1000 * (at - event.time):.0f} ms"


def _format_instant(at: float | None) -> str:
    return "" if at is None else f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
