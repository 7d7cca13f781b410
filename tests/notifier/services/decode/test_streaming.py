# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoder as a service: nothing is acknowledged before it is delivered, and nothing private leaves it."""

import base64
import functools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import structlog
from kafka.admin import KafkaAdminClient

from hgext.vcsreplicator.log import ERRORS, Log
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_records
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import BadConfig
from notifier.delivery.destination import DOWN
from notifier.messages.raw import NOTIFIER, ORIGIN, raw_topic, to_line, to_record
from notifier.services.decode.loop import BATCH
from notifier.services.decode.rejects import raw_of
from notifier.services.decode.repeats import Repeats, open_repeats
from notifier.services.decode.settings import SHIPPED, DecodeSettings
from notifier.services.decode.sources import GROUP
from testing.builders.notifier.decoding import (
    count_members,
    decoder,
    decoding,
    ids,
    numbered,
    put,
    records,
    rejects,
    settings_in,
    settled,
    submit,
    take_ids,
    waiting,
)
from testing.builders.notifier.notices import with_topics
from testing.builders.notifier.submissions import ID, a_document, a_raw, injected, uri_of
from testing.metrics import value_of
from testing.services.redis import Redis
from testing.waiting import PATIENCE, eventually
from testing.warm import PROGRAM

pytestmark = pytest.mark.processes

PLANTED = ("203.0.113.7", "198.51.100.99", "planted-agent")


def test_decoded_messages_go_to_their_topic_and_rejects_whole_to_errors(log: Log, tmp_path: Path) -> None:
    wrong = a_raw({"changesetID": "no"})
    with decoding(log, settings_in(tmp_path)):
        submit(log, a_raw(), wrong)
        settled(log)
    [decoded], [reject] = records(log, "decoded"), rejects(log)
    assert (decoded.key, decoded.headers["document_type"]) == (ID, "hgpush")
    assert injected(decoded.value or b"") == decoded.headers
    assert (reject.service, reject.topic, reject.offset) == ("decode", "raw", records(log, "raw")[1].offset)
    assert base64.b64decode(reject.value) == wrong.payload
    assert reject.attributes is not None
    assert reject.attributes["error_type"] == "schema"
    again = raw_of(reject)
    assert again is not None
    assert again.payload == wrong.payload
    assert again.attributes["uri"] == wrong.attributes["uri"]


def test_a_repeat_goes_to_errors_as_metadata_alone(log: Log, tmp_path: Path) -> None:
    submit(log, a_raw(), a_raw())
    with decoding(log, settings_in(tmp_path)):
        settled(log)
    with decoding(log, settings_in(tmp_path)):
        submit(log, a_raw())
        settled(log)
    assert len(records(log, "decoded")) == 1
    assert [(reject.value, (reject.attributes or {})["error_type"]) for reject in rejects(log)] == [("", "repeat")] * 2
    assert raw_of(rejects(log)[0]) is None


def write_another_schema(folder: Path) -> str:
    """A folder with the shipped schemas, and a second type that takes the same bodies."""
    shutil.copytree(SHIPPED, folder / "schemas")
    [shipped] = (folder / "schemas").glob("*/*/*.json")
    other = folder / "schemas/eng-workflow/build/build.1.schema.json"
    other.parent.mkdir()
    shutil.copy(shipped, other)
    return str(folder / "schemas")


def test_an_id_of_another_type_or_origin_is_no_repeat(log: Log, tmp_path: Path) -> None:
    others = [a_raw(uri=f"/submit/eng-workflow/build/1/{ID}"), a_raw(origin=NOTIFIER)]
    with decoding(log, settings_in(tmp_path, schemas=write_another_schema(tmp_path))):
        submit(log, *others, a_raw())
        settled(log)
        submit(log, *others, a_raw())
        settled(log)
    assert len(records(log, "decoded")) == 3
    assert [(reject.attributes or {})["error_type"] for reject in rejects(log)] == ["repeat"] * 3


def test_a_reject_that_is_submitted_again_keeps_its_origin(log: Log, tmp_path: Path) -> None:
    submit(log, a_raw({"changesetID": "no"}, origin=NOTIFIER))
    with decoding(log, settings_in(tmp_path)):
        settled(log)
    [reject] = rejects(log)
    again = raw_of(reject)
    assert again is not None
    assert again.attributes[ORIGIN] == NOTIFIER


