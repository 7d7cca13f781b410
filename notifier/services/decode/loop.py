# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop of the decoder.

It decodes a batch, delivers it, and only then acknowledges it. A batch ends at a number of messages, of bytes and of seconds, so
no client can cause a batch that takes longer than the log or the input's broker waits. The loop writes in this order: outputs that
are queues or files; the queue for messages that no record holds whole; the records of the log (decoded messages and rejects)
together with the position; the ids. After a kill at any moment it decodes all messages again that were not acknowledged. At most
one batch then comes twice in queues and files; in the log each message comes once if the input is a topic. A stop takes effect
after the running batch.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from prometheus_client import Counter

from hgext.vcsreplicator.log import RENEW_EVERY, NewRecord
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Rejected

from ...delivery.destination import DOWN
from .decoding import Decoded, Tools, decode, list_identities, reject_refused, reject_repeat
from .rejection import DecodeReject
from .rejects import error_record, fit_record
from .repeats import Repeats
from .routing import Outputs
from .sources import GROUP, RawArrival, RawSource

# Messages of one batch, which are acknowledged together.
BATCH = 500

# Bytes of output after which a batch ends, as a transaction of the aggregator does: what a log takes before its time-out.
BATCH_BYTES = 4 * 1024 * 1024

# Seconds of decoding after which a batch ends: brokers give up a connection that is silent for longer, and a stop waits for it.
BATCH_SECONDS = 1.0

# Seconds without a message after which nothing seems to wait.
QUIET = 5.0

# Seconds that any wait for messages may last.
BLINK = 0.2

DECODED = Counter("vcsreplicator_decode_messages", "Delivered")
REJECTED = Counter("vcsreplicator_decode_rejects", "Kept in the topic errors", ["error_type"])

logger = structlog.get_logger()

DecodedArrival = tuple[RawArrival, Decoded | DecodeReject]
# With the record of a message that goes to the log.
PlannedArrival = tuple[RawArrival, Decoded | DecodeReject, NewRecord | None]


@dataclass(frozen=True, slots=True)
class DecodeLoop:
    """A decoder, from the opening of its source until it fails or is stopped."""

    source: RawSource
    outputs: Outputs
    repeats: Repeats
    tools: Tools
    clock: Clock

    def work(self, stop: threading.Event) -> None:
        """Decode batches until `stop` is set.

        Messages read ahead are not acknowledged then, and come again. Raises Unavailable or Expired.
        """
        opened = renewed = self.clock.monotonic()
        waiting = deque[RawArrival]()
        while not stop.is_set():
            self.outputs.keep_connected()
            self.source.keep_alive()
            if not waiting and self.clock.monotonic() - renewed >= RENEW_EVERY:
                self.source.renew()
                renewed = self.clock.monotonic()
            if not waiting:
                waiting.extend(self.source.read(BLINK, BATCH))
            if waiting:
                self._deliver(self._decode_batch(waiting))
                DOWN.labels(GROUP).set(0)
            elif self.clock.monotonic() - opened >= QUIET:
                DOWN.labels(GROUP).set(0)
        self.source.finish()

    def _decode_batch(self, waiting: deque[RawArrival]) -> list[DecodedArrival]:
        """Take the messages of the next batch, all of one partition, and decode them."""
        batch, size, began = list[DecodedArrival](), 0, self.clock.monotonic()
        partition = waiting[0].partition
        while waiting and waiting[0].partition == partition:
            arrival = waiting.popleft()
            result = decode(arrival.line, self.tools)
            batch.append((arrival, result))
            size += result.size
            if size >= BATCH_BYTES or self.clock.monotonic() - began >= BATCH_SECONDS:
                break
        return batch

    def _deliver(self, batch: Sequence[DecodedArrival]) -> None:
        """Deliver a batch to queues and files, then commit it to the log."""
        known = self.repeats.known(list_identities(each for _, each in batch))
        seen, planned, outside = set(known), list[PlannedArrival](), list[Decoded]()
        for arrival, result in batch:
            record = None
            if isinstance(result, Decoded):
                record = self.outputs.record_of(result)
                if record is None and result.identity in seen:
                    result = reject_repeat(result)
                else:
                    seen |= set(list_identities([result]))
                    if record is None:
                        outside.append(result)
            planned.append((arrival, result, record))
        self.outputs.deliver(outside, self.source.keep_alive)
        self._commit(planned, known)

    def _commit(self, part: Sequence[PlannedArrival], known: set[bytes]) -> None:
        """Write records and acknowledge; in halves if the log refuses a record.

        A message whose own record the log refuses becomes a reject with the whole payload, or with none if the log refuses that
        too. `known` has the identities delivered before; the call adds the identities of this part.
        """
        try:
            self._commit_together(part, known)
        except Rejected:
            if (half := len(part) // 2) > 0:
                for portion in (part[:half], part[half:]):
                    self.source.keep_alive()
                    self._commit(portion, known)
                return
            [(arrival, result, _)] = part
            if isinstance(result, Decoded):
                reject = reject_refused(arrival.line, result)
            elif result.raw.payload:
                reject = result.without_payload()
            else:
                raise
            self._commit([(arrival, reject, None)], known)

    def _commit_together(self, part: Sequence[PlannedArrival], known: set[bytes]) -> None:
        seen, decoded, records = set(known), list[Decoded](), list[NewRecord]()
        rejects: list[tuple[RawArrival, DecodeReject]] = []
        for arrival, result, record in part:
            if isinstance(result, DecodeReject):
                rejects.append((arrival, result))
            elif record is not None and result.identity in seen:
                rejects.append((arrival, reject_repeat(result)))
            else:
                decoded.append(result)
                records += () if record is None else (record,)
                seen |= set(list_identities([result]))
        records += self._record_rejects(rejects)
        self.source.acknowledge(records, [arrival for arrival, _, _ in part])
        self.repeats.remember(list_identities(decoded))
        known |= seen
        DECODED.inc(len(decoded))
        for arrival, reject in rejects:
            REJECTED.labels(reject.kind).inc()
            at = {"place": arrival.place, "partition": arrival.partition, "offset": arrival.offset}
            logger.info("rejected", error_type=reject.kind, **at)

    def _record_rejects(self, rejects: Sequence[tuple[RawArrival, DecodeReject]]) -> list[NewRecord]:
        """Return the records of rejects, once a queue has whole what no record holds."""
        fitting = [(arrival, fit_record(reject, arrival)) for arrival, reject in rejects]
        cut = [arrival for arrival, reject in fitting if reject.is_cut]
        if cut:
            self.source.keep_whole(cut)
        remark, now = f"the queue {self.source.kept_in} has it whole", self.clock.now()
        return [
            error_record(reject.with_remark(remark) if reject.is_cut and self.source.kept_in else reject, arrival, now)
            for arrival, reject in fitting
        ]
