# SPDX-License-Identifier: GPL-2.0-or-later
"""The messages of notices, made once for all destinations of the process."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from hgext.vcsreplicator.log import Record
from hgext.vcsreplicator.words.event import check_event
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.shape import from_json
from hgext.vcsreplicator.words.wire import read_signed

from ..messages.message import Message, messages
from ..messages.public import PublicSettings

# Bytes of notices whose messages are kept: of a usual size about a thousand, ten reads of a destination.
KEPT = 2 * 1024 * 1024


@dataclass(slots=True)
class NoticeDecoder:
    """Keeps the messages of the newest notices; any thread may use it.

    To read and check a notice costs more than all else that a destination in bulk does with it.
    """

    public: PublicSettings
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: OrderedDict[tuple[int, bytes, str | None], tuple[Message, ...]] = field(default_factory=OrderedDict)
    _size: int = 0

    def messages_of(self, record: Record) -> tuple[Message, ...]:
        """Return all messages of a notice; raise MalformedEvent or UnknownEvent.

        Records with the same offset, content and signature share one reading.
        """
        value, signed = record.value or b"", read_signed(record.headers)
        key = record.offset, value, signed
        with self._lock:
            if (found := self._kept.get(key)) is None:
                notice = from_json(Notice, value)
                check_event(notice.event)
                found = self._kept[key] = messages(notice, record.offset, self.public, signed, size=len(value))
                self._size += len(value)
                while self._size > KEPT:
                    (_, oldest, _), _ = self._kept.popitem(last=False)
                    self._size -= len(oldest)
        return found
