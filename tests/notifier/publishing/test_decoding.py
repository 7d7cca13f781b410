# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages of notices: read once, for all destinations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log import NOTICES, Record
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.shape import from_json
from notifier.publishing import decoding
from notifier.publishing.decoding import NoticeDecoder
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import publish_pushes, with_topics
from testing.builders.notifier.notifying import PUBLIC, Notifier, Scripted


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The notices that were read."""
    seen: list[bytes] = []

    def note(kind: Any, value: bytes) -> Any:
        seen.append(value)
        return from_json(kind, value)

    monkeypatch.setattr(decoding, "from_json", note)
    return seen


def make_records(count: int) -> list[Record]:
    log = MemoryLog()
    with_topics(log)
    publish_pushes(log, "try", 1, count)
    return log.records(NOTICES)


@pytest.mark.processes
def test_a_notice_is_read_once_for_all_destinations(read: list[bytes], tmp_path: Path) -> None:
    log = MemoryLog()
    with_topics(log)
    notifier = Notifier(log, tmp_path)
    receivers = {name: Scripted() for name in ("first", "second", "third")}
    notifier.start(**receivers)
    try:
        publish_pushes(log, "try", 1, 20)
        for name in receivers:
            notifier.settled(name)
    finally:
        notifier.stop()
        notifier.state.close()
    assert [each.told("try") for each in receivers.values()] == [list(range(1, 21))] * 3
    assert len(read) == 20


def test_another_notice_at_the_same_offset_is_read() -> None:
    decoder, (first, second) = NoticeDecoder(PUBLIC), make_records(2)
    [message] = decoder.messages_of(first)
    [other] = decoder.messages_of(replace(second, offset=first.offset))
    assert (message.seq, other.seq) == (1, 2)


def test_notice_that_cannot_be_read_is_refused_to_each_destination() -> None:
    decoder, [record] = NoticeDecoder(PUBLIC), make_records(1)
    for _ in range(2):
        with pytest.raises(MalformedEvent):
            decoder.messages_of(replace(record, value=b"no notice"))


def test_messages_are_kept_of_so_many_bytes_alone(read: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, records = NoticeDecoder(PUBLIC), make_records(3)
    monkeypatch.setattr(decoding, "KEPT", 2 * max(len(record.value or b"") for record in records))
    for record in (*records, records[2], records[0]):
        decoder.messages_of(record)
    assert len(read) == 4
    monkeypatch.setattr(decoding, "KEPT", 10)
    for _ in range(2):
        decoder.messages_of(records[1])
    assert len(read) == 6
