# SPDX-License-Identifier: GPL-2.0-or-later
"""The event that deletes what was removed by hand, for `forget` and the relay."""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress

from ...log import EVENTS, Log, NewRecord
from ...outbox.entry import NewestEvent, next_event
from ...outbox.file import outbox_of
from ...status.timeline import find_event
from ...words import wire
from ...words.clock import Clock
from ...words.errors import MalformedEvent, Refused
from ...words.event import Changes, Event, MasterSettings, Tip, Type
from ...words.records import RepositoryState
from ..mastership import fork_of_former, read_master
from ..scan import find_repositories, is_folder, may_hold_repositories
from .finding import find_places

# What an event says of the changelog if the log no longer has the event before it. Mirrors do not compare it for a deletion.
_UNKNOWN = Tip(length=0, node="0" * 40)


def refuse_present(roots: Mapping[str, str], state: RepositoryState) -> None:
    """Raise Refused if the repository, or its unsent deletion, is below a root."""
    for folder in find_places(state.path, roots):
        try:
            os.lstat(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            _refuse_unseen(error)
        raise Refused(f"{state.path}: there is {folder}; to delete it, run `hg replicatedelete` in it")
    for root in roots:
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


def make_deletion(log: Log, state: RepositoryState, clock: Clock, stop: threading.Event | None = None) -> Event:
    """Return the event that deletes the repository and follows its newest event.

    Raises Refused if the log has a newer event than the aggregator knows, and ReadStopped once `stop` is set.
    """
    found = find_event(log, state, None, None, stop=stop)
    last = None if found is None else found[0]
    if last is not None and last.id != state.event:
        raise Refused(
            f"{state.path}: the aggregator has not read all its events, or they fork; see: vcsreplicator check"
        )
    names = {
        name: getattr(state, name) for name in ("repository", "incarnation", "path", "generation", "seq", "digest")
    }
    return next_event(
        NewestEvent(**names, id=state.event),
        Type.DELETED,
        time=clock.now(),
        source=Type.DELETED.value,
        changes=Changes(added=None),
        after=_UNKNOWN if last is None else last.after,
        settings=MasterSettings() if last is None else last.settings,
    )


def append_deletion(log: Log, event: Event, source: str) -> None:
    """Write a deletion into the log; it is there when this function returns.

    Raises Refused for the source of a master in whose place a mirror was promoted.
    """
    if (fork := fork_of_former(read_master(log), source)) is not None:
        raise Refused(fork.reason)
    headers = wire.headers(event, source)
    log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event), headers=headers)])


def _refuse_unseen(error: OSError) -> None:
    """Raise Refused if the repository may be in a folder that this user cannot read."""
    if may_hold_repositories(error):
        raise Refused(_describe_unseen(error))


def _describe_unseen(error: OSError) -> str:
    return f"{error.filename} cannot be read ({error.strerror}), and the repository may be there"
