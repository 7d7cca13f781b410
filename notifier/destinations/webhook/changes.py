# SPDX-License-Identifier: GPL-2.0-or-later
"""What operators ask of the subscriptions and deliveries of a webhook destination."""

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from hgext.vcsreplicator.log.requests import NOTHING, OperatorRequest
from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import MalformedEvent, Rejected
from hgext.vcsreplicator.words.shape import NumberRange, plain, read

from ..state import SUBSCRIPTION, Kind
from .deliveries import Deliveries, DeliveryState, JsonObject
from .settings import DeliverySettings
from .signing import WrongKey, find_wrong
from .subscription import Subscription
from .subscriptions import SubscriptionTable

# A name becomes a label of metrics and a part of lines; older releases accepted any text.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")

# Seconds for which former keys may sign beside a new one.
MOST_OVERLAP = 31 * DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRotation:
    """A new key for a subscription; the former ones sign too for `overlap` seconds."""

    key: str = field(repr=False)
    overlap: Annotated[float, NumberRange(0, MOST_OVERLAP)]


def check_name(name: str) -> None:
    """Raise ValueError for text that is no name of a new subscription."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"expected at most 61 letters, digits, dots, hyphens and underscores, got {name[:80]!r}")


def request_subscription(name: str, subscription: Subscription) -> dict[str, Any]:
    """Return the argument of a request to add a subscription."""
    return {"name": name, SUBSCRIPTION: plain(subscription)}


def request_rotation(name: str, rotation: KeyRotation) -> dict[str, Any]:
    """Return the argument of a request to give a subscription a new key."""
    return {"name": name, SUBSCRIPTION: plain(rotation)}


def request_redelivery(rows: Sequence[JsonObject], exhausted: str | None = None) -> dict[str, Any]:
    """Return the argument of a request to send deliveries again: these, and all that a subscription gave up.

    It has no numbers: two databases may give one number to different deliveries.
    """
    names = [[row["subscription"], row["message"], row["replay"] or ""] for row in rows]
    return {"deliveries": names, "exhausted": exhausted}


def carry_out(request: OperatorRequest, deliveries: Deliveries, settings: DeliverySettings, *, now: float) -> str:
    """Carry out a request and return the answer; a repeat after a kill changes nothing else.

    Raises Rejected if it can never be carried out, Unavailable if the database is.
    """
    argument, who, subscriptions = request.members, request.who, deliveries.subscriptions
    if request.kind == Kind.REDELIVER:
        return _redeliver(argument, deliveries, who=who, now=now)
    name = read_name(request)
    match request.kind:
        case Kind.SUBSCRIBE:
            try:
                check_name(name)
                wanted = _read_subscription(argument, settings)
            except (ValueError, MalformedEvent, WrongKey) as error:
                return f"{NOTHING}added: {error}"
            if subscriptions.add(name, wanted, origin="command", who=who, now=now):
                return f"{name} added"
            is_same = any(each.name == name and each.subscription == wanted for each in subscriptions.all())
            return f"{name} added" if is_same else f"{NOTHING}added: there is a subscription {name!r} already"
        case Kind.ROTATE_SUBSCRIPTION:
            return _rotate_key(name, argument, subscriptions, who=who, now=now)
        case Kind.UNSUBSCRIBE:
            is_found, what = subscriptions.remove(name, who=who, now=now), "removed"
        case Kind.PAUSE_SUBSCRIPTION:
            is_found, what = subscriptions.pause(name, "by an operator", who=who, now=now), "paused"
        case Kind.RESUME_SUBSCRIPTION:
            is_found, what = subscriptions.pause(name, None, who=who, now=now), "resumed"
        case _:
            raise Rejected("unknown kind of request; repeat it with the release that the notifier runs")
    return f"{name} {what}" if is_found else f"{NOTHING}{what}: there is no subscription {name!r}"


def _read_subscription(argument: Mapping[str, Any], settings: DeliverySettings) -> Subscription:
    """Return the wanted subscription; raise ValueError, MalformedEvent or WrongKey for a wrong one."""
    wanted = read(Subscription, argument.get(SUBSCRIPTION))
    if wanted.is_from_elsewhere:
        raise ValueError("expected each secret in a file: only the configuration may have secrets from elsewhere")
    settings.check_scheme(wanted)
    find_wrong(wanted.secrets, "--secret-file")
    return wanted


def _rotate_key(
    name: str, argument: Mapping[str, Any], subscriptions: SubscriptionTable, *, who: str, now: float
) -> str:
    stored = next((each for each in subscriptions.all() if each.name == name), None)
    try:
        rotation = read(KeyRotation, argument.get(SUBSCRIPTION))
        if stored is None:
            raise ValueError(f"there is no subscription {name!r}")
        if stored.origin == "file":
            raise ValueError(f"the keys of {name} are in the configuration; add a second secret there")
        wanted = stored.subscription
        if wanted.key != rotation.key:  # else a repeat after a kill
            wanted = wanted.rotate(rotation.key, rotation.overlap, now)
            subscriptions.change(stored, wanted, f"key rotated; {_describe_former(wanted, now)}", who=who, now=now)
    except (ValueError, MalformedEvent) as error:
        return f"{NOTHING}rotated: {error}"
    return f"{name} rotated; {_describe_former(wanted, now)}"


def _describe_former(wanted: Subscription, now: float) -> str:
    if not (former := wanted.list_former(now)):
        return "no former key signs"
    last = datetime.datetime.fromtimestamp(max(each.until for each in former), datetime.UTC)
    return f"the former key signs too until {last:%Y-%m-%d %H:%M:%S} UTC"


def _redeliver(argument: Mapping[str, Any], deliveries: Deliveries, *, who: str, now: float) -> str:
    named, exhausted = argument.get("deliveries"), argument.get("exhausted")
    if not isinstance(named, list) or not all(map(_is_name, named)) or not (exhausted is None or _is_text(exhausted)):
        raise Rejected("the request names no deliveries; ask with the program of this version")
    numbers = [number for each in named for number in deliveries.find_numbers(*each)]
    if exhausted is not None:
        found = deliveries.newest(state=DeliveryState.EXHAUSTED, subscription=exhausted, limit=1_000_000)
        numbers += [row["id"] for row in reversed(found)]
    done = deliveries.redeliver(list(dict.fromkeys(numbers)), who=who, now=now)
    if not done:
        return f"{NOTHING}queued: the subscriptions were removed, or the deliveries are no longer kept"
    return f"{len(done)} queued again"


def _is_name(found: object) -> bool:
    return isinstance(found, list) and len(found) == 3 and all(map(_is_text, found))


def _is_text(found: object) -> bool:
    """Return whether this is text that SQLite takes."""
    return isinstance(found, str) and found == found.encode("utf-8", "replace").decode()


def read_name(request: OperatorRequest) -> str:
    """Return the subscription that a request names; raises Rejected if it names none."""
    found = request.members.get("name")
    if not isinstance(found, str) or not _is_text(found):
        raise Rejected("the request has no name; ask with the program of this version")
    return found
