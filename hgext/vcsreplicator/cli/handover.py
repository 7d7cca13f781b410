# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator handover`: prepares a running master for the promotion of a mirror, or takes the master back."""

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import click

from ..config import Config
from ..hg.master.creation import DELETED, NOTES
from ..hg.promoting import close_outbox, read_handed
from ..hg.relaying import MasterRepositories
from ..log import Log
from ..log.ownership import name_owner
from ..mirror.jobs.promotion import HandedRepository, Handover, find_overtaken, find_rivals
from ..outbox.file import Outbox, outbox_of
from ..relay.mastership import HANDED_OVER, fork_of_former, read_master, take_back
from ..relay.scan import find_repositories, may_hold_repositories
from ..relay.settings import RelaySettings
from ..status.follower import Follower
from ..words.errors import Refused, counted, visible
from ..words.shape import to_json
from ..words.unexpected import describe
from .options import log_of, relay_of, with_config, with_wait

# Seconds between two looks at what is not sent yet.
LOOK = 0.5
# Repositories that one refusal names.
NAMED = 20
# What an operator can do about a closed repository that cannot be handed over.
REPAIR = "repair it, or move it out of the root, then run this again"


@click.command()
@click.option("--output", metavar="FILE", help="The file to write, for `promote --handover`.")
@click.option("--undo", is_flag=True, help="Make this the master again, before the new master has sent an event.")
@with_wait(default=60.0, help="How long to wait until all events are in the log.")
@with_config
def command(config: Config, output: str | None, undo: bool, wait: float) -> None:
    """Hand this master over to a mirror: every repository refuses pushes from now on.

    Run it on the master's machine, while its relay runs. It closes each repository once the log has all of its events,
    then writes the file with which `promote` compares the mirror's copies. If you interrupt the command, run it again.
    """
    relay = relay_of(config)
    if relay is None:
        raise Refused(f"{config.file}: section [relay] is missing; run this on the master's machine")
    if undo == (output is not None):
        raise click.UsageError("expected either --output FILE or --undo")
    for root in relay.roots:
        if owner := name_owner(root):
            raise Refused(f"{root} belongs to another user{owner}")
    with log_of(config) as log:
        if output is None:
            count = _take_back(relay, log, wait)
            click.echo(
                f"{relay.source} is the master; pushes to {counted(count, 'repository')} are accepted again: start its relay"
            )
            return
        known = read_master(log)
        if (fork := fork_of_former(known, relay.source)) is not None:
            raise Refused(fork.reason)
        repositories = MasterRepositories(relay.roots, relay.source)
        _close_all(relay, repositories, wait)
        handed = tuple(_read_all(relay, repositories))
    _write(Path(output), to_json(Handover(source=relay.source, promotion=known, repositories=handed)))
    click.echo(
        f"pushes to {counted(len(handed), 'repository')} are refused, and the log has all events; stop the relay, then on the "
        f"mirror's machine: vcsreplicator promote NAME --handover {shlex.quote(Path(output).name)} --yes"
    )


def _close_all(relay: RelaySettings, repositories: MasterRepositories, wait: float) -> None:
    """Make all repositories refuse pushes; raises Refused if events are not sent in time, having closed the others."""
    end = time.monotonic() + wait
    while left := list(_close_those_sent(relay, repositories)):
        if time.monotonic() > end:
            raise Refused(
                "\n".join(
                    (f"pushes to {counted(len(left), 'repository')} are still accepted:", *map(visible, left[:NAMED]))
                )
            )
        time.sleep(LOOK)


def _close_those_sent(relay: RelaySettings, repositories: MasterRepositories) -> Iterator[str]:
    """Close each repository whose events are all in the log, and describe the others."""
    unreadable: list[OSError] = []
    for root in relay.roots:
        for folder in find_repositories(root, unreadable.append):
            try:
                if not close_outbox(repositories.open(folder), HANDED_OVER):
                    yield f"{folder}: events are not in the log, or a push is on its way; does the relay run?"
            except Exception as error:  # accounts may write there
                yield f"{folder}: {describe(error)}"
        for folder in find_repositories(os.path.join(root, NOTES, DELETED)):
            yield f"{folder}: its deletion is not in the log; does the relay run?"
    yield from (str(error) for error in unreadable if may_hold_repositories(error))


