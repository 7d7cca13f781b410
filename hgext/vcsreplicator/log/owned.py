# SPDX-License-Identifier: GPL-2.0-or-later
"""Records of a compacted topic that only one process at a time writes.

A process that opens them fences every other one, and then reads all that these wrote. So what a process writes before it acts is
known to the process that takes over.
"""

from collections.abc import Mapping

import structlog

from ..words.clock import Clock
from . import Log, NewRecord
from .table import read_table

# Seconds after which a process that wrote nothing asks whether it is fenced.
CHECK_EVERY = 5.0

logger = structlog.get_logger()


class OwnedRecords:
    """The records of `topic` whose keys begin with `prefix`; for one thread at a time.

    `values` has the newest value of each key, which stands without the prefix. Opening fences every other process of this
    `identity`, and raises Unavailable, or BadConfig if the topic is missing.
    """

    def __init__(self, log: Log, topic: str, prefix: str, identity: str, clock: Clock) -> None:
        self._log, self._topic, self._prefix, self._clock = log, topic, prefix, clock
        self._unwritten: dict[str, bytes | None] = {}
        self._end = 0
        self._transactor, self._is_unclear, self._proven_at = log.transactor(identity), False, clock.monotonic()
        try:
            log.wait_for_transactions(topic)
            self.values = self._read()
        except BaseException:
            self._transactor.close()
            raise

    def write(self, values: Mapping[str, bytes | None]) -> None:
        """Write these values, and with None the end of a key: all or none of them.

        Raises Fenced, TooLarge, or Unavailable if that may have failed. `values` has them all the same, and the next call writes
        them too: until a call has returned, do nothing that they cover.
        """
        self._unwritten |= values
        for key, value in values.items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
        if self._is_unclear:
            self._transactor.renew()
        self._is_unclear = True
        items = self._unwritten.items()
        new = [NewRecord(topic=self._topic, key=f"{self._prefix}{key}", value=value) for key, value in items]
        places = self._transactor.commit(new)
        self._end = max([self._end, *(offset + 1 for _, offset in places)])
        self._unwritten.clear()
        self._is_unclear, self._proven_at = False, self._clock.monotonic()

    def check(self) -> None:
        """Write what an earlier call could not write, and find out whether another process took over.

        Raises Fenced if one did, or Unavailable. It asks the log at most every CHECK_EVERY seconds. What the log has lost meanwhile
        is written again.
        """
        if self._unwritten or self._clock.monotonic() - self._proven_at >= CHECK_EVERY:
            if self._log.ends(self._topic)[0] < self._end:
                logger.warning("the log lost its newest records: they are written again", topic=self._topic)
                known = self.values
                self._unwritten = {**dict.fromkeys(self._read()), **known}
            self.write({})

    def close(self) -> None:
        self._transactor.close()

    def _read(self) -> dict[str, bytes]:
        """Return the values that the log has, and remember where it ends."""
        table = read_table(self._log, self._topic, keep=lambda each: (each.key or "").startswith(self._prefix))
        self._end = table.positions[self._topic, 0]
        found = {key.removeprefix(self._prefix): record.value for (_, key), record in table.records.items()}
        return {key: value for key, value in found.items() if value is not None}
