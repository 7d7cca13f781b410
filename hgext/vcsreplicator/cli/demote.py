# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator demote`: saves what a former master accepted and did not send."""

import os
import shlex
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import click

from ..config import Config
from ..hg.master.creation import DELETED, NOTES
from ..hg.promoting import save_changesets
from ..hg.relaying import MasterRepositories
from ..log import EVENTS, Log
from ..outbox.entry import Entry, MirrorNeeds
from ..outbox.file import outbox_of
from ..outbox.losses import find_events
from ..relay.mastership import fork_of_former, read_master
from ..relay.scan import find_repositories
from ..words.errors import Refused, counted, visible
from ..words.event import Type
from ..words.unexpected import describe
from .options import log_of, relay_of, with_config
from .requests import when


@click.command()
@click.option("--output", required=True, metavar="FOLDER", help="The folder to make for the bundles.")
@with_config
def command(config: Config, output: str) -> None:
    """Save what a former master accepted and did not send, as bundles.

    Run it on the machine of a master that came back after a mirror was promoted in its place. It lists each event that the
    log does not have, and says how to push its changesets again. It changes nothing in the repositories. A log that was
    restored may have lost events after they were sent: their repositories are named.
    """
    relay = relay_of(config)
    if relay is None:
        raise Refused(f"{config.file}: section [relay] is missing; run this on the former master's machine")
    with log_of(config) as log:
        if fork_of_former(read_master(log), relay.source) is None:
            raise Refused(f"no mirror was promoted in place of {relay.source}: start its relay, which sends all events")
        places = [place for root in relay.roots for place in (root, os.path.join(root, NOTES, DELETED))]
        found = dict.fromkeys(each for place in places for each in find_repositories(place))
        doubtful = _find_lost(log, found)
    folder = Path(output).absolute()
    try:
        folder.mkdir()
    except OSError as error:
        raise Refused(f"{folder}: {error.strerror}; expected the path of a new folder") from error
    for repository in sorted(doubtful):
        click.echo(
            visible(
                f"{repository}: the log has lost its newest event, and perhaps others; what the new master lacks: "
                f"hg -R {shlex.quote(repository)} outgoing URL"
            ),
            err=True,
        )
    repositories, count = MasterRepositories(relay.roots, relay.source), 0
    for number, repository in enumerate(found, 1):
        try:
            unsent = [place.entry for place in outbox_of(repository).unsent()]
            for entry in unsent:
                click.echo(_describe(entry))
            count += len(unsent)
            if unsent:
                file = str(folder / f"{number}-{quote(unsent[0].event.path, safe='')[:200]}.hg")
                if save_changesets(repositories, repository, min(map(_find_first, unsent)), file):
                    click.echo(f"  in a clone from the new master: hg unbundle {shlex.quote(file)} && hg push")
        except Exception as error:  # accounts may write there
            doubtful.add(repository)
            click.echo(visible(f"{repository}: not saved: {describe(error)}"), err=True)
    click.echo(f"not sent: {counted(count, 'event')}", err=True)
    if doubtful:
        raise Refused(f"look at {counted(len(doubtful), 'repository')} before you remove anything: see above")


def _find_lost(log: Log, folders: Iterable[str]) -> set[str]:
    """Return the repositories whose newest sent event the log has lost; retention may have removed it."""
    sent: dict[int, list[tuple[int, str, str]]] = {number: [] for number in range(log.partitions(EVENTS))}
    lost = set[str]()
    for folder in folders:
        with suppress(OSError):
            mark = outbox_of(folder).sent()
            if mark is not None and mark.partition in sent:
                if mark.offset is None:
                    lost.add(folder)
                else:
                    sent[mark.partition].append((mark.offset, mark.id, folder))
    for number, marks in sent.items():
        first = log.beginnings(EVENTS, [number])[number] if marks else 0
        left, standing = {(offset, id) for offset, id, _ in marks if not 0 <= offset < first}, set[str]()
        while left:  # accounts may write marks: several of one offset
            wanted = dict(left)
            standing |= find_events(log, number, wanted, threading.Event())
            left -= set(wanted.items())
        lost |= {folder for offset, id, folder in marks if not 0 <= offset < first and id not in standing}
    return lost


def _find_first(entry: Entry) -> int:
    """Return the number from which on the changesets may be those of this event or of one behind it.

    An event such as a rename adds none. A strip gives other numbers to those of the events before it.
    """
    adds_none = entry.needs is MirrorNeeds.NOTHING and entry.event.type is not Type.STRIPPED
    return entry.event.after.length if adds_none else entry.first


def _describe(entry: Entry) -> str:
    event, push = entry.event, entry.event.changes.push
    what = (
        f"push {push.id} of {visible(push.user)}, {when(push.date)} UTC"
        if push
        else f"{event.type}, {when(event.time)} UTC"
    )
    names = ", ".join(bookmark.name for bookmark in event.changes.bookmarks)
    return f"{visible(event.path)}: event {event.seq}: {what}" + (f"; bookmarks {visible(names)}" if names else "")
