# SPDX-License-Identifier: GPL-2.0-or-later
"""States of repositories, as the aggregator writes them."""

from typing import Any, Protocol

from hgext.vcsreplicator.words.records import RepositoryState


class Newest(Protocol):
    """The names of a repository's newest event: an event, a checkpoint, or the end of an outbox."""

    @property
    def repository(self) -> str: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def digest(self) -> str: ...


def state_of(newest: Newest, **members: Any) -> RepositoryState:
    """Make the state once the log has this event, with nothing released but for what `members` say."""
    names = {
        name: getattr(newest, name) for name in ("repository", "incarnation", "path", "generation", "seq", "digest")
    }
    return RepositoryState(**{**names, "event": newest.id, "released": 0, "noticed": 0, "roster": 1, **members})


def some_state(**members: Any) -> RepositoryState:
    """Make the state of a repository at its first event, released and announced, but for what `members` say."""
    names = {"repository": "a" * 32, "incarnation": "b" * 32, "path": "x", "generation": 1}
    level = {"seq": 1, "event": "c" * 32, "digest": "d" * 64, "released": 1, "noticed": 1, "roster": 1}
    return RepositoryState(**{**names, **level, **members})
