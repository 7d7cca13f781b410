# SPDX-License-Identifier: GPL-2.0-or-later
"""Tasks for a worker process and its answers, pickled between them."""

from dataclasses import dataclass

from ..words.event import Event, event_names
from ..words.records import Reason
from ..words.wire import BundlePlace, Frame
from .checkpoint import Checkpoint
from .comparison import Fingerprint

# A worker's first message, before any task.
READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEvent:
    """One event as it was read, where, and at which `time` the log took it."""

    frame: Frame
    partition: int
    offset: int
    size: int
    time: float = 0.0

    @property
    def event(self) -> Event:
        return self.frame.event

    @property
    def inline(self) -> bool:
        """Whether the bundle, if there is one, is in the frame."""
        attachment = self.frame.header.attachment
        return attachment is None or attachment.where is BundlePlace.INLINE

    def is_large(self, limit: int) -> bool:
        """Return whether the bundle must be fetched and has more bytes than `limit`.

        True for every bundle that must come from the master.
        """
        attachment = self.frame.header.attachment
        return (
            attachment is not None
            and not self.inline
            and (attachment.where is BundlePlace.MASTER or attachment.size > limit)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Work on one repository: apply `items` in order, then serve what is released.

    `folder` is where the repository was last seen (None: not here). With `heal` the repository is first repaired for that reason.
    `released` is the newest sequence that may be served, of `incarnation`, unless the mirror has another event than
    `newest_known`, the newest that the aggregator saw (sequence, id, digest). With `leave` the repository is only set aside, in
    any state; with `keep` not even its deletion does that. `drops` tells the supervisor whether the items' queue still exists.
    """

    repository: str
    path: str
    folder: str | None
    items: tuple[ReadEvent, ...] = ()
    incarnation: str | None = None
    released: int = 0
    newest_known: tuple[int, str, str] | None = None
    heal: Reason | None = None
    leave: bool = False
    keep: bool = False
    drops: int = 0

    @property
    def names(self) -> dict[str, str | int]:
        """The names of its first event or of the repository, and a count."""
        own: dict[str, str | int] = {"repository": self.repository, "path": self.path, "events": len(self.items)}
        return own | (event_names(self.items[0].event) if self.items else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRepository:
    """A repository on the mirror's disk, and the sequence that it serves.

    A `checkpoint` of None means that the repository is damaged, see `problem`. `served_path` is its released path; a scan of all
    repositories finds it if newer events are applied. If it `is_aside`, it was deleted and is only kept.
    `is_locked` says whether a Mercurial without the extension can open it; only a scan of all repositories finds that out.
    """

    folder: str
    checkpoint: Checkpoint | None
    serving: int
    served_path: str | None = None
    problem: str | None = None
    is_aside: bool = False
    is_locked: bool | None = None

    def is_of(self, repository: str) -> bool:
        """Return whether it is the repository of this id, as far as it can be read."""
        return self.checkpoint is not None and self.checkpoint.repository == repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A request for each repository below the root, answered by `FoundRepository`s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A request to read a repository through while work on it goes on.

    The repository was at `seq`, and served `serving`. Answered by `Checked`.
    """

    repository: str
    folder: str
    seq: int = 0
    serving: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of reading a repository through.

    `problem` is None if there is none; `lower` is the checkpoint if that is lower than it was. `shown` is what clients see if that
    is less than was served: (what was served, what clients see). `sought` is the folder of the request if the repository was
    nowhere. A repository that changed meanwhile `is_undecided`: it may be sound or not. So is a repository whose reading needed
    more memory than the worker may take; `problem` says so, and the worker `is_spent`.
    """

    repository: str
    problem: str | None
    lower: Checkpoint | None = None
    shown: tuple[int, int] | None = None
    sought: str | None = None
    is_undecided: bool = False
    is_spent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A request to remove repositories that were set aside `age` seconds ago.

    `now` is the time in seconds since the epoch. Answered by itself, with the reasons why some were `kept`.
    """

    now: float
    age: float
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """A request to fill the caches of views, and, with `relock`, to set the lock."""

    repository: str
    folder: str
    relock: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a task ended early; `passing` when trying it again soon may be enough."""

    reason: Reason
    note: str
    passing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The outcome of a task: its first `done` items need no more work.

    `checkpoint` and `folder` are the mirror's present ones (None: nothing), `serving` the sequence it serves since `served_at`.
    `floor` is the next sequence that it can serve, if that is not the one after `serving` (0: it is). `gone` is the checkpoint of
    the event that deleted the repository here. A worker that reached its memory limit `is_spent`.
    """

    repository: str
    done: int
    checkpoint: Checkpoint | None
    folder: str | None
    serving: int
    served_at: float = 0.0
    trouble: Trouble | None = None
    gone: Checkpoint | None = None
    is_spent: bool = False
    floor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A request to compare a repository, released or not, with the master's.

    Answered by `FingerprintPair`.
    """

    folder: str
    path: str
    repository: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintPair:
    """The fingerprints of both sides.

    `here` is None if this mirror has no such repository. If a fingerprint is missing, `problem` says why: `here` alone is None if
    the repository here cannot be read, both are None if one of them was unavailable.
    """

    here: Fingerprint | None
    there: Fingerprint | None
    problem: str = ""