def test_a_made_id_is_never_a_repeat(log: Log, tmp_path: Path) -> None:
    message = a_raw(uri="/submit/eng-workflow/hgpush/1")
    submit(log, message, message)
    with decoding(log, settings_in(tmp_path, without_id=("eng-workflow.hgpush",))):
        settled(log)
    first, second = records(log, "decoded")
    assert first.key == second.key


def test_an_id_is_forgotten_after_its_time(log: Log, tmp_path: Path) -> None:
    with decoding(log, settings_in(tmp_path, remember=1)):
        submit(log, a_raw())
        settled(log)

        def passes_again() -> bool:
            submit(log, a_raw())
            settled(log)
            return len(records(log, "decoded")) > 1

        eventually(passes_again, "the id is forgotten", every=0.3)


def test_a_type_can_go_to_a_file_of_its_own(log: Log, tmp_path: Path) -> None:
    outputs = {"eng-workflow.hgpush": f"file:{tmp_path}/"}
    with decoding(log, settings_in(tmp_path, outputs=outputs)):
        submit(log, *numbered(range(3)))
        settled(log)
    lines = (tmp_path / "eng-workflow.hgpush.ndjson").read_text().splitlines()
    assert [uuid.UUID(json.loads(line)["document_id"]).int for line in lines] == [0, 1, 2]
    assert not records(log, "decoded")


