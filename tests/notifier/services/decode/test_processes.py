# SPDX-License-Identifier: GPL-2.0-or-later
"""Decoders as processes on a queue of a real RabbitMQ: several at once, and stopped under load."""

import json
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log import Log
from notifier.messages.raw import to_line
from testing.builders.notifier.decoding import decoder, numbered, put, rejects, settings_in, take_ids, waiting
from testing.services.redis import Redis
from testing.waiting import eventually

pytestmark = pytest.mark.processes


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    assert process.wait() == 0


def delivered(*files: Path) -> Counter[int]:
    """How often each number is in these files."""
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines(keepends=True)]
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    return Counter(uuid.UUID(body["document_id"]).int for body in whole)


@pytest.mark.parametrize("many", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_two_decoders_of_one_queue_lose_nothing_and_drop_repeats(
    log: Log, tmp_path: Path, rabbitmq: Any, own_service: Callable[[type[Redis]], Redis], many: int
) -> None:
    broker, redis = rabbitmq.vhost(), own_service(Redis)
    shared = {"repeats": "redis", "redis": redis.url, "broker": broker, "input": "queue:raw"}
    place = f"sqlite://{tmp_path}/log.db"
    files = [tmp_path / "first.ndjson", tmp_path / "second.ndjson"]
    settings = [settings_in(tmp_path, **shared, output=f"file:{file}") for file in files]
    lines = [to_line(message) for message in numbered(range(2 * many))]
    first, then = lines[:many], lines[many:]

    def dropped() -> int:
        return sum((reject.attributes or {})["error_type"] == "repeat" for reject in rejects(log))

    with decoder(place, settings[0]), decoder(place, settings[1]) as second:
        put(broker, "raw", *first)
        eventually(lambda: redis.ask(b"DBSIZE\r\n") == b":%d\r\n" % many, "all ids are remembered")
        assert delivered(*files) == Counter(range(many))
        assert all(map(delivered, files))
        put(broker, "raw", *first)
        eventually(lambda: dropped() == many, "each is dropped by one of the two")
        put(broker, "raw", *(line for line in then for _ in range(2)))  # a repeat may pass while the other is under way
        eventually(lambda: delivered(*files).total() + dropped() == 4 * many, "each is delivered or dropped")
        eventually(lambda: redis.ask(b"DBSIZE\r\n") == b":%d\r\n" % (2 * many), "all ids are remembered")
        found, before = delivered(*files), dropped()
        assert found.keys() == set(range(2 * many))
        assert set(found.values()) <= {1, 2}
        stop(second)
        put(broker, "raw", *lines)
        eventually(lambda: dropped() == before + 2 * many, "the first drops what the second delivered")
    assert delivered(*files) == found
    assert waiting(broker, "raw") == 0


@pytest.mark.parametrize("stops", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_decoder_that_is_stopped_under_load_delivers_each_message_once(
    log: Log, tmp_path: Path, rabbitmq: Any, stops: int
) -> None:
    broker, many = rabbitmq.vhost(), 1500 * stops
    settings = settings_in(tmp_path, repeats="none", broker=broker, input="queue:raw", output="queue:out")
    put(broker, "raw", *map(to_line, numbered(range(many))))
    for _ in range(stops):
        with decoder(f"sqlite://{tmp_path}/log.db", settings) as process:
            before = waiting(broker, "out")
            eventually(lambda before=before: waiting(broker, "out") > before, "it delivers")
            stop(process)
        eventually(lambda: waiting(broker, "raw") + waiting(broker, "out") == many, "each is in one queue")
        assert waiting(broker, "raw") > 0  # else it was idle
    with decoder(f"sqlite://{tmp_path}/log.db", settings) as process:
        eventually(lambda: waiting(broker, "out") >= many, "all are delivered")
        stop(process)
    assert take_ids(broker, "out", many) == Counter(range(many))
    assert waiting(broker, "raw") == 0
