# SPDX-License-Identifier: GPL-2.0-or-later
"""The roster: the mirrors, which of them gate, and operators' requests to change it. Pure.

A mirror *gates* a repository when the notices of that repository wait for it: it is active or joining, carries the repository
(its rules include the path), is not a backup, and was not deactivated for this repository. A joining mirror gates what came after
the point at which it joined.

Requests travel in the topic `roster-requests`; the aggregator decides each (`changes`) at a version of the roster, in its
transaction, and keeps the newest decisions in the roster, where the operators find them. Topic `roster`, key `roster`.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..rules import Rules
from ..shape import Count, Time, extensible

KEY = "roster"


class Verb(enum.StrEnum):
    """The kinds of requests."""

    ADD = "add"
    JOIN = "join"
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    REMOVE = "remove"
    RULES = "rules"
    ADD_KEY = "add-key"
    REMOVE_KEY = "remove-key"
    CANDIDATE = "candidate"
    ALLOW_EMPTY = "allow-empty"
    REQUIRE_KEYS = "require-keys"


class MirrorState(enum.StrEnum):
    """The states of a mirror."""

    JOINING = "joining"
    ACTIVE = "active"
    INACTIVE = "inactive"
    REMOVED = "removed"


class MirrorRole(enum.StrEnum):
    """The role of a mirror; nothing waits for a backup, which applies no deletion."""

    SERVING = "serving"
    BACKUP = "backup"


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """One mirror of the roster.

    `deactivated` are ids of repositories that do not wait for it; `since` is when it came into its state. `joined`, only while
    joining, is its joining point: partition of `events` → first offset that waits for it (an absent partition: all of it). `keys`
    are its public keys, the newest first: then only what it sealed counts (`keys.seal`). `epoch` is the version of the roster at
    which it got the first of them that it sealed with. From the offset `sealed_from` of `acks` on it sealed all that it wrote.
    A `candidate` is meant to become the master if the master is lost.
    """

    name: str
    state: MirrorState
    role: MirrorRole = MirrorRole.SERVING
    rules: Rules = field(default_factory=Rules)
    deactivated: tuple[str, ...] = ()
    joined: Mapping[str, Count] | None = None
    since: Time = 0.0
    keys: tuple[str, ...] | None = None
    epoch: Count | None = None
    sealed_from: Count | None = None
    candidate: bool | None = None

    @property
    def described_role(self) -> str:
        """The role, for operators."""
        return f"{self.role.value}, candidate" if self.candidate else self.role.value

    def carries(self, path: str) -> bool:
        """Return whether the repository at this wire path belongs on this mirror."""
        return self.state is not MirrorState.REMOVED and self.rules.carries(path)

    def gates(self, repository: str, path: str | None) -> bool:
        """Return whether the repository's notices wait for this mirror.

        They do from the joining point on (see `gates_at`). Without a path the mirror's rules are ignored.
        """
        return (
            self.state in (MirrorState.ACTIVE, MirrorState.JOINING)
            and self.role is not MirrorRole.BACKUP
            and repository not in self.deactivated
            and (path is None or self.rules.carries(path))
        )

    def gates_at(self, partition: int, offset: int) -> bool:
        """Return whether an event at this place of `events` waits for this mirror.

        It does from the joining point on; always, if the mirror is not joining.
        """
        return self.joined is None or offset >= self.joined.get(str(partition), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterRequest:
    """A request of an operator. Topic `roster-requests`, key `id`.

    `who` and `reason` are kept with the decision. `repository` (activate, deactivate) is an id: the request concerns this
    repository only. `role` and `inactive` belong to add: an inactive mirror is known and gates nothing until it joins. `rules`
    belong to add and rules, `allow` to allow-empty, require-keys and candidate.
    """

    id: str
    verb: Verb
    who: str
    time: Time
    reason: str
    mirror: str | None = None
    repository: str | None = None
    role: MirrorRole | None = None
    inactive: bool = False
    rules: Rules | None = None
    allow: bool | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of a request.

    It was done at `version`; or it was refused with the reason `refusal`, and the version stayed.
    """

    request: RosterRequest
    version: Count
    time: Time
    refusal: str | None = None


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """All mirrors by name, and the newest decisions.

    `version` counts the changes; `recent` are the decisions, oldest first. `aggregator_keys` are the public keys of the aggregator,
    the newest first. With `requires_keys`, levels of a mirror without a key do not count. `signing_keys` are the public keys of the
    aggregator's signatures, the newest first, while it signs notices: then mirrors sign what they serve.
    """

    version: Count = 0
    allow_empty: bool = False
    mirrors: tuple[Mirror, ...] = ()
    recent: tuple[Decision, ...] = ()
    aggregator_keys: tuple[str, ...] | None = None
    requires_keys: bool | None = None
    signing_keys: tuple[str, ...] | None = None

    @property
    def needs_seals(self) -> bool:
        """Whether levels of any mirror must be sealed."""
        return bool(self.requires_keys) or any(mirror.keys for mirror in self.mirrors)

    def mirror(self, name: str | None) -> Mirror | None:
        """Return the mirror of this name, even a removed one; None if there is none."""
        return next((mirror for mirror in self.mirrors if mirror.name == name), None)

    def decision(self, request: str) -> Decision | None:
        """Return the decision about the request with this id; None if not kept."""
        return next((decision for decision in self.recent if decision.request.id == request), None)


def with_mirror(roster: Roster, changed: Mirror) -> Roster:
    """Return the next version of the roster, with this mirror under its name."""
    others = [mirror for mirror in roster.mirrors if mirror.name != changed.name]
    mirrors = tuple(sorted([*others, changed], key=lambda mirror: mirror.name))
    return replace(roster, version=roster.version + 1, mirrors=mirrors)
