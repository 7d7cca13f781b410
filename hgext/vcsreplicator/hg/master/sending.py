# SPDX-License-Identifier: GPL-2.0-or-later
"""A push that sends its own events by the relay's code and lock, in limited time."""

import os
import threading
from typing import TYPE_CHECKING

from ...log import Log
from ...outbox.file import Fork, Outbox, outbox_of
from ...outbox.folder import remove_folder
from ...relay.scan import is_folder
from ...relay.sending import EventSender
from ..bundles import RepositoryOpener
from . import creation

if TYPE_CHECKING:
    from mercurial.ui import ui as Ui

    from .repository import MasterRepository

LOST = b"the replication log lost events %d to %d, which are no longer kept: an operator must run 'hg replicatesync'\n"


def send_now(repo: "MasterRepository", patience: float) -> bool:
    """Send all unsent events; return whether all were sent within `patience` seconds.

    What is not sent stays in the outbox. Another thread does the work, so that the push continues if the log hangs.
    """
    done: list[bool] = []

    def work() -> None:
        try:
            _send(repo, done)
        except Exception as problem:
            repo.ui.log(b"vcsreplicator", b"not sent: %s\n", repr(problem).encode())

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(patience)
    return done == [True]


def _send(repo: "MasterRepository", done: list[bool]) -> None:
    """Send our events, report it in `done`, then send events of deleted repositories."""
    from ...log.blobs import open_blobs
    from ...log.opening import open_log

    settings, box = repo.replication_settings, Outbox(repo.svfs)
    assert settings.log is not None
    with open_log(settings.log) as log:
        sender = EventSender(
            log=log,
            source=settings.source,
            make_bundle=RepositoryOpener(skip_hgrc=False).make_bundle,
            store_blob=None if settings.blobs is None else open_blobs(settings.blobs).put,
            timeout=settings.patience,
        )
        with box.sending(wait=True):
            if not _is_forked(repo.ui, log, box, settings.source):
                sender.send(repo.replication_folder, box)
                done.append(True)
        send_deleted(repo.ui, sender, repo.replication_root)


def find_other(repo: "MasterRepository") -> Fork | None:
    """Return a fork if the log has another repository where this one, without events, is.

    Raises Unavailable if the log does not answer.
    """
    from ...log.opening import open_log
    from ...outbox.forks import fork_at_path, known_states

    assert repo.replication_settings.log is not None
    path = repo.replication_path
    generation = creation.read_generation(repo.replication_root, path) + 1
    with open_log(repo.replication_settings.log) as log:
        return fork_at_path(known_states(log), path, generation, None)


def _is_forked(ui: "Ui", log: Log, box: Outbox, source: str) -> bool:
    """Return whether the log has another history of this repository, or another master.

    If so, the repository refuses pushes from now on. If the log lost records, move the sent mark back, so that all kept events are
    sent again.
    """
    from ...outbox.forks import fork_at_path, fork_behind, fork_between, known_state, known_states
    from ...outbox.losses import has_lost, send_again
    from ...relay.mastership import fork_of_former, read_master

    newest = box.newest()
    assert newest is not None
    state = known_state(log, newest.repository)
    fork = fork_between(state, newest, box) if state is not None else None
    fork = fork or fork_of_former(read_master(log), source) or fork_behind(box)
    if fork is None and box.sent() is None:
        fork = fork_at_path(known_states(log), newest.path, newest.generation, newest.repository)
    if fork is not None:
        box.set_fork(fork)
    if box.fork() is not None:
        return True
    if has_lost(log, box, state) and (missing := send_again(box, state)) is not None:
        ui.warn(LOST % missing)
    return False


def send_deleted(ui: "Ui", sender: EventSender, root: str) -> None:
    """Send events of deleted repositories and remove these, as the relay's rounds do.

    What is left of an interrupted removal is removed. A former master sends and removes nothing.
    """
    from ...relay.mastership import fork_of_former, read_master

    folder = os.path.join(root, creation.NOTES, creation.DELETED)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    if names and fork_of_former(read_master(sender.log), sender.source) is not None:
        return
    for name in names:
        gone = os.path.join(folder, name)
        try:
            is_rest = not is_folder(os.path.join(gone, ".hg", "store"))
        except OSError as problem:
            ui.log(b"vcsreplicator", b"not sent: %s\n", repr(problem).encode())
            continue
        if is_rest:
            remove_folder(root, gone)
            continue
        box = outbox_of(gone)
        with box.sending(wait=False) as alone:
            if alone and box.has_unsent():
                sender.send(gone, box)
        if alone:
            remove_folder(root, gone)
