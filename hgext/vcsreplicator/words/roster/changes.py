# SPDX-License-Identifier: GPL-2.0-or-later
"""How requests change the roster. Pure.

But for a joining mirror, a change takes effect at once, on all that is not yet announced:

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
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from ..errors import MalformedEvent, Refused
from ..event import is_identifier
from ..rules import Rules, check_rules
from ..shape import to_json
from . import KEY, Decision, Mirror, MirrorRole, MirrorState, Roster, RosterRequest, Verb, with_mirror
from .keys import change_keys, find_key_problem

# How many decisions the roster remembers.
RECENT = 50

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
# The roster keeps requests, and is one record.
_REQUEST_LIMIT = 16 * 1024
_RESERVED = frozenset({"aggregator", KEY})


def decide(roster: Roster, request: RosterRequest, *, positions: Mapping[int, int], now: float) -> Roster:
    """Return the roster after the request, as its next version.

    `positions` are the aggregator's in `events`, the joining point of a mirror that joins now. The decision itself is not yet
    among `recent`: see `remember`. Raises Refused with the reason, one line for the operator who asked.
    """
    problem = (
        _find_problem(request)
        or _out_of_place(roster.mirror(request.mirror), request)
        or find_key_problem(roster, request)
    )
    if problem is not None:
        raise Refused(problem)
    if request.verb is Verb.ALLOW_EMPTY:
        return replace(roster, version=roster.version + 1, allow_empty=bool(request.allow))
    if request.verb is Verb.REQUIRE_KEYS:
        return replace(roster, version=roster.version + 1, requires_keys=request.allow or None)
    changed = _change_mirror(roster.mirror(request.mirror), request, positions, now)
    return with_mirror(roster, change_keys(changed, request, roster.version + 1))


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
    if request.verb is Verb.ADD:
        return f"add: mirror {mirror.name} is in the roster already, and is {mirror.state.value}"
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
