# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator errors`: rejects are listed and shown, and those of the decoder can be submitted again."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import kombu
import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli import errors as errors_command
from hgext.vcsreplicator.cli.errors import command
from hgext.vcsreplicator.log import ERRORS, NOTICES, Log, NewRecord
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.sqlite.adapter import SqliteLog
from hgext.vcsreplicator.log.table import read_records
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import ErrorRecord
from hgext.vcsreplicator.words.shape import from_json, to_json
from notifier.messages.raw import NOTIFIER, ORIGIN, RawMessage, from_line, raw_topic, to_line
from notifier.services.decode.decoding import Tools, decode
from notifier.services.decode.documents import load_schemas
from notifier.services.decode.rejection import DecodeReject
from notifier.services.decode.rejects import error_record
from notifier.services.decode.settings import SHIPPED
from notifier.services.decode.sources import RawArrival
from testing.builders.notifier.decoding import decoding, put, records, rejects, settings_in, waiting
from testing.builders.notifier.notices import with_topics
from testing.builders.notifier.submissions import HGPUSH, ID, a_raw
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    write_file(tmp_path, f"sqlite://{tmp_path}/log.db")
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create([raw_topic("raw"), raw_topic("decoded")])
        yield with_topics(log)


def write_file(tmp_path: Path, log: str) -> None:
    """Write the services' file of an installation in which no notifier writes documents, but clients do."""
    (tmp_path / "services.toml").write_text(f'log = "{log}"\n[edge]\nlisten = "127.0.0.1:1"\nreserved = []\n')


def errors(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "-c", str(tmp_path / "services.toml")])


def keep(log: Log, raw: RawMessage, place: str = "raw") -> None:
    """Keep the reject of a message."""
    log.append([a_reject(raw, place)])


def a_reject(raw: RawMessage, place: str = "raw") -> NewRecord:
    reject = decode(to_line(raw), Tools(schemas=load_schemas(SHIPPED)))
    assert isinstance(reject, DecodeReject)
    return error_record(reject, RawArrival(line=b"", place=place, offset=7), 1000.0)


def take_lines(url: str, queue: str) -> list[RawMessage]:
    """Take the raw messages out of a queue; what is none is left out."""
    with kombu.Connection(url) as connection:
        known = kombu.Queue(queue, durable=True)(connection.default_channel)
        bodies = iter(lambda: known.get(no_ack=True), None)
        return [from_line(each.body) for each in bodies if each.body != b"earlier"]


def submitted(log: Log) -> list[RawMessage]:
    return [from_line(record.value or b"") for record in read_records(log, {("raw", 0): log.beginnings("raw")[0]})]


def test_a_reject_of_the_decoder_is_listed_and_shown_whole(log: Log, tmp_path: Path) -> None:
    wrong = a_raw({"changesetID": "no", "more": "x" * 100_000})
    keep(log, wrong)
    listed = json.loads(errors(tmp_path, "list", "--json").stdout)
    assert listed == json.loads(errors(tmp_path, "--json").stdout)
    assert base64.b64decode(listed[0]["value"]) == wrong.payload
    shown = json.loads(errors(tmp_path, "show", str(log.beginnings(ERRORS)[0])).stdout)
    assert shown == listed[0]
    assert shown["attributes"]["error_type"] == "schema"


def test_a_reject_is_submitted_again_without_its_errors_and_only_with_yes(log: Log, tmp_path: Path) -> None:
    wrong = a_raw(b"[]")
    keep(log, wrong)
    number = str(log.beginnings(ERRORS)[0])
    assert "would submit 1" in errors(tmp_path, "retry", number).stdout
    assert not submitted(log)
    assert "submitted 1" in errors(tmp_path, "retry", number, "--yes").stdout
    [again] = submitted(log)
    assert again.payload == wrong.payload
    assert again.attributes.items() <= wrong.attributes.items()
    assert "user_agent" not in again.attributes


def test_rejects_of_one_type_are_submitted_together(log: Log, tmp_path: Path) -> None:
    for raw in (a_raw(b"[]"), a_raw({}), a_raw({"more": 1})):
        keep(log, raw)
    assert errors(tmp_path, "retry", "--type", "schema", "--yes").exit_code == 0
    assert [again.payload for again in submitted(log)] == [b"{}", b'{"more": 1}']


def reject_submitted(log: Log, since: int) -> int:
    """Do as a decoder that still rejects everything: keep what was submitted; return how many messages there are now."""
    found = submitted(log)
    for raw in found[since:]:
        keep(log, raw)
    return len(found)


