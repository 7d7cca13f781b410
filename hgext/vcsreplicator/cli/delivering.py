# SPDX-License-Identifier: GPL-2.0-or-later
"""The delivery of an event to the destinations, in words.

A destination's position behind a notice does not say that the message was delivered: it may have been rejected or skipped, the
destination may have begun later, and a webhook's position also passes a delivery that is owed. So nothing here says more than its
source. The module loads no code that draws on a terminal.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from ..config import Config
from ..log import ERRORS, LARGEST, NOTICES, Log, Record
from ..log.table import read_records
from ..words.errors import BadConfig, MalformedEvent, Unavailable
from ..words.event import Event
from ..words.records import ErrorRecord
from ..words.shape import from_json
from ..words.streams import message_id, streams

if TYPE_CHECKING:
    from notifier.publishing.settings import NotifierSettings

# The search for the rejects of a notice begins with so many of the newest, and again with so many times more.
_NEWEST, _FARTHER = 100, 8


def read_notifier(config: Config) -> "NotifierSettings | None":
    """Read the settings of the notifier; None where the file has none."""
    from notifier.publishing.settings import read

    return read(config.tables, config.file) if "notifier" in config.tables else None


def describe_delivery(
    settings: "NotifierSettings | None", name: str, event: Event, *, is_passed: bool, rejects: Sequence[str] = ()
) -> str:
    """Describe the delivery of an event's messages, if it has any, to a destination.

    `is_passed` says whether the destination's position is behind the notice, `rejects` why messages of the event were rejected.
    """
    from notifier.messages.public import public_url

    wanted = streams(event)
    if settings is not None and public_url(event.path, settings.public) is None:
        return "nothing to deliver: the repository is not public"
    if settings is not None and name in settings.destinations:
        wanted = tuple(stream for stream in wanted if stream.value in settings.destinations[name].types)
    if not wanted:
        return f"nothing to deliver: it gets no message of this event ({event.type})"
    if not is_passed:
        return "not yet delivered"
    if rejects:
        return f"rejected: {'; '.join(rejects)}"
    return _describe_webhook(settings, name, [message_id(event.id, stream) for stream in wanted]) or "passed"


def _describe_webhook(settings: "NotifierSettings | None", name: str, messages: Sequence[str]) -> str | None:
    """Describe these deliveries; None if no webhook destination has the name."""
    from notifier.clients.database import is_there
    from notifier.destinations.webhook.deliveries import Deliveries, DeliveryState
    from notifier.destinations.webhook.settings import DeliverySettings

    destination = settings.destinations.get(name) if settings is not None else None
    if not isinstance(destination, DeliverySettings):
        return None
    see = f"vcsreplicator deliveries list --destination {name}"
    if not is_there(destination.database):
        return f"passed; its deliveries are on the notifier's machine: {see}"
    try:
        with closing(Deliveries(destination.database)) as deliveries:
            counts = deliveries.count_states(messages)
    except (BadConfig, Unavailable):  # the command says why; guests of the dashboard read this too
        return f"passed; its deliveries cannot be read: {see}"
    if not counts:
        return "passed; no delivery of it is kept"
    summary = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return summary if counts.keys() == {DeliveryState.DELIVERED.value} else f"{summary}: {see}"


def find_rejects(log: Log, event: Event, notice: Record) -> Mapping[str, Sequence[str]]:
    """Find why messages of a notice, or the notice, were rejected, by destination."""
    found: dict[str, list[str]] = {}
    for record in _read_since(log, notice.time):
        if record.key != event.repository or not record.value:  # most are the decoder's, which have no key
            continue
        try:
            error = from_json(ErrorRecord, record.value, limit=LARGEST)
        except MalformedEvent:  # of another release
            continue
        is_same = error.topic == NOTICES and error.offset == notice.offset and error.key == notice.key
        if error.destination is not None and (is_same or error.reason.startswith(f"{event.id}.")):
            reason = error.reason.removeprefix(f"{event.id}.")
            found.setdefault(error.destination, []).append(f"{reason} (vcsreplicator errors show {record.offset})")
    return found


def _read_since(log: Log, since: float) -> Iterator[Record]:
    """Yield the records of `errors` that were written since, and some older ones."""
    beginning, end = log.beginnings(ERRORS)[0], log.ends(ERRORS)[0]
    count = _NEWEST
    while (start := max(beginning, end - count)) > beginning:
        first = next(read_records(log, {(ERRORS, 0): start}), None)
        if first is not None and first.time < since:
            break
        count *= _FARTHER
    return read_records(log, {(ERRORS, 0): start})
