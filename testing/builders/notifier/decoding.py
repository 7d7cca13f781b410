# SPDX-License-Identifier: GPL-2.0-or-later
"""A decoder at work in this process, and what it wrote."""

import json
import subprocess
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kombu
from kafka import KafkaAdminClient

from hgext.vcsreplicator.log import ERRORS, Log, NewRecord, Record
from hgext.vcsreplicator.log.table import read_records
from hgext.vcsreplicator.words.records import ErrorRecord
from hgext.vcsreplicator.words.shape import from_json
from notifier.clients.amqp.consumer import body_of
from notifier.messages.raw import RawMessage, to_line
from notifier.services.decode import streaming
from notifier.services.decode.settings import DecodeSettings
from notifier.services.decode.sources import GROUP
from testing.builders.notifier.submissions import a_document, a_raw, uri_of
from testing.waiting import PATIENCE, eventually
from testing.warm import PROGRAM, warm_starts

_kombu: Any = kombu  # has no types


@contextmanager
def decoding(log: Log, settings: DecodeSettings) -> Iterator[threading.Event]:
    """A decoder at work in this process; the event stops it."""
    stop, ready = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            streaming.run(settings, log, stop=stop, ready=ready.set)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(lambda: ready.is_set() or failed, "the decoder is ready")
        yield stop
    finally:
        stop.set()
        thread.join()
    assert not failed


@contextmanager
def decoder(url: str, settings: DecodeSettings) -> Iterator[subprocess.Popen[str]]:
    """A decoder that is ready, as a process of its own; killed at the end."""
    command = [*PROGRAM, "testing.builders.notifier.decoder_process", url, json.dumps(asdict(settings))]
    with warm_starts():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def count_members(admin: KafkaAdminClient, group: str) -> int:
    """Return how many members a group has, once all have their partitions; 0 before."""
    found = admin.describe_groups([group])[group]
    return len(found["members"]) if found["group_state"] == "Stable" else 0


def submit(log: Log, *messages: RawMessage | bytes) -> None:
    """Write raw messages; bytes as they are."""
    lines = [each if isinstance(each, bytes) else to_line(each) for each in messages]
    log.append([NewRecord(topic="raw", key=None, value=line, partition=0) for line in lines])


def numbered(numbers: Sequence[int]) -> list[RawMessage]:
    return [a_raw(a_document(number), uri=uri_of(number)) for number in numbers]


def settled(log: Log, topic: str = "raw", *, timeout: float = PATIENCE) -> None:
    end = log.ends(topic)
    eventually(lambda: log.stored(GROUP, topic) == end, "all raw messages are acknowledged", timeout=timeout)


def records(log: Log, topic: str) -> list[Record]:
    return list(read_records(log, {(topic, 0): log.beginnings(topic)[0]}))


def rejects(log: Log) -> list[ErrorRecord]:
    return [from_json(ErrorRecord, record.value or b"") for record in records(log, ERRORS)]


def ids(found: Sequence[Record]) -> Counter[int]:
    return Counter(uuid.UUID(record.key).int for record in found if record.key)


def settings_in(folder: Path, **more: Any) -> DecodeSettings:
    return DecodeSettings(**{"repeats": str(folder / "repeats.db"), **more})


def put(url: str, queue: str, *lines: bytes) -> None:
    """Put raw messages into a queue, and return once the broker has them."""
    with _kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        _kombu.Queue(queue, durable=True)(connection.default_channel).declare()
        producer = connection.Producer()
        for line in lines:
            producer.publish(line, routing_key=queue, content_type="application/json", delivery_mode=2)


def take(url: str, queue: str, least: int) -> list[dict[str, Any]]:
    """Take everything out of a queue, at least so many messages, and return their bodies."""
    return [json.loads(body) for body in take_bodies(url, queue, least)]


def take_bodies(url: str, queue: str, least: int) -> list[bytes]:
    """Take everything out of a queue, at least so many messages, as bytes."""
    found: list[bytes] = []
    with _kombu.Connection(url) as connection:
        channel = connection.default_channel
        channel.auto_decode = False

        def take_all() -> bool:
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                found.append(body_of(message))
            return len(found) >= least

        eventually(take_all, f"{least} messages in {queue}")
    return found


def take_ids(url: str, queue: str, least: int) -> Counter[int]:
    """Take everything out of an output queue, at least so many messages; return how often each number came."""
    return Counter(uuid.UUID(body["document_id"]).int for body in take(url, queue, least))


def waiting(url: str, queue: str) -> int:
    """Return how many messages no receiver has taken."""
    with _kombu.Connection(url) as connection:
        return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
