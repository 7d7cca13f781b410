# SPDX-License-Identifier: GPL-2.0-or-later
"""The roster: the mirrors, which of them gate, and how requests change it. Pure.

A mirror *gates* a repository when the notices of that repository wait for it: it is active or joining, carries the repository
(its rules include the path), is not a backup, and was not deactivated for this repository. A joining mirror gates what came after
the point at which it joined; everything else takes effect at once, on all that is not yet announced:

    verb         from               to         what is in flight
    add          (new), removed     joining    waits for it only if the log took the event after the joining point
    join         inactive           joining    the same
    (by itself)  joining            active     once it serves all that was released; from then on everything waits for it
    activate     inactive, joining  active     everything not yet announced waits for it
    deactivate   active, joining    inactive   nothing waits for it any more; with a repository: nothing of that repository
    remove       inactive           removed    its levels are forgotten
    rules        any but removed    the same   repositories that it no longer carries stop waiting for it, new ones wait
    add-key      any but removed    the same   with its first key: levels count again once the mirror has sealed them
    candidate    any but removed    the same   it is meant to become the master if the master is lost, or not any more
    remove-key   any but removed    the same   levels sealed with that key alone do not count; without any key, all count
    allow-empty                                whether notices go out when no mirror gates
    require-keys                               whether levels of mirrors without a key count

Operators' requests travel in the topic `roster-requests`; the aggregator decides each at a version of the roster, in its
transaction, and keeps the newest decisions in the roster, where the operators find them. Topic `roster`, key `roster`.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .errors import MalformedEvent, Refused
from .event import is_identifier
from .rules import Rules, check_rules
from .shape import Count, Time, extensible, to_json

KEY = "roster"
# How many decisions the roster remembers.
RECENT = 50
# Keys of a mirror: two during the change from one to the next.
KEYS = 2
# Keys of aggregators that the roster remembers: of an aggregator that changes its key, or of machines that stand by for each other.
AGGREGATOR_KEYS = 4

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_PUBLIC_KEY = re.compile(r"x25519:[A-Za-z0-9+/]{43}=\Z")
# The roster keeps requests, and is one record.
_REQUEST_LIMIT = 16 * 1024
_RESERVED = frozenset({"aggregator", KEY})


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
        """Return the mirror of this name, also a removed one; None if there is none."""
        return next((mirror for mirror in self.mirrors if mirror.name == name), None)

    def decision(self, request: str) -> Decision | None:
        """Return the decision about the request with this id; None if not kept."""
        return next((decision for decision in self.recent if decision.request.id == request), None)


def decide(roster: Roster, request: RosterRequest, *, positions: Mapping[int, int], now: float) -> Roster:
    """Return the roster after the request, as its next version.

    `positions` are the aggregator's in `events`, the joining point of a mirror that joins now. The decision itself is not yet
    among `recent`: see `remember`. Raises Refused with the reason, one line for the operator who asked.
    """
    problem = (
        _find_problem(request)
        or _out_of_place(roster.mirror(request.mirror), request)
        or _find_key_problem(roster, request)
    )
    if problem is not None:
        raise Refused(problem)
    if request.verb is Verb.ALLOW_EMPTY:
        return replace(roster, version=roster.version + 1, allow_empty=bool(request.allow))
    if request.verb is Verb.REQUIRE_KEYS:
        return replace(roster, version=roster.version + 1, requires_keys=request.allow or None)
    changed = _change_mirror(roster.mirror(request.mirror), request, positions, now)
    return with_mirror(roster, _change_keys(changed, request, roster.version + 1))


def with_aggregator_keys(roster: Roster, keys: tuple[str, ...]) -> Roster:
    """Return the next version of the roster, with these keys of the aggregator.

    They are its newest. Returns the same roster if it has them.
    """
    known = roster.aggregator_keys or ()
    if set(keys) <= set(known):
        return roster
    kept = (*keys, *(key for key in known if key not in keys))[:AGGREGATOR_KEYS]
    # Of what a mirror sealed for others, another aggregator cannot say whether it is sealed.
    mirrors = tuple(replace(mirror, sealed_from=None) for mirror in roster.mirrors)
    return replace(roster, version=roster.version + 1, aggregator_keys=kept, mirrors=mirrors)


def with_signing_keys(roster: Roster, keys: tuple[str, ...]) -> Roster:
    """Return the next version of the roster, with these keys of signatures.

    Returns the same roster if it has them.
    """
    if keys == (roster.signing_keys or ()):
        return roster
    return replace(roster, version=roster.version + 1, signing_keys=keys or None)


def with_mirror(roster: Roster, changed: Mirror) -> Roster:
    """Return the next version of the roster, with this mirror under its name."""
    others = [mirror for mirror in roster.mirrors if mirror.name != changed.name]
    mirrors = tuple(sorted([*others, changed], key=lambda mirror: mirror.name))
    return replace(roster, version=roster.version + 1, mirrors=mirrors)


def with_sealed_from(roster: Roster, name: str, offset: int) -> Roster:
    """Return the next version of the roster, by which this mirror seals its acks.

    `offset` is that of the first sealed one.
    """
    mirror = roster.mirror(name)
    assert mirror is not None
    return with_mirror(roster, replace(mirror, sealed_from=offset))


def remember(roster: Roster, request: RosterRequest, *, now: float, refusal: str | None = None) -> Roster:
    """Return the roster with the decision about this request as the newest."""
    decision = Decision(request=request, version=roster.version, time=now, refusal=refusal)
    return replace(roster, recent=(*roster.recent, decision)[-RECENT:])


def promoted(roster: Roster, name: str, *, now: float) -> Roster:
    """Return the roster with the joining mirror of this name made active.

    A mirror is promoted once it serves all that was released; the decision is among `recent`.
    """
    mirror = roster.mirror(name)
    assert mirror is not None
    reason = "serves all that was released"
    request = RosterRequest(
        id=f"level-{name}-{roster.version}", verb=Verb.ACTIVATE, mirror=name, who="aggregator", time=now, reason=reason
    )
    active = replace(mirror, state=MirrorState.ACTIVE, joined=None, since=now)
    return remember(with_mirror(roster, active), request, now=now)


# The states in which a mirror may be when an operator uses a verb on it.
FROM: Mapping[Verb, tuple[MirrorState, ...]] = {
    Verb.ADD: (MirrorState.REMOVED,),
    Verb.JOIN: (MirrorState.INACTIVE,),
    Verb.ACTIVATE: (MirrorState.INACTIVE, MirrorState.JOINING),
    Verb.DEACTIVATE: (MirrorState.ACTIVE, MirrorState.JOINING),
    Verb.REMOVE: (MirrorState.INACTIVE,),
    Verb.RULES: (MirrorState.ACTIVE, MirrorState.JOINING, MirrorState.INACTIVE),
    Verb.ADD_KEY: (MirrorState.ACTIVE, MirrorState.JOINING, MirrorState.INACTIVE),
    Verb.REMOVE_KEY: (MirrorState.ACTIVE, MirrorState.JOINING, MirrorState.INACTIVE),
    Verb.CANDIDATE: (MirrorState.ACTIVE, MirrorState.JOINING, MirrorState.INACTIVE),
}
# The verbs that concern no single mirror.
WHOLE = (Verb.ALLOW_EMPTY, Verb.REQUIRE_KEYS)
_NO_AGGREGATOR_KEY = "the aggregator has no key to check seals with; set `key` in [aggregator] and restart it"
_MAKE_KEY = "make it on the mirror's machine: vcsreplicator key {}"
_STATE_AFTER: Mapping[Verb, MirrorState] = {
    Verb.JOIN: MirrorState.JOINING,
    Verb.ACTIVATE: MirrorState.ACTIVE,
    Verb.DEACTIVATE: MirrorState.INACTIVE,
    Verb.REMOVE: MirrorState.REMOVED,
}


def _find_problem(request: RosterRequest) -> str | None:
    """Return what is wrong with the request in itself; None if nothing is."""
    if not request.id or len(request.id) > 100 or not request.who.strip():
        return "a request needs an id of at most 100 characters, and who asks"
    if len(to_json(request)) > _REQUEST_LIMIT:
        return f"a request has at most {_REQUEST_LIMIT // 1024} KiB"
    if request.verb in (*WHOLE, Verb.CANDIDATE) and request.allow is None:
        return f"{request.verb.value}: expected yes or no"
    if request.verb in WHOLE:
        return None
    name = request.mirror or ""
    if not _NAME.match(name) or name in _RESERVED:
        return f"mirror {name[:70]!r}: expected lower-case letters, digits, dots and hyphens, at most 63"
    if request.repository is not None and request.verb not in (Verb.ACTIVATE, Verb.DEACTIVATE):
        return f"{request.verb.value}: concerns a whole mirror, not one repository"
    if request.repository is not None and not is_identifier(request.repository):
        return f"repository {request.repository[:40]!r}: expected an id of 32 hexadecimal digits"
    if request.verb is Verb.RULES and request.rules is None:
        return "rules: expected rules (empty ones carry everything)"
    try:
        check_rules(request.rules or Rules())
    except MalformedEvent as error:
        return str(error)
    return None


def _out_of_place(mirror: Mirror | None, request: RosterRequest) -> str | None:
    """Return why the request does not fit the mirror's state; None if it does."""
    if request.verb in WHOLE:
        return None
    if mirror is None:
        if request.verb is Verb.ADD:
            return None
        return f"there is no mirror {request.mirror}" + ("" if request.verb is Verb.REMOVE else "; add it first")
    if request.repository is not None:
        return _repository_out_of_place(mirror, request)
    if mirror.state in FROM[request.verb]:
        return None
    expected = " or ".join(state.value for state in FROM[request.verb])
    hint = ""
    if request.verb is Verb.REMOVE and mirror.state is not MirrorState.REMOVED:
        hint = f"; deactivate it first: vcsreplicator roster deactivate {mirror.name} --yes"
    return f"{request.verb.value}: mirror {mirror.name} is {mirror.state.value}, expected {expected}{hint}"