def test_a_reject_of_a_type_is_submitted_once_however_often_it_fails(log: Log, tmp_path: Path) -> None:
    for number in range(10):
        keep(log, a_raw({"number": number}))
    words = ("retry", "--type", "schema", "--yes")
    assert errors(tmp_path, *words).stdout == "submitted 10 again\n"
    assert errors(tmp_path, *words).stdout == "submitted 0 again\n"
    for before in (0, 10):
        assert reject_submitted(log, before) == before + 10
        assert errors(tmp_path, *words).stdout == "submitted 10 again\n"


def test_a_reject_submitted_by_number_is_not_submitted_by_type_again(log: Log, tmp_path: Path) -> None:
    for number in range(3):
        keep(log, a_raw({"number": number}))
    assert errors(tmp_path, "retry", "1", "--yes").stdout == "submitted 1 again\n"
    assert errors(tmp_path, "retry", "--type", "schema", "--yes").stdout == "submitted 2 again\n"
    assert errors(tmp_path, "retry", "1", "1", "--yes").stdout == "submitted 1 again\n"
    assert [json.loads(raw.payload)["number"] for raw in submitted(log)] == [1, 0, 2, 1]


def test_a_reject_without_its_message_hinders_no_other_of_its_type(log: Log, tmp_path: Path) -> None:
    keep(log, a_raw({"number": 1}))
    kept = from_json(ErrorRecord, a_reject(a_raw({"number": 2})).value or b"")
    log.append([NewRecord(topic=ERRORS, key=None, value=to_json(replace(kept, value="")))])
    done = errors(tmp_path, "retry", "--type", "schema", "--yes")
    assert done.stdout == "submitted 1 again; cannot submit 1: errors retry 1 says why\n"
    assert [json.loads(raw.payload)["number"] for raw in submitted(log)] == [1]


def test_a_message_that_was_rejected_twice_is_submitted_once(log: Log, tmp_path: Path) -> None:
    for number in (0, 1, 0):
        keep(log, a_raw({"number": number}))
    assert errors(tmp_path, "retry", "--type", "schema").stdout.startswith("would submit 2 again")
    assert errors(tmp_path, "retry", "--type", "schema", "--yes").stdout == "submitted 2 again\n"
    assert errors(tmp_path, "retry", "--type", "schema", "--yes").stdout == "submitted 0 again\n"
    assert len(submitted(log)) == 2


def test_what_was_submitted_again_is_no_reject(log: Log, tmp_path: Path) -> None:
    keep(log, a_raw({}))
    errors(tmp_path, "retry", "0", "--yes")
    [end] = log.ends(ERRORS).values()
    assert len(json.loads(errors(tmp_path, "list", "--json").stdout)) == 1
    note = records(log, ERRORS)[-1]
    assert (note.key, json.loads(note.value or b"")["numbers"]) == ("submitted again", [0])
    assert f"no error {end - 1}" in str(errors(tmp_path, "show", str(end - 1)).exception)


def listed(tmp_path: Path, last: int) -> list[int]:
    """The numbers in the payloads of the rejects that are listed."""
    found = json.loads(errors(tmp_path, "list", "--json", "--last", str(last)).stdout)
    return [json.loads(base64.b64decode(each["value"]))["number"] for each in found]


def test_the_newest_rejects_are_listed_behind_other_records(log: Log, tmp_path: Path) -> None:
    for number in range(9):
        keep(log, a_raw({"number": number}))
    for number in range(7):
        errors(tmp_path, "retry", str(number), "--yes")
    assert [listed(tmp_path, last) for last in (1, 2, 20)] == [[8], [7, 8], list(range(9))]


@pytest.mark.processes
def test_the_newest_rejects_are_listed_between_transactions_offsets(
    kafka: Any, unique_name: str, tmp_path: Path
) -> None:
    url = f"{kafka.url}?topic-prefix={unique_name}-"
    write_file(tmp_path, url)
    with open_log(url, creates=True) as log, closing(with_topics(log).transactor("decode")) as transactor:
        for number in range(3):
            transactor.commit([a_reject(a_raw({"number": number}))])
        assert [listed(tmp_path, last) for last in (1, 2, 20)] == [[2], [1, 2], [0, 1, 2]]


