# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands of an operator on a master.

Commands that cannot be undone ask first, or take --yes. Each push loads this module, so a command imports what it alone needs.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from mercurial import error, registrar
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from . import settings

if TYPE_CHECKING:
    from .master.repository import MasterRepository

cmdtable: dict[Any, Any] = {}
command = registrar.command(cmdtable)

YES = (b"y", b"yes", False, b"do not ask")


@command(
    b"replicatesync",
    [(b"", b"bootstrap", False, b"only for mirrors that lack changesets; others skip it")],
    b"[--bootstrap]",
)
def replicatesync(ui: Ui, repo: localrepository, bootstrap: bool = False) -> None:
    """have all mirrors compare this repository with the master

    Each mirror fetches what it lacks, hgrc included. Nothing is lost or announced twice.
    """
    from ..outbox.entry import MirrorNeeds
    from ..words.event import Type
    from .master import announcing, capture
    from .master.acts import writing

    announcement = announcing.Announcement(
        kind=Type.SYNC,
        needs=MirrorNeeds.MASTER,
        hgrc=capture.read_hgrc(repo),
        detail={"reason": "requested", "bootstrap": "true" if bootstrap else "false"},
    )
    writing.announce(_require_replicated(repo), announcement, check_first=True)
    ui.status(b"wrote synchronization message into replication log\n")


@command(b"replicatehgrc", [], b"")
def replicatehgrc(ui: Ui, repo: localrepository) -> None:
    """send this repository's hgrc to all mirrors

    Only harmless settings are sent: texts and switches of [web], phases.publish and experimental.evolution. Hooks, extensions,
    aliases and everything else that can run or open something stay here.
    """
    from ..words.event import Type
    from .master import announcing, capture
    from .master.acts import writing

    announcement = announcing.Announcement(kind=Type.HGRC, hgrc=capture.read_hgrc(repo))
    writing.announce(_require_replicated(repo), announcement, check_first=True)
    ui.status(b"recorded hgrc in replication log\n")


@command(b"replicatedelete", [YES], b"[--yes]")
def replicatedelete(ui: Ui, repo: localrepository, yes: bool = False) -> None:
    """delete this repository here and on all mirrors

    The repository is moved aside at once and removed once the log has the deletion. Backup mirrors keep theirs.
    """
    from .master.acts import moving

    master = _require_original(repo)
    _confirm(ui, b"delete %s here and on all mirrors" % repo.root, yes=yes)
    if moving.delete(master):
        ui.status(b"wrote delete message into replication log\n")
        ui.status(b"repo deleted from local host\n")


@command(b"replicaterename", [YES], b"[--yes] [FOLDER]")
def replicaterename(ui: Ui, repo: localrepository, folder: bytes | None = None, yes: bool = False) -> None:
    """move this repository to another folder, here and on all mirrors

    Without FOLDER, for a repository that was moved by hand, its mirrors follow. The repository keeps its identity.
    """
    from .master.acts import moving

    master = _require_original(repo)
    if folder is not None:
        _confirm(ui, b"move %s to %s here and on all mirrors" % (repo.root, folder), yes=yes)
    path = moving.rename(master, None if folder is None else os.fsdecode(folder))
    if path is not None:
        ui.status(b"wrote rename message into replication log: %s\n" % path.encode("utf-8", "surrogateescape"))


@command(b"replicateadopt", [YES], b"[--yes]")
def replicateadopt(ui: Ui, repo: localrepository, yes: bool = False) -> None:
    """make this repository the true one, even where the log has another history of it

    For a master that was restored from a backup: the repository begins a new incarnation, and mirrors give up what they have beyond
    it. Pushes that were announced and are not in this repository are lost for good. Pushes that were made here since, and do not
    follow what the log has, reach the mirrors with the new incarnation and are not announced push by push. A repository that was
    copied from another gets an identity of its own.
    """
    from .master.acts import lifecycle

    master = _require_original(repo)
    _confirm(ui, b"replace what mirrors have of %s with what is here" % repo.root, yes=yes)
    newest = lifecycle.adopt(master)
    ui.status(b"this repository is %s, incarnation %s\n" % (newest.repository.encode(), newest.incarnation.encode()))


@command(b"sendheartbeat", [], b"", norepo=True)
def sendheartbeat(ui: Ui) -> None:
    """write a heartbeat into each partition of the replication log

    Needs [vcsreplicator] log. Checks that the log takes records, without touching a repository.
    """
    from ..log import EVENTS, NewRecord
    from ..log.opening import open_log
    from ..words.errors import ReplicationError
    from ..words.event import Heartbeat
    from ..words.wire import encode_heartbeat

    configuration = settings.read(ui)
    if configuration.log is None:
        raise error.ConfigError(b"config: [vcsreplicator] log: expected the URL of the log, got nothing")
    try:
        with open_log(configuration.log) as log:
            count = log.partitions(EVENTS)
            value = encode_heartbeat(Heartbeat(time=time.time(), sender=configuration.source))
            for partition in range(count):
                ui.status(b"sending heartbeat to partition %d\n" % partition)
                log.append([NewRecord(topic=EVENTS, key=None, value=value, partition=partition)], timeout=10)
    except ReplicationError as problem:
        raise error.Abort(f"error sending heartbeat: {problem}".encode()) from problem
    ui.status(b"wrote heartbeat message into %d partitions\n" % count)


@command(b"repohash|mozrepohash", [(b"", b"no-raw", False, b"leave out the hashes of unfiltered data")], b"[--no-raw]")
def repohash(ui: Ui, repo: localrepository, no_raw: bool = False) -> None:
    """print hashes of what this repository holds, to compare it with its copies

    Equal lines mean equal content; the order in which it arrived does not matter.
    """
    from . import hashes

    for name, value in hashes.lines(repo.unfiltered(), raw=not no_raw):
        ui.write(b"%s: %s\n" % (name.encode(), value.encode()))


def _require_replicated(repo: localrepository) -> MasterRepository:
    from .master import overlay, repository

    overlay.refuse(repo)
    master = repository.replicated(repo)
    if master is None:
        raise repository.not_configured()
    return master


def _require_original(repo: localrepository) -> MasterRepository:
    """Return the replicated repository; raises Abort in a share.

    The act would concern the repository that the share belongs to, and the question name the share.
    """
    from .master import repository

    master = _require_replicated(repo)
    if repository.is_share(master):
        raise error.Abort(
            b"%s is a share of a replicated repository" % repo.root,
            hint=b"run this in %s" % os.fsencode(repository.folder_of(master)),
        )
    return master


def _confirm(ui: Ui, what: bytes, *, yes: bool) -> None:
    """Raise Abort unless the operator agrees; without a terminal the answer is no."""
    if not yes and ui.promptchoice(b"%s (yN)? $$ &Yes $$ &No" % what, 1) != 0:
        raise error.Abort(b"nothing was done", hint=b"answer yes, or give --yes")
