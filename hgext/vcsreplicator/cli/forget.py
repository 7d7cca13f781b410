# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator forget`: announces that a repository was removed by hand."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress

import click

from ..config import Config
from ..log import EVENTS, Log, NewRecord
from ..outbox.entry import NewestEvent, next_event
from ..outbox.file import outbox_of
from ..relay.lacking import describe_unmounted, find_gone, find_places, find_unmounted
from ..relay.scan import find_repositories, is_folder, may_hold_repositories
from ..relay.settings import RelaySettings
from ..status.follower import read_picture
from ..status.timeline import find_event
from ..words import wire
from ..words.errors import MalformedEvent, Refused
from ..words.event import Changes, Event, Type
from ..words.records import RepositoryState
from .options import relay_of, with_config, with_yes
from .progress import metered_log


@click.command()
@click.argument("repository")
@with_yes
@click.option("--mounted", is_flag=True, help="Go on although a folder is empty: all file systems are mounted.")
@with_config
def command(config: Config, repository: str, yes: bool, mounted: bool) -> None:
    """Announce the deletion of REPOSITORY (path or id), which was removed by hand.

    Run it on the master. Mirrors set the repository aside; backup mirrors keep it. Events that the relay had not sent are
    lost with the folder.
    """
    relay = relay_of(config)
    if relay is None or not all(os.path.isdir(root) for root in relay.roots):
        raise Refused(f"{config.file}: the folders of [relay.roots] are not all here; run this on the master's machine")
    with metered_log(config) as log:
        picture = read_picture(log)
        state = picture.find_repository(repository, is_living=True)
        _refuse_present(relay, state)
        if not mounted:
            _refuse_unmounted(relay, picture.states, state)
        event = _make_deletion(log, state)
        if not yes:
            raise Refused(f"{state.path} ({state.repository}) would be deleted on all mirrors; add --yes to do it")
        message = NewRecord(
            topic=EVENTS, key=event.repository, value=wire.encode(event), headers=wire.headers(event, relay.source)
        )
        log.append([message])
    click.echo(f"{state.path}: wrote its deletion into the log, event {event.seq}")


def _refuse_present(relay: RelaySettings, state: RepositoryState) -> None:
    """Raise Refused if the repository, or its unsent deletion, is below a root."""
    for folder in find_places(state.path, relay.roots):
        try:
            os.lstat(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            _refuse_unseen(error)
        raise Refused(f"{state.path}: there is {folder}; to delete it, run `hg replicatedelete` in it")
    for root in relay.roots:
        try:
            is_deleted = is_folder(os.path.join(root, ".vcsreplicator", "deleted", state.repository))
        except OSError as error:
            raise Refused(_describe_unseen(error)) from error
        if is_deleted:
            raise Refused(f"{state.path}: it was deleted, and the relay will send that: does it run?")
        for folder in find_repositories(root, _refuse_unseen):
            newest = None
            with suppress(MalformedEvent, OSError):
                newest = outbox_of(folder).newest()
            if newest is not None and newest.repository == state.repository:
                raise Refused(f"{state.path}: it was moved to {folder}; run `hg replicaterename` in it")


def _refuse_unmounted(relay: RelaySettings, states: Mapping[str, RepositoryState], state: RepositoryState) -> None:
    """Raise Refused if the repository may be on a file system that is not mounted."""
    known = [folder for root in relay.roots for folder in find_repositories(root)]
    gone = {*find_gone(states, relay.roots, known, {}, 0.0, source=relay.source), state.repository}
    places = [f"{place}/" for place in find_places(state.path, relay.roots)]
    for folder, count in find_unmounted(states, gone, relay.roots, known).items():
        if any(place.startswith(f"{folder.rstrip('/')}/") for place in places):
            hint = "mount it; if it is, and they were removed, add --mounted"
            raise Refused(f"{state.path}: {describe_unmounted(folder, count)} {hint}")


def _refuse_unseen(error: OSError) -> None:
    """Raise Refused if the repository may be in a folder that this user cannot read."""
    if may_hold_repositories(error):
        raise Refused(_describe_unseen(error))


def _describe_unseen(error: OSError) -> str:
    return f"{error.filename} cannot be read ({error.strerror}), and the repository may be there"


def _make_deletion(log: Log, state: RepositoryState) -> Event:
    """Return the event that deletes the repository.

    It follows the newest event in the log. Raises Refused if the log no longer has that event, or if it is not the newest one
    that the aggregator knows.
    """
    found = find_event(log, state, None, None)
    if found is None:
        raise Refused(
            f"{state.path}: its newest event is older than the retention of the log; restore the repository first"
        )
    last = found[0]
    if last.id != state.event:
        raise Refused(
            f"{state.path}: the aggregator has not read all its events, or they fork; see: vcsreplicator check"
        )
    return next_event(
        NewestEvent.of(last),
        Type.DELETED,
        time=time.time(),
        source=Type.DELETED.value,
        changes=Changes(added=None),
        after=last.after,
        settings=last.settings,
    )
