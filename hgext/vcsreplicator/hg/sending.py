# SPDX-License-Identifier: GPL-2.0-or-later
"""A push that sends its own events, where no relay runs: the relay's code under the same lock, and never beyond the patience."""

import threading
from typing import Any

from ..outbox import Outbox
from ..relay_sending import Blobs, Sender
from .bundles import OfFolders
from .settings import Settings


def send_now(repo: Any, folder: str, settings: Settings, *, patience: float) -> bool:
    """Whether everything unsent was sent within `patience` seconds; what was not stays in the outbox.

    The work is done by a thread with a repository of its own: if the log hangs, the push goes on without it.
    """
    box = Outbox(repo.svfs)
    done: list[bool] = []
    worker = threading.Thread(target=lambda: done.append(_send(folder, box, settings, patience)), daemon=True)
    worker.start()
    worker.join(patience)
    return done == [True]


def _send(folder: str, box: Outbox, settings: Settings, patience: float) -> bool:
    from ..log.opening import open_log

    assert settings.log is not None
    try:
        with open_log(settings.log) as log, box.sending(wait=True):
            blobs = _blobs(settings)
            Sender(
                log=log, source=settings.source, bundles=OfFolders(skip_hgrc=False), blobs=blobs, timeout=patience
            ).send(folder, box)
    except Exception:
        return False
    return True


def _blobs(settings: Settings) -> Blobs | None:
    if settings.blobs is None:
        return None
    from ..blobs import open_blobs

    return open_blobs(settings.blobs)
