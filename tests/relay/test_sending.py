# SPDX-License-Identifier: GPL-2.0-or-later
"""What the sender makes of an outbox: records, bundles in them or beside them, and the marker behind them."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import EVENTS, NewRecord, topics
from hgext.vcsreplicator.outbox.bundles import Bundle
from hgext.vcsreplicator.outbox.entry import Entry, MirrorNeeds, before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay.sending import EventSender
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Rejected, Unavailable
from hgext.vcsreplicator.words.event import PushConnection
from hgext.vcsreplicator.words.wire import Attachment, BundlePlace
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.outboxes import Folder, Transaction, following

BLOB = Attachment(where=BundlePlace.BLOB, size=1, sha256="0" * 64, name="blob")


class SmallLog(MemoryLog):
    """A log that refuses records of more than `limit` bytes."""

    limit = 10_000

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        if any(len(message.value or b"") > self.limit for message in messages):
            raise Rejected("too large")
        return super().append(messages, timeout=timeout)


@pytest.fixture
def log() -> SmallLog:
    log = SmallLog()
    log.create(topics(partitions=1))
    return log


@pytest.fixture
def box(tmp_path: Path) -> Outbox:
    return Outbox(Folder(str(tmp_path)))


def pushes(box: Outbox, count: int) -> list[Entry]:
    """Append events that need a bundle, and know where they came from."""
    found = following(before_first_event("a", 1), count)
    found = [replace(each, needs=MirrorNeeds.BUNDLE, connection=PushConnection(address="192.0.2.1")) for each in found]
    box.append(Transaction(), found)
    return found


def sender(
    log: MemoryLog,
    bundle: Callable[[Entry], Bundle],
    store_blob: Callable[[Iterable[bytes]], Attachment] | None = None,
) -> EventSender:
    return EventSender(
        log=log, source="hg://master", make_bundle=lambda folder, entry: bundle(entry), store_blob=store_blob
    )


def places(log: MemoryLog) -> list[BundlePlace]:
    """Where each record says that its bundle is."""
    frames = [wire.decode(record.value or b"") for record in log.records(EVENTS)]
    return [frame.header.attachment.where for frame in frames if frame.header.attachment]


def test_a_record_that_the_log_refuses_goes_alone_without_its_bundle(log: SmallLog, box: Outbox) -> None:
    pushes(box, 3)
    sizes = {1: 10, 2: 20_000, 3: 10}
    count = sender(log, lambda entry: Bundle([bytes(sizes[entry.event.seq])])).send("a", box)
    assert (count, box.has_unsent()) == (3, False)
    assert places(log) == [BundlePlace.INLINE, BundlePlace.MASTER, BundlePlace.INLINE]
    assert [bool(wire.carried(record.headers)) for record in log.records(EVENTS)] == [True, False, True]


def test_a_bundle_that_unpacks_to_too_much_for_a_record_goes_beside_it(log: SmallLog, box: Outbox) -> None:
    pushes(box, 2)
    unpacked = {1: wire.UNPACKED_LIMIT, 2: wire.UNPACKED_LIMIT + 1}
    sender(log, lambda entry: Bundle([b"x"], unpacked=unpacked[entry.event.seq]), lambda pieces: BLOB).send("a", box)
    assert places(log) == [BundlePlace.INLINE, BundlePlace.BLOB]


def test_stored_bundles_are_removed_once_the_log_has_their_events(log: SmallLog, box: Outbox) -> None:
    [entry] = pushes(box, 1)
    box.bundles.store(entry.event.id, Bundle([b"stored"]))
    sender(log, lambda entry: Bundle([b"made"])).send("a", box)
    [record] = log.records(EVENTS)
    assert wire.decode(record.value or b"").body == b"stored"
    assert not box.bundles.has(entry.event.id)


def test_what_the_log_has_is_reported_though_a_bundle_cannot_be_removed(
    log: SmallLog, box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(event: str) -> None:
        raise PermissionError(event)

    [entry] = pushes(box, 1)
    box.bundles.store(entry.event.id, Bundle([b"stored"]))
    monkeypatch.setattr(type(box.bundles), "remove", lambda bundles, event: fail(event))
    marked: list[list[str]] = []
    reporting = replace(
        sender(log, lambda entry: Bundle([b"made"])),
        on_marked=lambda sent, entries: marked.append([each.event.id for each in entries]),
    )
    with pytest.raises(PermissionError):
        reporting.send("a", box)
    assert marked == [[entry.event.id]]
    assert not box.has_unsent()


def test_the_marker_names_the_place_of_the_newest_event_of_its_batch(log: SmallLog, box: Outbox) -> None:
    entries = pushes(box, 3)
    sender(log, lambda entry: Bundle([b"x"])).send("a", box)
    sent = box.sent()
    assert sent is not None
    assert (sent.id, sent.partition, sent.offset) == (entries[-1].event.id, 0, 2)


def test_the_marker_stays_if_the_place_of_a_batch_shows_a_loss(log: SmallLog, box: Outbox) -> None:
    def refuse(partition: int, offset: int) -> None:
        raise ZeroDivisionError

    pushes(box, 1)
    with pytest.raises(ZeroDivisionError):
        replace(sender(log, lambda entry: Bundle([b"x"])), on_appended=refuse).send("a", box)
    assert box.has_unsent()


@pytest.mark.parametrize(("lost", "is_seen"), [(0, False), (1, True), (2, True)])
def test_the_marker_stays_if_an_event_stands_where_one_stood(
    log: SmallLog, box: Outbox, lost: int, is_seen: bool
) -> None:
    send = sender(log, lambda entry: Bundle([b"x"])).send
    pushes(box, 2)
    send("a", box)
    known = box.sent()
    log.lose(EVENTS, 0, lost)
    newest = box.newest()
    assert newest is not None
    box.append(Transaction(), following(newest, 1))
    with pytest.raises(Unavailable, match="lost records") if is_seen else contextlib.nullcontext():
        send("a", box)
    assert (box.sent() == known, box.has_unsent()) == (is_seen, is_seen)
