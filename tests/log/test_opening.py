# SPDX-License-Identifier: GPL-2.0-or-later
"""`open_log`: what a URL may say, and one clear line for everything else."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from hgext.vcsreplicator.log.kafka.adapter import KafkaLog
from hgext.vcsreplicator.log.kafka.options import MAX_SECRET, parse
from hgext.vcsreplicator.log.opening import identify_log, open_log
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from testing.builders.certificates import certificate

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", "expected sqlite:///absolute/path or kafka://"),
        ("mysql://host/db", "expected sqlite:///absolute/path or kafka://.*got 'mysql://host/db'"),
        ("/var/lib/log.db", "expected sqlite:///absolute/path or kafka://"),
        ("kafka://[::1", "expected sqlite:///absolute/path or kafka://"),
        ("sqlite://relative/log.db", "expected sqlite:///absolute/path"),
        ("sqlite:////log.db", "expected sqlite:///absolute/path"),
        ("sqlite:///folder/", "expected sqlite:///absolute/path"),
        ("sqlite:///log.db?mode=ro", "without options"),
        ("kafka://", "expected host:port, got ''"),
        ("kafka://host", "expected host:port, got 'host'"),
        ("kafka://host:port", "expected host:port, got 'host:port'"),
        ("kafka://host:0", "expected host:port, got 'host:0'"),
        ("kafka://host:9092,", "expected host:port, got ''"),
        ("kafka://user:secret@host:9092", "expected host:port"),
        ("kafka://host:9092/topic", "got a path '/topic'"),
        ("kafka://host:9092?topic-prefix=a/b", "topic-prefix: expected letters, digits"),
        ("kafka://host:9092?replication-factor=many", "replication-factor: expected a number"),
        ("kafka://host:9092?min-insync-replicas=0", "min-insync-replicas: expected a number"),
        ("kafka://host:9092?colour=red", "option colour: expected topic-prefix"),
        ("kafka://host:9092?acks=1", "option acks: cannot be changed"),
        ("kafka://host:9092?auto-offset-reset=latest", "option auto_offset_reset: cannot be changed"),
        ("kafka://host:9092?request_timeout_ms=soon", "option request_timeout_ms: expected a number, got 'soon'"),
        ("kafka://host:9092?ssl_check_hostname=no", "option ssl_check_hostname: expected true or false, got 'no'"),
        ("kafka://host:9092?client_id=a&client-id=b", "option client_id: expected once"),
        ("kafka://host:9092?sasl_plain_password_file=/nowhere", "sasl_plain_password_file: cannot read /nowhere"),
        ("kafka://host:9092?ssl_cafile=/nowhere.pem", "option ssl_cafile: expected a file, /nowhere.pem is none"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_in_one_line(url: str, expected: str) -> None:
    with pytest.raises(BadConfig, match=expected) as caught:
        open_log(url)
    assert "\n" not in str(caught.value)


def test_certificates_that_cannot_be_used_are_named_in_one_line(tmp_path: Path) -> None:
    good, words = certificate(tmp_path, "good", "IP:127.0.0.1"), tmp_path / "words.pem"
    other = certificate(tmp_path, "other", "IP:127.0.0.1")
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-aes128", "-passout", "pass:s3cret", "-in", str(good.with_suffix(".key"))]
    subprocess.run([*command, "-out", str(locked)], check=True, capture_output=True)
    words.write_text("no certificate\n")
    parse(f"kafka://host:9092?ssl_cafile={good}&ssl_certfile={good}&ssl_keyfile={good.with_suffix('.key')}")
    parse(f"kafka://host:9092?ssl_certfile={good}&ssl_keyfile={locked}&ssl_password=s3cret")
    for options, expected in {
        f"ssl_cafile={words}": f"option ssl_cafile: cannot use {words}: ",
        f"ssl_crlfile={words}": f"option ssl_crlfile: cannot use {words}: ",
        f"ssl_certfile={words}": f"option ssl_certfile: cannot use {words}: ",
        f"ssl_certfile={good}&ssl_keyfile={other.with_suffix('.key')}": "cannot use .*good.pem and .*other.key: .*MISMATCH",
        f"ssl_certfile={good}&ssl_keyfile={locked}": "cannot use .*good.pem and .*locked.key: ",
    }.items():
        with pytest.raises(BadConfig, match=expected) as caught:
            open_log(f"kafka://host:9092?security_protocol=SSL&{options}")
        assert "\n" not in str(caught.value)


def test_a_certificate_that_vanishes_later_is_waited_for_and_named(tmp_path: Path) -> None:
    authority = certificate(tmp_path, "authority", "IP:127.0.0.1")
    with open_log(f"kafka://127.0.0.1:1?security_protocol=SSL&ssl_cafile={authority}&bootstrap_timeout_ms=50") as log:
        authority.unlink()
        with pytest.raises(Unavailable, match=f"option ssl_cafile: cannot use {authority}: "):
            log.partitions("events")


def test_a_password_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_bytes(b"\xffs3cret")
    password.chmod(0o600)
    with pytest.raises(BadConfig, match=f"option sasl_plain_password_file: {password}: expected UTF-8") as caught:
        parse(f"kafka://one:9092?sasl_plain_password_file={password}")
    assert "s3cret" not in str(caught.value)


def test_a_password_file_with_more_than_a_secret_is_refused(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("x" * (MAX_SECRET + 1))
    password.chmod(0o600)
    expected = f"option sasl_plain_password_file: {password}: expected a secret of at most {MAX_SECRET} bytes"
    with pytest.raises(BadConfig, match=expected) as caught:
        parse(f"kafka://one:9092?sasl_plain_password_file={password}")
    assert "\n" not in str(caught.value)
    password.write_text("x" * MAX_SECRET)
    assert (
        len(parse(f"kafka://one:9092?sasl_plain_password_file={password}").properties["sasl_plain_password"])
        == MAX_SECRET
    )


def test_a_password_that_vanishes_later_is_waited_for_and_named(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    password.chmod(0o600)
    with open_log(f"kafka://127.0.0.1:1?sasl_plain_password_file={password}&bootstrap_timeout_ms=50") as log:
        password.unlink()
        with pytest.raises(Unavailable, match=f"option sasl_plain_password_file: cannot read {password}: "):
            log.partitions("events")


def test_a_password_that_changes_in_its_file_is_that_of_the_next_client(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("former\n")
    password.chmod(0o600)
    options = parse(f"kafka://one:9092?sasl_plain_password_file={password}")
    password.write_bytes(b"newer\r\n")
    assert options.renew().properties == {"sasl_plain_password": "newer"}


def test_a_kafka_url_names_brokers_and_any_property_of_the_client(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    (tmp_path / "password").chmod(0o640)
    options = parse(
        "kafka://one:9092,two:9093?topic-prefix=hg.&replication-factor=3&min-insync-replicas=2&security_protocol=SASL_SSL"
        f"&sasl-mechanism=SCRAM-SHA-512&sasl_plain_username=hg&sasl_plain_password_file={tmp_path}/password"
        "&ssl_check_hostname=false&request_timeout_ms=2500&api_version=4.0"
    )
    assert options.servers == ("one:9092", "two:9093")
    assert (options.prefix, options.replication, options.in_sync) == ("hg.", 3, 2)
    assert options.properties == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "hg",
        "sasl_plain_password": "s3cret",
        "ssl_check_hostname": False,
        "request_timeout_ms": 2500,
        "api_version": (4, 0),
    }


@pytest.mark.parametrize("option", ["sasl_plain_password_file", "ssl_password_file"])
@pytest.mark.parametrize(("mode", "is_fine"), [(0o600, True), (0o640, True), (0o644, False), (0o602, False)])
def test_a_password_in_a_file_that_all_users_may_use_is_refused(
    tmp_path: Path, option: str, mode: int, is_fine: bool
) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    file.chmod(mode)
    if is_fine:
        assert "s3cret" in parse(f"kafka://one:9092?{option}={file}").properties.values()
        return
    complaint = f"option {option}: {file} has mode {mode:04o}, expected 0640 or stricter: chmod o= {file}"
    with pytest.raises(BadConfig, match=complaint):
        parse(f"kafka://one:9092?{option}={file}")


def test_a_pipe_in_place_of_a_password_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(
        BadConfig, match=r"^log: option ssl_password_file: .*/pipe: expected a file, got a folder, a pipe or"
    ):
        parse(f"kafka://one:9092?ssl_password_file={tmp_path}/pipe")


@pytest.mark.parametrize("version", ["x", "4.x", "\u00b2", ""])
def test_a_version_of_kafka_that_is_none_is_refused(version: str) -> None:
    with pytest.raises(BadConfig, match=r"^log: option api_version: expected a version such as 4\.0, got"):
        parse(f"kafka://one:9092?api_version={version}")


def test_messages_never_show_the_options_of_a_url() -> None:
    assert parse("kafka://one:9092?sasl_plain_password=s3cret").url == "kafka://one:9092"


def test_a_kafka_that_does_not_answer_is_unavailable_when_it_is_used() -> None:
    log = open_log("kafka://127.0.0.1:1?bootstrap_timeout_ms=100")
    assert isinstance(log, KafkaLog)
    with pytest.raises(Unavailable, match=r"kafka://127\.0\.0\.1:1: list the topics: no answer; are the brokers up"):
        log.partitions("events")


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_an_embedded_log_that_is_lost_is_named_and_made_only_on_request(tmp_path: Path, what: str) -> None:
    """What waits for a lost log would go on with an empty one."""
    path = tmp_path / "log.db"
    if what == "empty":
        path.touch()
    with pytest.raises(Unavailable) as caught:
        open_log(f"sqlite://{path}")
    assert str(caught.value) == (
        f"sqlite://{path}: the log is {what}; if it was there, stop all services and restore it "
        "(docs/operating.md, Restore); in a new installation run: vcsreplicator topics create"
    )
    assert path.exists() == (what == "empty")
    open_log(f"sqlite://{path}", creates=True).close()
    open_log(f"sqlite://{path}").close()


@pytest.mark.parametrize("what", ["empty", "another"])
def test_a_file_that_is_no_log_is_not_written_to(tmp_path: Path, what: str) -> None:
    """A copy may just be restored there, or another program use it."""
    path = tmp_path / "log.db"
    path.touch()
    if what == "another":
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE a (b)")
    before = path.read_bytes()
    with pytest.raises((Unavailable, BadConfig)):
        open_log(f"sqlite://{path}")
    assert ([each.name for each in tmp_path.iterdir()], path.read_bytes()) == ([path.name], before)


def test_an_adapter_is_imported_only_when_a_url_asks_for_it(tmp_path: Path) -> None:
    program = f"""
