# SPDX-License-Identifier: GPL-2.0-or-later
"""Replays: notices sent again to one destination on an operator's request.

They are read from the log beside the live stream.
"""

import datetime
from dataclasses import replace

from hgext.vcsreplicator.log import NOTICES, Log, Record
from hgext.vcsreplicator.words.errors import Expired
from hgext.vcsreplicator.words.levels import Notice
from hgext.vcsreplicator.words.shape import from_json

from .message import Message
from .state import DestinationRequest

BATCH = 200


class Replay:
    """One request at work.

    It reads from the beginning of the log to where the log ended when the replay began.

    The argument is `repository` (wire path or id) and `since_time` (seconds since the epoch, of the change) or `since_push` (the
    first push id). Killed in the middle, all of it is sent again. What the log dropped meanwhile is left out; the live stream
    neither waits for a replay nor goes back.
    """

    def __init__(self, request: DestinationRequest, log: Log) -> None:
        self.request = request
        self.numbers: set[int] = set()
        self.count = 0
        self._log = log
        self._end = log.ends(NOTICES)[0]
        self._position = log.beginnings(NOTICES)[0]
        self._reader = log.reader({(NOTICES, 0): self._position})
        asked = datetime.datetime.fromtimestamp(request.asked_at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._mark = f"{request.who} {asked} #{request.id}"

    def records(self, room: int) -> list[Record]:
        """Return some more records that the request means."""
        if not self.has_more or not room:
            return []
        try:
            found = self._reader.poll(0.2, limit=min(BATCH, room))
        except Expired:
            self._begin_again()
            return []
        if found:
            self._position = found[-1].offset + 1
        else:
            [self._position] = self._reader.positions().values()
        return [record for record in found if record.offset < self._end and self._wanted(record)]

    def marked(self, message: Message) -> Message:
        """Return the message as a replay sends it."""
        return replace(message, replay=self._mark)

    @property
    def has_more(self) -> bool:
        """Whether there is more to read now.

        A replay that is stuck leaves the room in the window to the live stream."""
        return self._position < self._end and len(self.numbers) < BATCH

    @property
    def finished(self) -> bool:
        """Whether everything was read and settled."""
        return self._position >= self._end and not self.numbers

    def close(self) -> None:
        """Free the reader."""
        self._reader.close()

    def _begin_again(self) -> None:
        """Continue with the oldest record, as the log dropped the next ones."""
        self._position = max(self._position, self._log.beginnings(NOTICES)[0])
        old, self._reader = self._reader, self._log.reader({(NOTICES, 0): self._position})
        old.close()

    def _wanted(self, record: Record) -> bool:
        try:
            event = from_json(Notice, record.value or b"").event
        except Exception:  # the live stream says what is wrong with it
            return False
        argument = self.request.argument
        if argument["repository"] not in (event.repository, event.path):
            return False
        if "since_push" in argument:
            push = event.changes.push
            return push is not None and push.id >= argument["since_push"]
        return event.time >= float(argument["since_time"])
