# SPDX-License-Identifier: GPL-2.0-or-later
"""The keys of mirrors and of the aggregator in the roster. Pure."""

import re
from dataclasses import replace

from . import Mirror, Roster, RosterRequest, Verb, with_mirror

# Keys of a mirror: two during the change from one to the next.
KEYS = 2
# Keys of aggregators that the roster remembers: of an aggregator that changes its key, or of machines that stand by for each other.
AGGREGATOR_KEYS = 4

_PUBLIC_KEY = re.compile(r"x25519:[A-Za-z0-9+/]{43}=\Z")
_NO_AGGREGATOR_KEY = "the aggregator has no key to check seals with; set `key` in [aggregator] and restart it"
_MAKE_KEY = "make it on the mirror's machine: vcsreplicator key {}"


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


def with_sealed_from(roster: Roster, name: str, offset: int) -> Roster:
    """Return the next version of the roster, by which this mirror seals its acks.

    `offset` is that of the first sealed one.
    """
    mirror = roster.mirror(name)
    assert mirror is not None
    return with_mirror(roster, replace(mirror, sealed_from=offset))


def find_key_problem(roster: Roster, request: RosterRequest) -> str | None:
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


def change_keys(mirror: Mirror, request: RosterRequest, version: int) -> Mirror:
    """Return the mirror with the keys that it has after a request that fits them."""
    known = mirror.keys or ()
    if request.verb is Verb.REMOVE_KEY:
        left = tuple(key for key in known if key != request.key)
        return replace(mirror, keys=left or None, epoch=mirror.epoch if left else None, sealed_from=None)
    if request.verb in (Verb.ADD, Verb.ADD_KEY) and request.key is not None:
        has_begun = known and mirror.sealed_from is not None  # else what an earlier key sealed is of the past
        return replace(mirror, keys=(request.key, *known), epoch=mirror.epoch if has_begun else version)
    return mirror
