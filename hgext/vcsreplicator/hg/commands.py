# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands of an operator on a master. What cannot be taken back asks first, or takes --yes."""

import time
from typing import Any

from mercurial import error, registrar

from ..outbox import Needs
from ..words.errors import ReplicationError
from ..words.event import Heartbeat, Type
from . import hashes, settings
from .master import announcing, capture, lifecycle, overlay
from .text import path as path_text

cmdtable: dict[Any, Any] = {}
command = registrar.command(cmdtable)

YES = (b"y", b"yes", False, b"do not ask")


@command(
    b"replicatesync",
    [(b"", b"bootstrap", False, b"only for mirrors that are new; others skip it")],
    b"[--bootstrap]",
)
def replicatesync(ui: Any, repo: Any, bootstrap: bool = False) -> None:
    """ask all mirrors to bring this repository level with the master

    Each mirror compares what it has with the master and fetches what it lacks, hgrc included. Nothing is lost or announced twice.
    """
    announcement = announcing.Announcement(
        kind=Type.SYNC,
        needs=Needs.MASTER,
        hgrc=capture.hgrc_of(repo),
        detail={"reason": "requested", "bootstrap": "true" if bootstrap else "false"},
    )
    lifecycle.announce(_replicated(repo), announcement, told=False)
    ui.status(b"wrote synchronization message into replication log\n")


@command(b"replicatehgrc", [], b"")
def replicatehgrc(ui: Any, repo: Any) -> None:
    """send this repository's hgrc to all mirrors

    Only harmless settings travel: texts and switches of [web], phases.publish and experimental.evolution. Hooks, extensions,
    aliases and everything else that can run or open something stay here.
    """
    announcement = announcing.Announcement(kind=Type.HGRC, hgrc=capture.hgrc_of(repo))
    lifecycle.announce(_replicated(repo), announcement, told=False)
    ui.status(b"recorded hgrc in replication log\n")


@command(b"replicatedelete", [YES], b"[--yes]")
def replicatedelete(ui: Any, repo: Any, yes: bool = False) -> None:
    """delete this repository here and on all mirrors

    The repository is moved aside at once and removed once the log knows. Backup mirrors keep theirs.
    """
    repo = _replicated(repo)
    _ask(ui, b"delete %s here and on all mirrors" % repo.root, yes)
    lifecycle.delete(repo)
    ui.status(b"wrote delete message into replication log\n")
    ui.status(b"repo deleted from local host\n")


@command(b"replicaterename", [YES], b"[--yes] [FOLDER]")
def replicaterename(ui: Any, repo: Any, folder: bytes | None = None, yes: bool = False) -> None:
    """move this repository to another folder, here and on all mirrors

    Without FOLDER, the repository was moved by hand and its mirrors follow. The repository keeps its identity.
    """
    repo = _replicated(repo)
    if folder is not None:
        _ask(ui, b"move %s to %s here and on all mirrors" % (repo.root, folder), yes)
    path = lifecycle.rename(repo, None if folder is None else path_text(folder), settings.read(repo.ui))
    ui.status(b"wrote rename message into replication log: %s\n" % path.encode("utf-8", "surrogateescape"))


@command(b"replicateadopt", [YES], b"[--yes]")
def replicateadopt(ui: Any, repo: Any, yes: bool = False) -> None:
    """accept this repository as the truth, whatever the log knows of it

    For a master that was restored from a backup: the repository begins a new incarnation, and mirrors give up what they have beyond
    it. Pushes that were announced and are not in this repository are gone for good. What was pushed here since and does not follow
    what the log has reaches the mirrors with it, and is not announced push by push. For a repository that was copied from another:
    it gets an identity of its own.
    """
    repo = _replicated(repo)
    _ask(ui, b"replace what mirrors have of %s by what is here" % repo.root, yes)
    level = lifecycle.adopt(repo)
    ui.status(b"this repository is %s, incarnation %s\n" % (level.repository.encode(), level.incarnation.encode()))


@command(b"sendheartbeat", [], b"", norepo=True)
def sendheartbeat(ui: Any) -> None:
    """write a sign of life into each partition of the replication log

    Needs [vcsreplicator] log. Tells whether the log takes records, without touching a repository.
    """
    from ..log import EVENTS, NewRecord
    from ..log.opening import open_log
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
def repohash(ui: Any, repo: Any, no_raw: bool = False) -> None:
    """print hashes of what this repository holds, to compare it with its copies

    Equal lines mean equal content, whatever the order in which it arrived.
    """
    for name, value in hashes.lines(repo.unfiltered(), raw=not no_raw):
        ui.write(b"%s: %s\n" % (name.encode(), value.encode()))


def _replicated(repo: Any) -> Any:
    overlay.refuse(repo)
    if not getattr(repo, "announces_changes", False):
        message, hint = announcing.NOT_CONFIGURED
        raise error.Abort(message, hint=hint)
    return repo.unfiltered()


def _ask(ui: Any, what: bytes, yes: bool) -> None:
    """Goes on only if told so; without a terminal the answer is no."""
    if not yes and ui.promptchoice(b"%s (yN)? $$ &Yes $$ &No" % what, 1) != 0:
        raise error.Abort(b"nothing was done", hint=b"answer yes, or give --yes")