def test_an_output_that_is_away_holds_the_input(log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with decoding(log, settings_in(tmp_path, output=f"file:{folder}/")):
        submit(log, a_raw())
        with structlog.testing.capture_logs() as said:
            eventually(lambda: [line for line in said if line["event"] == "decoding waits"], "a warning")
        assert log.stored(GROUP, "raw").get(0) != log.ends("raw")[0]
        assert value_of(DOWN.labels("decode")) == 1
        folder.mkdir()
        settled(log)
        eventually(lambda: value_of(DOWN.labels("decode")) == 0, "the alert ends")
    assert len((folder / "eng-workflow.hgpush.ndjson").read_text().splitlines()) == 1


def test_a_second_decoder_of_the_embedded_log_stands_by_for_the_first(log: Log, tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as said, ExitStack() as first:
        first.enter_context(decoding(log, settings_in(tmp_path)))
        with decoding(log, settings_in(tmp_path)):
            submit(log, a_raw())
            settled(log)
            assert [line["partitions"] for line in said if line["event"] == "share changed"] == [[0]]
            first.close()
            submit(log, *numbered([1, 2]))
            settled(log)
    assert [line["partitions"] for line in said if line["event"] == "share changed"] == [[0], [0]]
    assert len(records(log, "decoded")) == 3


def test_a_decoder_that_another_one_fenced_divides_anew(log: Log, tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as said, decoding(log, settings_in(tmp_path)):
        submit(log, a_raw())
        settled(log)
        with closing(log.transactor("decode-raw", group=GROUP)):  # as a decoder of another release is
            submit(log, *numbered([1, 2]))
            settled(log)
    assert [line["reason"] for line in said if line["event"] == "decoding waits"]
    assert len(records(log, "decoded")) == 3


def test_raw_messages_that_the_log_lost_are_reported_and_passed(log: Log, tmp_path: Path) -> None:
    submit(log, a_raw())
    log.acknowledge(GROUP, "raw", {0: 1000})
    with structlog.testing.capture_logs() as said, decoding(log, settings_in(tmp_path)):
        settled(log)
    assert [line for line in said if line["event"] == "raw messages lost"]
    assert len(records(log, "decoded")) == 1


def test_a_document_that_a_kafka_topic_refuses_is_a_reject_alone(kafka: Any, unique_name: str, tmp_path: Path) -> None:
    url = f"{kafka.url}?topic-prefix={unique_name}."
    with (
        open_log(url, creates=True) as log,
        open_log(url, creates=True) as its,
    ):  # each waits for its own questions about positions
        with_topics(log).create([raw_topic("raw"), raw_topic("decoded")])
        kafka.set_largest(f"{unique_name}.decoded", 100_000)
        large = a_raw({**a_document(3), "landingSystem": os.urandom(100_000).hex()}, uri=uri_of(3))
        submit(log, *numbered([1, 2]), large, *numbered([4]))
        with decoding(its, settings_in(tmp_path)):
            settled(log)
            submit(log, *numbered([5]))
            settled(log)
        assert ids(records(log, "decoded")) == dict.fromkeys((1, 2, 4, 5), 1)
        assert [(reject.attributes or {})["error_type"] for reject in rejects(log)] == ["size"]


# -- the store of ids


def test_ids_in_redis_are_seen_by_all_and_its_absence_lets_repeats_pass(
    log: Log, tmp_path: Path, own_service: Callable[[type[Redis]], Redis]
) -> None:
    redis = own_service(Redis)
    settings = settings_in(tmp_path, repeats="redis", redis=redis.url)
    for _ in range(2):
        with decoding(log, settings):
            submit(log, a_raw())
            settled(log)
    assert len(records(log, "decoded")) == 1
    with decoding(log, settings):
        redis.kill()
        submit(log, a_raw())
        settled(log)
        assert len(records(log, "decoded")) == 2
        redis.start()  # without its data

        def known_again() -> bool:
            before = len(rejects(log))
            submit(log, a_raw())
            settled(log)
            return len(rejects(log)) > before

        eventually(known_again, "Redis is used again", every=0.2)


def test_a_file_of_ids_without_its_table_only_lets_repeats_pass(log: Log, tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with decoding(log, settings):
        submit(log, a_raw())
        settled(log)
        with closing(sqlite3.connect(tmp_path / "repeats.db")) as other:
            other.execute("DROP TABLE fresh")
        submit(log, a_raw())
        settled(log)
    assert len(records(log, "decoded")) == 2


def test_a_file_of_ids_lost_in_use_does_not_stop_the_decoder(tmp_path: Path) -> None:
    def fail() -> None:
        raise BadConfig("decode.repeats: cannot be used")

    repeats = Repeats(fail, SystemClock())  # type: ignore[arg-type]
    assert repeats.known([b"an id"]) == set()
    repeats.remember([b"an id"])


def test_a_file_of_ids_that_cannot_be_made_stops_the_decoder_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "repeats.db").mkdir()
    with pytest.raises(BadConfig, match=r"decode\.repeats"):
        open_repeats(settings_in(tmp_path), SystemClock())


# -- kills


Settle = Callable[[int], object]


def kill_under_load(
    url: str, settings: DecodeSettings, kills: int, seed: int, *, feed: Callable[..., None], settle: Settle
) -> int:
    """Kill the decoder at random moments while messages come; then let it finish, and be stopped. Return how many came."""
    chance, number = random.Random(seed), 0
    for kill in range(kills + 1):
        with decoder(url, settings) as process:
            for _ in range(chance.randrange(1, 8)):
                feed(*map(to_line, (*numbered(range(number, number + 100)), a_raw(b"no json"))))
                number += 100
            if kill < kills:
                threading.Event().wait(chance.random() * 0.3)
            else:
                settle(number)
                process.terminate()
                assert process.wait() == 0
    return number


def settled_late(log: Log) -> Settle:
    """Wait for the backlog of all kills."""
    return lambda number: settled(log, timeout=10 * PATIENCE)


MANY = int(os.environ.get("VCSREPLICATOR_TEST_KILLS", "100"))
KILLS = [
    pytest.param(2),
    pytest.param(MANY, id="many", marks=[pytest.mark.slow, pytest.mark.hunt, pytest.mark.timeout(3600)]),
]
Told = Callable[[object], None]


def kill_on_a_log(log: Log, url: str, folder: Path, kills: int, told: Told) -> None:
    """Nothing is lost, and nothing is there twice: records and position are one transaction."""
    number = kill_under_load(
        url, settings_in(folder), kills, 1, feed=functools.partial(submit, log), settle=settled_late(log)
    )
    assert ids(records(log, "decoded")) == Counter(range(number))
    kinds = Counter((reject.attributes or {})["error_type"] for reject in rejects(log))
    assert kinds == {"json": number // 100}
    told(f"decoder, topic to topic: {kills} kills, {number} messages, none lost, none twice")


@pytest.mark.slow
@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_decoder_loses_nothing_and_repeats_nothing_in_the_log(
    log: Log, tmp_path: Path, told: Told, kills: int
) -> None:
    kill_on_a_log(log, f"sqlite://{tmp_path}/log.db", tmp_path, kills, told)


@pytest.mark.parametrize("kills", [1, pytest.param(MANY // 2, id="many", marks=KILLS[1].marks)])
def test_a_killed_decoder_loses_nothing_and_repeats_nothing_on_kafka(
    kafka: Any, unique_name: str, tmp_path: Path, told: Told, kills: int
) -> None:
    url = f"{kafka.url}?topic-prefix={unique_name}."
    with open_log(url, creates=True) as log:
        with_topics(log).create([raw_topic("raw"), raw_topic("decoded")])
        kill_on_a_log(log, url, tmp_path, kills, told)


def feed_divided(log: Log, numbers: Sequence[int]) -> None:
    partitions = log.partitions("raw")
    log.append([to_record(raw, "raw", partitions) for raw in numbered(numbers)])


@contextmanager
def divided_raw(kafka: Any, name: str) -> Iterator[tuple[Log, str]]:
    """A log with raw messages in four partitions, and the URL of decoders that are soon missed."""
    url = f"{kafka.url}?topic-prefix={name}."
    with open_log(url, creates=True) as log:
        with_topics(log).create([replace(raw_topic("raw"), partitions=4), raw_topic("decoded")])
        yield log, f"{url}&session-timeout-ms=2000&heartbeat-interval-ms=300"


@pytest.mark.parametrize("kills", [2, pytest.param(MANY // 4, id="many", marks=KILLS[1].marks)])
def test_of_two_decoders_either_may_be_killed_and_nothing_is_lost(
    kafka: Any, unique_name: str, tmp_path: Path, told: Told, kills: int
) -> None:
    chance, number, settings = random.Random(4), 0, settings_in(tmp_path, repeats="none")
    with divided_raw(kafka, unique_name) as (log, url), ExitStack() as opened:
        decoders = [opened.enter_context(decoder(url, settings)) for _ in range(2)]
        for _ in range(kills):
            for _ in range(chance.randrange(1, 8)):
                feed_divided(log, range(number, number := number + 100))
            threading.Event().wait(chance.random() * 0.3)
            decoders.pop(chance.randrange(2)).kill()
            decoders.append(opened.enter_context(decoder(url, settings)))
        feed_divided(log, range(number, number := number + 400))
        settled(log, timeout=10 * PATIENCE)
        for process in decoders:
            process.terminate()
            assert process.wait() == 0
        assert ids(records(log, "decoded")) == Counter(range(number))
    told(f"two decoders, topic to topic: {kills} kills, {number} messages, none lost, none twice")


def test_partitions_that_were_added_are_decoded_from_their_positions(
    kafka: Any, unique_name: str, tmp_path: Path
) -> None:
    url = f"{kafka.url}?topic-prefix={unique_name}."
    with (
        open_log(url, creates=True) as log,
        open_log(url, creates=True) as newer,
        closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin,
    ):
        with_topics(log).create([raw_topic("raw"), raw_topic("decoded")])
        assert log.partitions("raw") == 1  # as the decoder below will still believe
        admin.create_partitions({f"{unique_name}.raw": 3})
        feed_divided(newer, range(40))
        before = list(read_records(newer, {("raw", 2): 0}))
        with closing(newer.transactor("decode-raw.2", group=GROUP)) as transactor:  # another decoder's
            transactor.commit([], group=GROUP, positions={("raw", 2): len(before)})
        with decoding(log, settings_in(tmp_path, repeats="none")):
            settled(newer)
        found = ids(records(log, "decoded"))
        assert found.total() == len(found) == 40 - len(before) < 40


def test_a_decoder_that_was_taken_for_dead_writes_nothing_more(kafka: Any, unique_name: str, tmp_path: Path) -> None:
    settings = settings_in(tmp_path, repeats="none")
    with (
        divided_raw(kafka, unique_name) as (log, url),
        closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin,
        decoder(url, settings) as stopped,
        decoder(url, settings) as other,
    ):
        eventually(lambda: count_members(admin, f"{unique_name}.{GROUP}-raw") == 2, "both have a share")
        feed_divided(log, range(1000))
        eventually(lambda: sum(log.stored(GROUP, "raw").values()) > 0, "they work")
        stopped.send_signal(signal.SIGSTOP)
        settled(log)  # though the first has half of the partitions
        feed_divided(log, range(1000, 1400))
        settled(log)
        stopped.send_signal(signal.SIGCONT)
        eventually(lambda: count_members(admin, f"{unique_name}.{GROUP}-raw") == 2, "it has joined again")
        feed_divided(log, range(1400, 1800))
        settled(log)
        for process in (stopped, other):
            process.terminate()
            assert process.wait() == 0
        assert ids(records(log, "decoded")) == Counter(range(1800))


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_decoder_loses_nothing_in_a_queue_with_ids_in_redis(
    log: Log, tmp_path: Path, rabbitmq: Any, own_service: Callable[[type[Redis]], Redis], told: Told, kills: int
) -> None:
    broker, place = rabbitmq.vhost(), f"sqlite://{tmp_path}/log.db"
    settings = settings_in(tmp_path, repeats="redis", redis=own_service(Redis).url, broker=broker, output="queue:out")
    number = kill_under_load(place, settings, kills, 2, feed=functools.partial(submit, log), settle=settled_late(log))
    check_repeats(take_ids(broker, "out", number), number, kills, told, "topic to queue")


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_decoder_of_a_queue_loses_nothing(
    log: Log, tmp_path: Path, rabbitmq: Any, told: Told, kills: int
) -> None:
    broker, place = rabbitmq.vhost(), f"sqlite://{tmp_path}/log.db"
    settings = settings_in(tmp_path, broker=broker, input="queue:raw")

    def settle(number: int) -> None:
        def is_settled() -> bool:
            return len(rejects(log)) >= number // 100 and len(ids(records(log, "decoded"))) == number

        eventually(is_settled, "all messages", timeout=10 * PATIENCE, every=0.5)

    number = kill_under_load(place, settings, kills, 3, feed=functools.partial(put, broker, "raw"), settle=settle)
    check_repeats(ids(records(log, "decoded")), number, kills, told, "queue to topic")
    assert waiting(broker, "raw") == 0


def check_repeats(found: Counter[int], number: int, kills: int, told: Told, way: str) -> None:
    """All are there; at most one batch for each kill came twice."""
    assert found.keys() == set(range(number))
    assert found.total() - number <= kills * BATCH
    told(f"decoder, {way}: {kills} kills, {number} messages, none lost, {found.total() - number} twice")


# -- privacy


def test_no_address_and_no_user_agent_is_anywhere_but_in_the_input(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    private = {"x_forwarded_for": PLANTED[0], "remote_addr": PLANTED[1], "user_agent": PLANTED[2]}
    lines = [to_line(a_raw(a_document(n), uri=uri_of(n), **private)) for n in range(3)]
    lines += [to_line(a_raw(a_document(0), uri=uri_of(0), **private))]
    lines += [to_line(a_raw(wrong, **private)) for wrong in (b"no json", b"[]", b"{}", b"\x1f\x8b\x08")]
    lines += [to_line(a_raw(uri="/", **private)), lines[0][:-9], lines[0].replace(b'"payload": "', b'"payload": "!')]
    out = tmp_path / "out"
    out.mkdir()
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create([raw_topic("raw")])
        settings = settings_in(out, output=f"file:{out}/")
        command = [*PROGRAM, "testing.builders.notifier.decoder_process", f"sqlite://{tmp_path}/log.db"]
        process = subprocess.Popen([*command, json.dumps(asdict(settings))], stdout=subprocess.DEVNULL)
        submit(log, *lines)
        settled(log)
        process.terminate()
        assert process.wait() == 0
        kept = rejects(log)
        with decoding(log, settings):
            submit(log, *lines)
            settled(log)
        said = [record.value or b"" for record in records(log, ERRORS)]
    assert {"json", "schema", "compression", "uri", "form", "base64", "repeat"} == {
        (reject.attributes or {})["error_type"] for reject in kept
    }
    said += [file.read_bytes() for file in out.iterdir()]
    said.append("".join(capfd.readouterr()).encode())
    said.append(prometheus_client.generate_latest())
    assert not [word for word in PLANTED for text in said if word.encode() in text]
