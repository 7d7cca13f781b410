# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator promote`: makes a mirror the master, after a handover or the loss of the master."""

import os
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import click

from ..aggregator.offline_roster import read_waiting
from ..config import Config
from ..hg.master.creation import NOTES, make_folder, note_generation, read_generation
from ..hg.promoting import continue_outbox, keep_drafts, read_copy, roll_back_copy, take_hgrc
from ..hg.relaying import MasterRepositories
from ..hg.replica.scan import scan
from ..log import EVENTS, Log
from ..log.ownership import name_owner
from ..mirror.checkpoint import Checkpoint
from ..mirror.jobs import promotion
from ..mirror.jobs.promotion import HandedHgrc, Handover
from ..mirror.notes import Notes
from ..mirror.service import lock_folder
from ..mirror.settings import MirrorSettings
from ..mirror.supervision import boot
from ..mirror.task import FoundRepository
from ..relay.mastership import claim, fork_of_former, read_master
from ..relay.settings import RelaySettings
from ..status import ALIVE, Picture
from ..status.follower import Follower
from ..status.timeline import read_at
from ..words import wire
from ..words.errors import Expired, MalformedEvent, Refused, counted, visible
from ..words.event import Event
from ..words.path import wire_path
from ..words.records import MasterRecord
from ..words.roster import Verb
from ..words.shape import GIB, from_json
from .options import complete_mirror, log_of, mirror_settings, relay_of, with_config, with_wait, with_yes
from .requests import ask_aggregator, make_request

# Bytes of a handover: a repository has about a thousand, and its hgrc.
HANDOVER_LIMIT = GIB

# What a mirror does not have of its master, after a handover, and otherwise.
NOT_HANDED = "Not on any mirror: files of LFS and largefiles that no client pulled. Copy them from the old master."
NEVER_HERE = (
    "Not on any mirror: pushes that the old master accepted and had not sent to the log (its outboxes have them), hooks and "
    "all settings of an hgrc but harmless ones, files of LFS and largefiles that no client pulled."
)


@click.command()
@click.argument("name", shell_complete=complete_mirror)
@click.option("--check", "is_check", is_flag=True, help="Only print what the mirror lacks, and change nothing.")
@click.option(
    "--handover", "handed", metavar="FILE", help="The file that `vcsreplicator handover` wrote on the old master."
)
@with_yes
@with_wait(default=30.0, help="How long to wait for the aggregator's decision.")
@with_config
def command(config: Config, name: str, is_check: bool, handed: str | None, yes: bool, wait: float) -> None:
    """Make the mirror NAME the master, after a handover or the loss of the master.

    Run it on the mirror's machine, with the mirror stopped and [relay] set to what the new master's relay will have.
    Each repository keeps its id, and the next push follows its newest event. If you interrupt the command, run it again.
    """
    settings, relay = mirror_settings(config, name), relay_of(config)
    if relay is None:
        raise Refused(f"{config.file}: section [relay] is missing: the new master needs it, with a source of its own")
    if owner := name_owner(settings.root):
        raise Refused(f"{settings.root} belongs to another user{owner}")
    handover = None if handed is None else _read_handover(handed)
    with lock_folder(settings), log_of(config) as log, closing(Follower(log)) as follower:
        if not is_check:
            _roll_back(settings, relay)
        # Before the reports: a promotion that is recorded later is found by `claim`, and an earlier one is in the picture.
        known = read_master(log)
        now, picture = follower.present(), follower.picture
        picture.require_roster()
        found = _find_here(settings)
        begun = known if known is not None and (known.source, known.mirror) == (relay.source, name) else None
        former = begun.replaces if begun else promotion.find_former(picture, known)
        problems = list(promotion.find_rivals(picture, known, former, relay.source, now))
        if not former:
            problems.append(
                f"the log names no master that {name} would replace, and a master that comes back would be a second one: start "
                "its relay once; if there is none, set up a new master (docs/by-hand.md)"
            )
        # The new master's own events are on its disk alone.
        if begun is None or all(state.source != relay.source for state in picture.states.values()):
            problems += _find_problems(settings, relay, log, picture, found)
            if handover is not None:
                problems += _find_differing(relay, handover, picture, found)
        if handover is not None and begun is None and handover.promotion != known:
            problems.append(
                f"{handed}: void, because its master was taken back or replaced since; make a new file there"
            )
        click.echo(NEVER_HERE if handover is None else NOT_HANDED, err=True)
        if problems:
            raise Refused("\n".join((f"{name} cannot become the master:", *map(visible, problems))))
        if is_check or not yes:
            click.echo(
                f"{name} can become the master, with {counted(len(found), 'repository')}; add --yes to do it", err=True
            )
            sys.exit(0 if is_check else 2)
        if (record := begun) is None:
            record = MasterRecord(source=relay.source, mirror=name, replaces=tuple(sorted(former)), time=time.time())
            claim(log, record, known)
            # From now on former masters send nothing; what they sent since the first look must be on the mirror.
            if late := _find_unread(settings, log):
                raise Refused("\n".join((f"{name} is not the master yet; run this again later:", *map(visible, late))))
        hgrc = {each.fingerprint.repository: each.hgrc for each in handover.repositories} if handover else {}
        _continue_all(relay, log, picture, found, hgrc)
        _leave_roster(log, follower, name, wait)
        _record_end(log, record)
        _put_away(settings)
    click.echo(
        f"{name} is the master {relay.source}, with {counted(len(found), 'repository')}; start its relay and web servers"
    )