def _repository_out_of_place(mirror: Mirror, request: RosterRequest) -> str | None:
    if mirror.state is MirrorState.REMOVED:
        return f"{request.verb.value}: mirror {mirror.name} is removed"
    already = request.repository in mirror.deactivated
    if already == (request.verb is Verb.DEACTIVATE):
        return (
            f"{request.verb.value}: mirror {mirror.name} is {'not ' if already else ''}gating this repository already"
        )
    return None


def _find_key_problem(roster: Roster, request: RosterRequest) -> str | None:
    """Return why the request does not fit the keys of the roster; None if it does."""
    if request.verb is Verb.REQUIRE_KEYS and request.allow and not roster.aggregator_keys:
        return f"require-keys: {_NO_AGGREGATOR_KEY}"
    if request.verb is Verb.ADD and request.key is None:
        return f"add: mirrors need a key; {_MAKE_KEY.format(request.mirror)}" if roster.requires_keys else None
    if request.verb not in (Verb.ADD, Verb.ADD_KEY, Verb.REMOVE_KEY):
        return None
    verb, key, mirror = request.verb.value, request.key or "", roster.mirror(request.mirror)
    known = mirror.keys or () if mirror is not None and request.verb is not Verb.ADD else ()
    if request.verb is Verb.REMOVE_KEY:
        there = f"it has: {', '.join(known)}" if known else "it has none"
        return None if key in known else f"{verb}: mirror {request.mirror} does not have this key ({there})"
    if not _PUBLIC_KEY.match(key):
        return f"{verb}: {key[:60]!r} is no public key; {_MAKE_KEY.format(request.mirror)}"
    if not roster.aggregator_keys:
        return f"{verb}: {_NO_AGGREGATOR_KEY}"
    others = [one.name for one in roster.mirrors if key in (one.keys or ()) and (one.name != request.mirror or known)]
    if others:
        return f"{verb}: mirror {others[0]} has this key already"
    if len(known) >= KEYS:
        return f"{verb}: mirror {request.mirror} has {KEYS} keys; remove the key that it no longer uses: {known[-1]}"
    return None


