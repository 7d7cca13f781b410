# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator errors`: rejects are listed and shown, and those of the decoder can be submitted again."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli.errors import command
from hgext.vcsreplicator.log import ERRORS, Log, NewRecord
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_records
from hgext.vcsreplicator.words.levels import ErrorRecord
from hgext.vcsreplicator.words.shape import to_json
from notifier.decode.decoding import Tools, decode
from notifier.decode.documents import load_schemas
from notifier.decode.rejection import DecodeReject
from notifier.decode.rejects import error_record
from notifier.decode.settings import SHIPPED
from notifier.decode.sources import RawArrival
from notifier.raw import RawMessage, from_line, raw_topic, to_line
from testing.builders.notices import with_topics
from testing.builders.submissions import a_raw


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    (tmp_path / "services.toml").write_text(f'log = "sqlite://{tmp_path}/log.db"\n')
    with open_log(f"sqlite://{tmp_path}/log.db") as log:
        log.create([raw_topic("raw")])
        yield with_topics(log)


def errors(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "-c", str(tmp_path / "services.toml")])


def keep(log: Log, raw: RawMessage, place: str = "raw") -> None:
    """Keep the reject of a message."""
    reject = decode(to_line(raw), Tools(schemas=load_schemas(SHIPPED)))
    assert isinstance(reject, DecodeReject)
    log.append([error_record(reject, RawArrival(line=b"", place=place, offset=7), 1000.0)])


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
    for raw in (a_raw(b"[]"), a_raw({}), a_raw({})):
        keep(log, raw)
    assert errors(tmp_path, "retry", "--type", "schema", "--yes").exit_code == 0
    assert [again.payload for again in submitted(log)] == [b"{}", b"{}"]


def test_what_cannot_be_submitted_again_is_refused_with_the_reason(log: Log, tmp_path: Path) -> None:
    keep(log, a_raw({}), place="queue:raw")
    other = ErrorRecord(
        time=1.0, service="notifier", reason="x", topic="notices", partition=0, offset=0, key=None, value=""
    )
    log.append([NewRecord(topic=ERRORS, key=None, value=to_json(other))])
    first = log.beginnings(ERRORS)[0]
    for number, reason in (
        (first, "it came from queue:raw"),
        (first + 1, "reject of notifier"),
        (9999, "no error 9999"),
    ):
        done = errors(tmp_path, "retry", str(number), "--yes")
        assert reason in str(done.exception)
    assert errors(tmp_path, "retry").exit_code == 2
    assert not submitted(log)