def _read_all(relay: RelaySettings, repositories: MasterRepositories) -> Iterator[HandedRepository]:
    for root in relay.roots:
        for folder in find_repositories(root):
            box = outbox_of(folder)
            try:
                is_closed, newest = box.fork() == HANDED_OVER, box.newest()
                fingerprint, hgrc = read_handed(repositories, folder) if is_closed and newest else (None, None)
            except Exception as error:  # accounts may write there
                raise Refused(f"{visible(folder)}: cannot be read: {describe(error)}; {REPAIR}") from error
            if newest is None or fingerprint is None:
                raise Refused(f"{visible(folder)}: accepts pushes again, or is new; run this again")
            if hgrc is None and os.path.lexists(path := os.path.join(folder, ".hg", "hgrc")):
                click.echo(
                    f"{visible(path)}: not handed over, because other users may have written it; read it, and copy it by hand",
                    err=True,
                )
            yield HandedRepository(path=newest.path, fingerprint=fingerprint, hgrc=hgrc)


def _write(file: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, in one step: each hgrc may have passwords."""
    new = file.with_name(f"{file.name}.new")
    try:
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        new.replace(file)
    except OSError as error:
        raise Refused(f"{file}: cannot be written: {error.strerror}") from error


def _take_back(relay: RelaySettings, log: Log, wait: float) -> int:
    """Continue as the master, and return how many repositories accept pushes again.

    Those that refuse them for a reason other than a handover or a promotion still do.
    """
    known = read_master(log)
    others = frozenset[str]() if known is None else {known.source, *known.replaces} - {relay.source}
    boxes = {folder: outbox_of(folder) for root in relay.roots for folder in find_repositories(root)}
    here, sent = dict[str, list[tuple[int, str]]](), dict[int, set[int]]()
    for folder, box in boxes.items():
        with suppress(Exception):  # `check` names what is damaged
            if (newest := box.newest()) is not None:
                here.setdefault(newest.repository, []).append((newest.seq, folder))
        with suppress(OSError):
            mark = box.sent()
            if mark is not None and mark.partition is not None and mark.offset is not None:
                sent.setdefault(mark.partition, set()).add(mark.offset)
    with closing(Follower(log)) as follower:
        now, picture = follower.present(), follower.picture
    problems = [
        *find_rivals(picture, None, others, relay.source, now),
        *find_overtaken(picture.states.values(), here, others),
    ]
    if problems:
        raise Refused("\n".join(map(visible, problems[:NAMED])))
    take_back(log, relay.source, sent)
    return _open_all(boxes, wait)


def _open_all(closed: Mapping[str, Outbox], wait: float) -> int:
    """Make repositories accept pushes again, by folder; return how many refused them.

    Raises Refused if some cannot be opened in time, having opened the others.
    """
    left, count, end = dict(closed), 0, time.monotonic() + wait
    while True:
        reasons = dict[str, str]()
        for folder, box in list(left.items()):
            try:
                count += _open_one(box)
                del left[folder]
            except Exception as error:  # accounts may write there
                reasons[folder] = describe(error)
        if not reasons:
            return count
        if time.monotonic() > end:
            problems = [f"{folder}: {reason}" for folder, reason in reasons.items()]
            raise Refused(
                "\n".join(
                    (
                        f"this is the master; pushes to {counted(len(problems), 'repository')} may be refused; "
                        "remove each cause, run this again:",
                        *map(visible, problems[:NAMED]),
                    )
                )
            )
        time.sleep(LOOK)


def _open_one(box: Outbox) -> bool:
    """Make a repository accept pushes again; return whether a handover or a promotion had closed it."""
    with box.sending(wait=False) as alone:
        if not alone:
            raise Refused("another process sends its events")
        fork = box.fork()
        is_closed = fork is not None and fork.master is not None
        if is_closed:
            box.set_fork(None)
        return is_closed
