# SPDX-License-Identifier: GPL-2.0-or-later
"""What an event says that does not follow from a transaction's own changes, and how a transaction is told of it."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from mercurial import error

from ... import outbox
from ...outbox import Needs, NewestEvent
from ...words.event import Changes, Tip, Type
from ...words.value import Value

CAPTURE = "_vcsreplicator_capture"
QUIET = "_vcsreplicator_quiet"
NOT_CONFIGURED = (
    b"repository path not configured for replication",
    b"add its folder to [vcsreplicator-roots]",
)
LIFECYCLE = b"vcsreplicator-event"  # the transaction of an event that was prepared by `lifecycle`
NOTHING = Changes(added=None)


class Announcement(Value):
    """An event to come that does not follow from the transaction's own changes; `level` replaces the identity before it.

    `first` is where the revisions of its bundle begin, `source` what it names as the origin of the change (default: its type).
    """

    kind: Type
    source: str | None = None
    needs: Needs = Needs.NOTHING
    first: int = 0
    changes: Changes = NOTHING
    after: Tip | None = None
    level: Callable[[NewestEvent | None], NewestEvent] | None = None
    hgrc: Mapping[str, Mapping[str, str]] | None = None
    detail: Mapping[str, str] | None = None


def created(now: Tip, path: str, generation: int, origin: str, *, hgrc: Any) -> Announcement:
    """The first event of a repository, as it is now."""
    return Announcement(
        kind=Type.CREATED,
        needs=Needs.MASTER if now.length else Needs.NOTHING,
        after=now,
        level=lambda _before: outbox.first_level(path, generation),
        hgrc=hgrc,
        detail={"origin": origin},
    )


@contextlib.contextmanager
def quiet(repo: Any) -> Any:
    """Within, transactions of this repository tell nothing: what they do is told as one event by the caller."""
    repo = repo.unfiltered()
    setattr(repo, QUIET, True)
    try:
        yield
    finally:
        setattr(repo, QUIET, False)


def capture_of(tr: Any) -> Any:
    """The capture of a running transaction, to add announcements to; raises Abort outside the roots."""
    captured = getattr(tr, CAPTURE, None)
    if captured is None:
        raise error.Abort(*NOT_CONFIGURED[:1], hint=NOT_CONFIGURED[1])
    return captured