def test_a_retry_that_failed_goes_on_where_it_stopped(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors_command, "_BATCH_BYTES", errors_command._BATCH_BYTES // 16)
    for number in range(20):
        keep(log, a_raw({"number": number, "more": "x" * 62_500}))
    appended, append = list[int](), SqliteLog.append

    def fail_in_the_middle(self: SqliteLog, messages: Any, **more: Any) -> Any:
        if messages[0].topic == "raw":
            appended.append(sum(len(message.value) for message in messages))
            if len(appended) == 3:
                raise Unavailable("no answer")
        return append(self, messages, **more)

    monkeypatch.setattr(SqliteLog, "append", fail_in_the_middle)
    assert str(errors(tmp_path, "retry", "--type", "schema", "--yes").exception) == "no answer"
    before = len(submitted(log))
    assert errors(tmp_path, "retry", "--type", "schema", "--yes").stdout == f"submitted {20 - before} again\n"
    assert sorted(json.loads(raw.payload)["number"] for raw in submitted(log)) == list(range(20))
    assert max(appended) < 8 * 1024 * 1024 // 16


@pytest.mark.parametrize("kind", ["typo", ""])
@pytest.mark.parametrize("words", [("--yes",), ()])
def test_a_type_that_no_reject_has_is_refused(log: Log, tmp_path: Path, kind: str, words: tuple[str, ...]) -> None:
    keep(log, a_raw({}))
    done = errors(tmp_path, "retry", "--type", kind, *words)
    assert str(done.exception) == f"no reject has the error_type {kind!r}; vcsreplicator errors list --json shows them"


def test_what_cannot_be_submitted_again_is_refused_with_the_reason(log: Log, tmp_path: Path) -> None:
    keep(log, a_raw({}), place="queue:raw")
    keep(log, a_raw({}), place="raw")
    other = ErrorRecord(
        time=1.0, service="notifier", reason="x", topic="notices", partition=0, offset=0, key=None, value=""
    )
    log.append([NewRecord(topic=ERRORS, key=None, value=to_json(other))])
    first = log.beginnings(ERRORS)[0]
    for number, reason in (
        (first, "error 0 cannot be submitted again: it came from 'queue:raw', and decode.input is log:raw"),
        (first + 2, "reject of notifier"),
        (9999, "no error 9999"),
    ):
        done = errors(tmp_path, "retry", str(number), "--yes")
        assert reason in str(done.exception)
    assert errors(tmp_path, "retry").exit_code == 2
    assert not submitted(log)


@pytest.mark.parametrize(
    ("uri", "attributes", "reason"),
    [
        (HGPUSH, {ORIGIN: NOTIFIER}, "the notifier wrote it; send the push again with: vcsreplicator replay"),
        (HGPUSH, {}, "edge.reserved lets only the notifier write eng-workflow.hgpush"),
        (HGPUSH.replace("eng", "ENG"), {}, "edge.reserved lets only the notifier write ENG-workflow.hgpush"),
        (HGPUSH.replace("1/", "x/"), {}, "uri: expected /submit/NAMESPACE/TYPE/VERSION/ID with a UUID as ID"),
        (f"/submit/a/b/1/{ID}", {"remote_addr": "192.0.2.1"}, None),
    ],
    ids=["notifier", "type", "capitals", "version", "private"],
)
def test_a_forged_reject_submits_no_more_than_the_edge_takes(
    log: Log, tmp_path: Path, uri: str, attributes: dict[str, str], reason: str | None
) -> None:
    (tmp_path / "services.toml").write_text(f'log = "sqlite://{tmp_path}/log.db"\n')
    said = from_json(ErrorRecord, a_reject(a_raw({})).value or b"")
    forged = replace(said, attributes={**(said.attributes or {}), "uri": uri, **attributes})
    log.append([NewRecord(topic=ERRORS, key=None, value=to_json(forged))])
    done = errors(tmp_path, "retry", "0", "--yes")
    if reason is not None:
        assert str(done.exception) == f"error 0 cannot be submitted again: {reason}"
        assert errors(tmp_path, "retry", "--type", "schema", "--yes").stdout.startswith(
            "submitted 0 again; cannot submit 1"
        )
        assert not submitted(log)
    else:
        [again] = submitted(log)
        assert "remote_addr" not in again.attributes


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        ("notices", "aGk=", "it came from 'notices', and decode.input is log:raw"),
        ("decoded", "aGk=", "it came from 'decoded', and decode.input is log:raw"),
        ("queue:raw", "aGk=", "it came from 'queue:raw', and decode.input is log:raw"),
        ("raw", "A", "its message was not kept"),
        ("raw", "aGk=é", "its message was not kept"),
    ],
)
def test_a_record_that_no_decoder_wrote_submits_and_hinders_nothing(
    log: Log, tmp_path: Path, place: str, value: str, reason: str
) -> None:
    strange = ErrorRecord(
        time=1.0,
        service="decode",
        reason="x",
        topic=place,
        partition=0,
        offset=0,
        key=None,
        value=value,
        attributes={"error_type": "schema", "uri": "/x"},
    )
    log.append([NewRecord(topic=ERRORS, key=None, value=to_json(strange))])
    keep(log, wrong := a_raw({"number": 1}))
    before = log.ends(NOTICES)
    done = errors(tmp_path, "retry", "--type", "schema", "--yes")
    assert done.stdout == "submitted 1 again; cannot submit 1: errors retry 0 says why\n"
    assert [again.payload for again in submitted(log)] == [wrong.payload]
    assert reason in str(errors(tmp_path, "retry", str(log.beginnings(ERRORS)[0]), "--yes").exception)
    assert log.ends(NOTICES) == before


