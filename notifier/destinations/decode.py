# SPDX-License-Identifier: GPL-2.0-or-later
"""The destination `decode`, which writes pushes to the decoder's input.

Each changeset of a push becomes one raw message of `eng-workflow/hgpush/1`, the head last. The id of a message is made of event
and changeset, so the decoder drops a message that comes twice. Every reader of our messages can compute this id: the attribute
`origin`, which no client of the edge can write, keeps what clients submit apart from it. The address and the client from which the
push came are attributes, which no output of the decoder has. A notice counts as delivered once the topic or the broker has all of
its changesets.
"""

import threading
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from hgext.vcsreplicator.words.event import PushConnection
from hgext.vcsreplicator.words.streams import Stream

from ..delivery.destination import DeliveryOutcome, DeliveryThreads, Destination
from ..delivery.window import PATIENCE, Delivery, Patience
from ..messages.message import Json, Message, clean, to_text
from ..messages.pushes import QueuedPush
from ..messages.raw import NOTIFIER, NOTIFIER_TYPES, ORIGIN, RawMessage, raw_topic, to_record, write_timestamp
from ..services.decode.settings import DecodeSettings, PlaceKind, read_place
from .hgpush.lookup import AT_ONCE, ChangesetLookup, check_mirror_url

if TYPE_CHECKING:
    from ..services.decode.queues import InputQueue

# Messages of one append.
BATCH = 500

# Seconds that the log may take for one append.
_APPEND_WITHIN = 5.0

# Where a changeset is submitted, without its id.
_URI = f"/submit/{NOTIFIER_TYPES[0].replace('.', '/')}/1/"

_TYPES = (Stream.CHANGEGROUP.value,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderDestinationSettings:
    """The table of a destination of type `decode`.

    To ask for changesets, `mirror_url` replaces scheme and host of the public URLs; `mirror_ca_file` holds the certificate
    authorities for it. `decoder` and `log` are not keys of the table: `decoder` is the section [decode], whose input
    gets the messages, and `log` is the log of the same file.
    """

    takes_connections: ClassVar[bool] = True

    decoder: DecodeSettings | None = None
    log: str = ""
    mirror_url: str | None = None
    mirror_ca_file: str | None = None
    types: tuple[str, ...] = _TYPES
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def __post_init__(self) -> None:
        if self.types != _TYPES:
            raise ValueError(f"types: decode has {_TYPES[0]} only")
        check_mirror_url(self.mirror_url)

    def open(self, name: str, clock: Clock, log: Log) -> Destination:
        assert self.decoder is not None
        lookup = ChangesetLookup(self.mirror_url, self.mirror_ca_file, clock, with_obsolete=True)
        place = read_place(self.decoder.input)
        if place.kind is PlaceKind.LOG:
            return DecoderDestination(lookup, InputTopic(open_log(self.log), place.name))
        from ..services.decode.queues import InputQueue  # its client takes a tenth of a second to load

        return DecoderDestination(lookup, InputQueue(self.decoder, place.name, clock, name))


class InputTopic:
    """The decoder's input, to write to; here a topic of the log.

    One thread at a time uses it.
    """

    def __init__(self, log: Log, topic: str) -> None:
        self._log, self._topic = log, topic

    def start(self) -> None:
        """Connect, and create the topic or queue if it is missing; raises Unavailable."""
        try:
            self._log.create([raw_topic(self._topic)])
        except BadConfig as error:  # an operator must change it, and other destinations go on
            raise Unavailable(str(error)) from error

    def put(self, messages: Sequence[tuple[str, RawMessage]]) -> None:
        """Write messages with their ids, in order; return once all are durable.

        Raises Unavailable; then the input may have some of the messages.
        """
        records = [to_record(raw, self._topic) for _, raw in messages]
        try:
            for begin in range(0, len(records), BATCH):
                self._log.append(records[begin : begin + BATCH], timeout=_APPEND_WITHIN)
        except BadConfig as error:  # the topic was removed: no fault of the message
            self.start()
            raise Unavailable(str(error)) from error

    def keep_alive(self) -> None:
        """Send the other side a heartbeat, if connected.

        Each append connects if it must.
        """

    def interrupt(self) -> None:
        """Make a `put` that waits give up, in another thread too.

        An append waits for seconds at most.
        """

    def close(self) -> None:
        """Release all resources."""
        self._log.close()


class DecoderDestination(DeliveryThreads):
    """Looks changesets up in threads; writes the messages of one notice at a time."""

    def __init__(self, lookup: ChangesetLookup, written_to: "InputTopic | InputQueue") -> None:
        super().__init__(self._deliver, workers=AT_ONCE)
        self._lookup, self._input = lookup, written_to
        self._writing, self._is_closed = threading.Lock(), False

    def start(self) -> None:
        with self._writing:
            self._input.start()

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        if self._writing.acquire(blocking=False):
            try:
                self._input.keep_alive()
            finally:
                self._writing.release()
        return super().outcomes(timeout)

    def close(self) -> None:
        super().close()
        self._is_closed = True
        self._input.interrupt()
        with self._writing:
            self._input.close()
        self._lookup.close()

    def _deliver(self, delivery: Delivery) -> None:
        """Write all changesets of a notice, durable on return; raises Unavailable."""
        message, pushes = delivery.message, self._lookup.pushes(delivery)
        found = [raw for push in pushes for raw in raw_messages(message, push)]
        with self._writing:
            if self._is_closed:
                raise Unavailable("the destination is closed")
            self._input.put(found)


def raw_messages(message: Message, push: QueuedPush) -> Iterable[tuple[str, RawMessage]]:
    """Yield id and raw message of each changeset of a push, in order. Pure."""
    event = uuid.UUID(hex=message.id.partition(".")[0])
    common = {
        "submission_timestamp": write_timestamp(message.created),
        "protocol": "hg",
        "method": "push",
        ORIGIN: NOTIFIER,
        **_private_attributes(message.connection),
    }
    for node in push.changesets:
        document_id = str(uuid.uuid5(event, node))
        # A notice does not say who reviewed or landed the push.
        found: Json = {"changesetID": node, "repository": message.repo_url, "reviewSystemUsed": "unknown"}
        if push.date >= 0:
            found = {**found, "pushDate": push.date}
        attributes = {**common, "uri": f"{_URI}{document_id}"}
        yield document_id, RawMessage(to_text(found).encode("ascii"), attributes)


def _private_attributes(connection: PushConnection | None) -> dict[str, str]:
    """Return the attributes of a pusher's connection, which the decoder removes."""
    if connection is None:
        return {}
    named = {
        "remote_addr": connection.address,
        "x_forwarded_for": connection.forwarded,
        "user_agent": connection.client,
    }
    return {name: clean(text) for name, text in named.items() if text is not None}
