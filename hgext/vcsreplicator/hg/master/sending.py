# SPDX-License-Identifier: GPL-2.0-or-later
"""A push that sends its own events, where no relay runs: the relay's code under the same lock, and never beyond the patience."""

import os
import shutil
import threading
from typing import Any

from ...log import Log
from ...outbox import Outbox, Store
from ...relay.sending import Blobs, EventSender
from ..bundles import OfFolders
from ..settings import ExtensionSettings, root_of
from . import creation

LOST = b"the replication log lost events %d to %d, which are kept no more: an operator must run 'hg replicatesync'\n"


def send_now(repo: Any, folder: str, settings: ExtensionSettings, *, patience: float) -> bool:
    """Whether everything unsent was sent within `patience` seconds; what was not stays in the outbox.

    The work is done by a thread with a repository of its own: if the log hangs, the push goes on without it.
    """
    box = Outbox(repo.svfs)
    done: list[bool] = []

    def work() -> None:
        try:
            _send(repo.ui, folder, box, settings, patience, done)
        except Exception as problem:
            repo.ui.log(b"vcsreplicator", b"not sent: %s\n", repr(problem).encode())

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(patience)
    return done == [True]


def _send(ui: Any, folder: str, box: Outbox, settings: ExtensionSettings, patience: float, done: list[bool]) -> None:
    """Sends what this repository has, which goes to `done`, then what deleted ones still have; what raises leaves the rest."""
    from ...log.opening import open_log

    assert settings.log is not None
    with open_log(settings.log) as log:
        blobs = _blobs(settings)
        sender = EventSender(
            log=log, source=settings.source, bundles=OfFolders(skip_hgrc=False), blobs=blobs, timeout=patience
        )
        with box.sending(wait=True):
            if not _forked(ui, log, box):
                sender.send(folder, box)
                done.append(True)
        _send_deleted(sender, root_of(settings, folder))


def _forked(ui: Any, log: Log, box: Outbox) -> bool:
    """Whether the log tells another history of this repository; if so, it takes no pushes from now on.

    If the log lost records, all that the outbox keeps is to be sent again.
    """
    from ...outbox.forks import fork_behind, fork_between, known_state
    from ...outbox.losses import has_lost, send_again

    level = box.level()
    assert level is not None
    state = known_state(log, level.repository)
    reason = (None if state is None else fork_between(state, box)) or fork_behind(box)
    if reason is not None:
        box.set_fork(reason)
    if box.fork() is not None:
        return True
    if has_lost(log, box, state) and (missing := send_again(box, state)) is not None:
        ui.warn(LOST % missing)
    return False


def _send_deleted(sender: EventSender, root: str) -> None:
    """The relay's `look_at_deleted`, by the next push where there is no relay."""
    folder = os.path.join(root, creation.NOTES, creation.DELETED)
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        gone = os.path.join(folder, name)
        store = os.path.join(gone, ".hg", "store")
        if not os.path.isdir(store):  # the rest of one whose removal was interrupted
            shutil.rmtree(gone, ignore_errors=True)
            continue
        box = Outbox(Store(store))
        with box.sending(wait=False) as alone:
            if alone and box.has_unsent():
                sender.send(gone, box)
        if alone:
            shutil.rmtree(gone, ignore_errors=True)


def _blobs(settings: ExtensionSettings) -> Blobs | None:
    if settings.blobs is None:
        return None
    from ...log.blobs import open_blobs

    return open_blobs(settings.blobs)
