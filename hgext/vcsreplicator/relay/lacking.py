# SPDX-License-Identifier: GPL-2.0-or-later
"""What the log lacks of a master's outboxes, found without the relay: it may be the relay that is down."""

import os
from collections.abc import Iterable

from ..log import Log
from ..outbox.file import Outbox, TornRecord
from ..outbox.folder import Store
from ..outbox.losses import EventPlace, find_standing
from ..status import SILENT
from ..status.findings import Finding
from ..words.errors import ReplicationError
from .scan import find_repositories


def find_lacking(roots: Iterable[str], log: Log, now: float) -> list[Finding]:
    """Find events that wait in an outbox for SILENT seconds, and those that were sent and that the log has lost.

    Of each partition only the newest event is looked for, because a log loses its newest records first. `now` is this machine's
    time, which stamped the events.
    """
    found: list[Finding] = []
    newest: dict[int, tuple[EventPlace, str]] = {}
    for root in roots:
        for folder in find_repositories(root):
            box = Outbox(Store(os.path.join(folder, ".hg", "store")))
            try:
                sent, first = box.sent(), next(box.unsent(), None)
                cause = box.fork() or "does the relay run?"
            except (OSError, ReplicationError, TornRecord) as error:
                found.append(Finding(level=1, text=f"{folder}: its outbox cannot be read: {error}"))
                continue
            if first is not None and now - first.entry.event.time > SILENT:
                waits = f"{folder}: events wait in its outbox for {now - first.entry.event.time:.0f} s: {cause}"
                found.append(Finding(level=2, text=waits))
            if sent is not None and sent.partition is not None and sent.offset is not None:
                place = EventPlace(id=sent.id, offset=sent.offset)
                if sent.partition not in newest or newest[sent.partition][0].offset < place.offset:
                    newest[sent.partition] = place, folder
    standing = find_standing(log, {partition: place for partition, (place, _) in newest.items()})
    for partition in newest.keys() - standing:
        folder = newest[partition][1]
        text = (
            f"{folder}: the log has lost its newest event, and perhaps others; the relay sends them again: does it run?"
        )
        found.append(Finding(level=2, text=text))
    return found