def _read_handover(file: str) -> Handover:
    """Read what the old master wrote; the hooks of the new master are in it, so no other user may have changed it."""
    try:
        with open(file, "rb") as handed:
            about = os.fstat(handed.fileno())
            if about.st_uid not in (0, os.geteuid()) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                name = shlex.quote(file)
                raise Refused(
                    f"{file}: other users may have written it, and it decides the hooks of the new master; if you know that none "
                    f"did: chown root {name} && chmod go-w {name}"
                )
            return from_json(Handover, handed.read(HANDOVER_LIMIT), limit=HANDOVER_LIMIT)
    except (OSError, MalformedEvent) as error:
        raise Refused(f"{file}: expected what vcsreplicator handover wrote: {error}") from error


def _roll_back(settings: MirrorSettings, relay: RelaySettings) -> None:
    """Roll back transactions that a kill of the mirror or this command interrupted.

    Until then, files may show changes that were not committed.
    """
    repositories = MasterRepositories(relay.roots, relay.source)
    for each in scan(settings.root, settings.folder):
        if not each.is_aside:
            roll_back_copy(repositories, each.folder)


def _find_here(settings: MirrorSettings) -> dict[str, FoundRepository]:
    """Return the repositories of the mirror's root by id, without those that were deleted and set aside."""
    return {
        each.checkpoint.repository: each
        for each in scan(settings.root, settings.folder)
        if each.checkpoint is not None and not each.is_aside
    }


def _find_problems(
    settings: MirrorSettings,
    relay: RelaySettings,
    log: Log,
    picture: Picture,
    found: Mapping[str, FoundRepository],
) -> list[str]:
    """Say what the mirror lacks of the log."""
    problems = _find_unread(settings, log)
    with closing(Notes(Path(settings.folder) / "mirror.db")) as notes:
        problems += [
            f"{each.path}: detached ({each.reason}: {each.note}); start the mirror until it is healed"
            for each in notes.detached()
        ]
    roots = {os.path.realpath(folder): prefix for folder, prefix in relay.roots.items()}

    def find_path(folder: str) -> str | None:
        return wire_path(os.path.realpath(folder), roots)

    return [*problems, *promotion.find_lacks(picture, settings, found, find_path)]