@pytest.mark.processes
def test_rejects_of_the_decoders_queue_return_to_it_and_no_others(log: Log, tmp_path: Path, rabbitmq: Any) -> None:
    url = rabbitmq.vhost()
    with (tmp_path / "services.toml").open("a") as file:
        file.write(f'[decode]\nbroker = "{url}"\ninput = "queue:raw"\n')
    wrong = [a_raw({"number": number}) for number in range(3)]
    for raw, place in zip(wrong, ("queue:raw", "raw", "queue:other"), strict=True):
        keep(log, raw, place=place)
    put(url, "raw", b"earlier")
    assert "would submit 1" in errors(tmp_path, "retry", "--type", "schema").stdout
    assert waiting(url, "raw") == 1
    assert errors(tmp_path, "retry", "--type", "schema", "--yes").stdout.startswith(
        "submitted 1 again; cannot submit 2"
    )
    again = take_lines(url, "raw")[-1]
    assert again.payload == wrong[0].payload
    assert again.attributes.items() <= wrong[0].attributes.items()
    assert not submitted(log)


@pytest.mark.processes
def test_a_reject_of_a_queue_is_decoded_once_its_cause_is_gone(log: Log, tmp_path: Path, rabbitmq: Any) -> None:
    url, schemas = rabbitmq.vhost(), tmp_path / "schemas"
    with (tmp_path / "services.toml").open("a") as file:
        file.write(f'[decode]\nbroker = "{url}"\ninput = "queue:raw"\n')
    (schemas / "a" / "b").mkdir(parents=True)
    (schemas / "a" / "b" / "b.1.schema.json").write_text("{}")
    settings = settings_in(tmp_path, broker=url, input="queue:raw")
    with decoding(log, replace(settings, schemas=str(schemas))):
        put(url, "raw", to_line(a_raw()))
        eventually(lambda: rejects(log), "the reject")
    assert "submitted 1" in errors(tmp_path, "retry", "--type", "schema", "--yes").stdout
    with decoding(log, settings):
        eventually(lambda: records(log, "decoded"), "the message")
    assert waiting(url, "raw") == 0


@pytest.mark.processes
def test_a_broker_that_blocks_publishers_is_one_line(
    log: Log, tmp_path: Path, own_service: Callable[[type[RabbitMQ]], RabbitMQ]
) -> None:
    broker = own_service(RabbitMQ)
    with (tmp_path / "services.toml").open("a") as file:
        file.write(f'[decode]\nbroker = "{broker.url}"\ninput = "queue:raw"\n')
    keep(log, a_raw({}), place="queue:raw")
    broker.block_publishers()
    done = errors(tmp_path, "retry", "--type", "schema", "--yes")
    assert str(done.exception) == "the broker blocks publishers; look for its memory and disk alarms"


@pytest.mark.parametrize("password", ["", "wrong"])
@pytest.mark.processes
def test_a_broker_that_does_not_take_a_reject_is_one_line(
    log: Log, tmp_path: Path, rabbitmq: Any, password: str
) -> None:
    url = rabbitmq.vhost().replace("guest:guest@", f"guest:{password}@") if password else "amqp://guest@127.0.0.1:1//"
    with (tmp_path / "services.toml").open("a") as file:
        file.write(f'[decode]\nbroker = "{url}"\ninput = "queue:raw"\n')
    keep(log, a_raw({}), place="queue:raw")
    done = errors(tmp_path, "retry", "--type", "schema", "--yes")
    assert done.exit_code != 0
    assert "\n" not in str(done.exception)
    expected = f"{tmp_path}/services.toml: decode.broker: " if password else "127.0.0.1:1"
    assert str(done.exception).startswith(expected)