import sys
from hgext.vcsreplicator.log.opening import open_log
print("sqlite3" in sys.modules, "kafka" in sys.modules)
open_log("sqlite://{tmp_path}/log.db", creates=True)
print("sqlite3" in sys.modules, "kafka" in sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert out.split() == ["False", "False", "True", "False"]


def test_the_name_of_a_log_tells_it_from_others_and_tells_no_secret(tmp_path: Path) -> None:
    kafka = "kafka://user:password@kafka1:9092?topic-prefix=hg."
    first = f"sqlite://{tmp_path}/a%20log.db"
    names = [identify_log(url) for url in (kafka, kafka + "x", first, "sqlite://%00", "sqlite:///nonexistent", "")]
    assert len(set(names)) == len(names)
    assert identify_log(kafka) == names[0]
    assert "password" not in names[0]


def test_users_of_one_kafka_name_its_log_alike() -> None:
    ours = "kafka://kafka1:9092,kafka2:9092?topic-prefix=hg.&sasl_plain_username="
    same = [ours + "relay", ours + "dashboard", "kafka://kafka2:9092,kafka1:9092?client_id=x&topic_prefix=hg."]
    assert len({identify_log(url) for url in same}) == 1
    others = ["kafka://kafka1:9092,kafka2:9092", "kafka://kafka1:9092?topic-prefix=hg.", "kafka://[", "kafka://[x"]
    assert len({identify_log(url) for url in (*same, *others)}) == 5


def test_an_embedded_log_that_was_put_back_is_another_one(tmp_path: Path) -> None:
    file, copy = tmp_path / "a log.db", tmp_path / "copy"
    url = f"sqlite://{tmp_path}/a%20log.db"
    file.touch()
    copy.touch()
    before = identify_log(url)
    assert identify_log(url) == before
    copy.rename(file)
    assert identify_log(url) != before