def _change_keys(mirror: Mirror, request: RosterRequest, version: int) -> Mirror:
    """Return the mirror with the keys that it has after a request that fits them."""
    known = mirror.keys or ()
    if request.verb is Verb.REMOVE_KEY:
        left = tuple(key for key in known if key != request.key)
        return replace(mirror, keys=left or None, epoch=mirror.epoch if left else None, sealed_from=None)
    if request.verb in (Verb.ADD, Verb.ADD_KEY) and request.key is not None:
        has_begun = known and mirror.sealed_from is not None  # else what an earlier key sealed is of the past
        return replace(mirror, keys=(request.key, *known), epoch=mirror.epoch if has_begun else version)
    return mirror


def _change_mirror(mirror: Mirror | None, request: RosterRequest, positions: Mapping[int, int], now: float) -> Mirror:
    """Return the mirror after a request that fits its state."""
    if request.verb is Verb.ADD:
        fresh = Mirror(
            name=request.mirror or "",
            state=MirrorState.INACTIVE,
            role=request.role or MirrorRole.SERVING,
            rules=request.rules or Rules(),
        )
        return _move_mirror(fresh, MirrorState.INACTIVE if request.inactive else MirrorState.JOINING, positions, now)
    assert mirror is not None
    if request.repository is not None:
        others = set(mirror.deactivated) - {request.repository}
        wanted = others | {request.repository} if request.verb is Verb.DEACTIVATE else others
        return replace(mirror, deactivated=tuple(sorted(wanted)))
    if request.verb is Verb.RULES:
        return replace(mirror, rules=request.rules or Rules())
    if request.verb is Verb.CANDIDATE:
        return replace(mirror, candidate=request.allow or None)
    if request.verb in (Verb.ADD_KEY, Verb.REMOVE_KEY):
        return mirror
    return _move_mirror(mirror, _STATE_AFTER[request.verb], positions, now)


def _move_mirror(mirror: Mirror, state: MirrorState, positions: Mapping[int, int], now: float) -> Mirror:
    """Return the mirror in another state; if it joins, with its joining point."""
    joins = state is MirrorState.JOINING
    joined = {str(partition): offset for partition, offset in sorted(positions.items())} if joins else None
    return replace(mirror, state=state, joined=joined, since=now)