def _find_differing(
    relay: RelaySettings, handover: Handover, picture: Picture, found: Mapping[str, FoundRepository]
) -> Iterator[str]:
    opener = MasterRepositories(relay.roots, relay.source)
    prints = {repository: read_copy(opener, each.folder) for repository, each in found.items()}
    here = {repository: each for repository, each in prints.items() if each is not None}
    return promotion.find_differing(handover, picture.states.values(), here)


def _find_unread(settings: MirrorSettings, log: Log) -> list[str]:
    stored, beginnings = log.stored(settings.group, EVENTS), log.beginnings(EVENTS)
    unread = sum(max(0, end - stored.get(each, beginnings[each])) for each, end in log.ends(EVENTS).items())
    what = f"the mirror has not applied {counted(unread, 'record')} of the log; start it until it is caught up"
    return [what] if unread else []


def _continue_all(
    relay: RelaySettings,
    log: Log,
    picture: Picture,
    found: Mapping[str, FoundRepository],
    hgrc: Mapping[str, HandedHgrc | None],
) -> None:
    """Write the outbox of each repository, with the hgrc that was handed over, and the generations of all paths."""
    repositories = MasterRepositories(relay.roots, relay.source)
    for root, prefix in relay.roots.items():
        for path, generation in promotion.list_generations(picture.states.values()).items():
            is_below = not prefix.strip("/") or f"{path}/".startswith(f"{prefix.strip('/')}/")
            if is_below and read_generation(root, path) < generation:
                note_generation(root, path, generation)
    for here in found.values():
        assert here.checkpoint is not None
        if here.checkpoint.deleted:  # which a backup keeps
            continue
        logged = _read_logged(log, here.checkpoint)
        try:
            take_hgrc(here.folder, hgrc.get(here.checkpoint.repository))
            keep_drafts(here.folder, here.checkpoint)
            continue_outbox(repositories.open(here.folder), here.checkpoint, logged)
        except OSError as error:
            raise Refused(f"{here.folder}: {error}; remove the cause, then run this again") from error


def _read_logged(log: Log, checkpoint: Checkpoint) -> Event | None:
    """Read the event of a checkpoint from the log; None if it expired there."""
    if checkpoint.offset < 0:
        return None
    with suppress(Expired, MalformedEvent):
        record = read_at(log, EVENTS, checkpoint.partition, checkpoint.offset)
        if record is not None and record.value is not None:
            return wire.decode(record.value).header.event
    return None


def _record_end(log: Log, record: MasterRecord) -> None:
    """Record the promotion anew, so that no other one succeeds before its relay had time to start; or raise Refused."""
    try:
        claim(log, replace(record, time=time.time()), record)
    except Refused as error:
        if (fork := fork_of_former(read_master(log), record.source)) is None:
            raise
        raise Refused(
            f"{record.mirror} is not the master: {fork.reason}; do not start its relay, and fill the mirror again "
            "(docs/operating.md)"
        ) from error


def _put_away(settings: MirrorSettings) -> None:
    """Move the mirror's own folder to the master's notes, so that its root is served as a master's."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(settings.root, boot.FILE))
    kept = os.path.join(settings.root, NOTES, "mirror")
    make_folder(settings.root, "generations")  # of a mirror without repositories none is noted
    if os.path.isdir(kept):  # a repeated promotion has made an empty one
        shutil.rmtree(settings.folder)
    else:
        os.rename(settings.folder, kept)


def _leave_roster(log: Log, follower: Follower, name: str, wait: float) -> None:
    """Deactivate the mirror, which another operator may have activated or be activating; raises Refused if it stays."""
    # Before the newest roster, which so has all that was decided until now.
    waiting = any(each.mirror == name for each in read_waiting(log, follower.picture.require_roster()))
    mirror = follower.update().require_roster().mirror(name)
    if waiting or (mirror is not None and mirror.state in ALIVE):
        decision, roster = ask_aggregator(log, make_request(Verb.DEACTIVATE, "promoted", mirror=name), wait)
        mirror = roster.mirror(name)
        if decision.refusal and mirror is not None and mirror.state in ALIVE:
            raise Refused(decision.refusal)
