# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator adopt`: what hg.mozilla.org's files say becomes our configuration, and nothing is dropped in silence."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.adopt_conversion import Conversion
from hgext.vcsreplicator.cli.adopt_mapping import LANDING_ACCOUNTS, MAPPING, Counterpart
from hgext.vcsreplicator.cli.config import _check_sections
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.words.errors import BadConfig
from pushlog.settings import LANDING_OPTIONS
from testing.services.cache import CHECKOUT

CONSUMER = """\
# a mirror
[consumer]
hosts = kafka1.example:9092, kafka2.example:9092
client_id = hgweb0
group = hgweb0.dmz
backup = no
todelete_path = /repo/hg/todelete
[programs]
hg = /var/hg/bin/hg
[path_rewrites]
{moz} = /repo/hg/mozilla
[pull_url_rewrites]
{moz} = https://hgssh.example
[public_url_rewrites]
{moz} = https://hg.example
[replicationrules]
include.all = re:\\{moz\\}/.*
exclude.one = path:{moz}/private
"""
NOTIFIERS = """\
[pulseconsumer]
hosts = kafka1.example:9092, kafka2.example:9092
group = pulsenotifier
[pulse]
hostname = pulse.example
port = 5671
userid = hgpushes
password = s3cr3t
exchange = exchange/hgpushes/v1
exchange2 = exchange/hgpushes/v2
virtual_host = /
ssl = true
routing_key_strip_prefix = https://hg.example/
[awsevents]
access_key_id = AKIA0
secret_access_key = t0ps3cr3t
region = us-west-2
topic_arn = arn:aws:sns:us-west-2:123456789012:events
bucket = events
[ignore_paths]
{moz}/users/ =
"""
MASTER = """\
%include /etc/mercurial/site.rc
[extensions]
replication = /var/hg/ext.py
[replicationproducer]
hosts = kafka1.example:9092, kafka2.example:9092
partitionmap.0 = 0,1:.*
reqacks = -1
acktimeout = 10000
[replicationpathrewrites]
/repo/hg/mozilla/ = {moz}/
[replication]
unfiltereduser = sync@example.com
role = hgssh
[pushlog]
autolanduser = lander@example.com
timeoutro = 5000
"""


@pytest.fixture
def theirs(tmp_path: Path) -> list[str]:
    """The files of a master, a mirror and its notifiers."""
    texts = {"consumer.ini": CONSUMER, "notifiers.ini": NOTIFIERS, "master.hgrc": MASTER}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return [str(tmp_path / name) for name in texts]


def adopt(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(program, ["adopt", *words])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def ours(tmp_path: Path, theirs: list[str]) -> Path:
    """The folder with our files."""
    adopt(*theirs, "--output", str(tmp_path / "ours"))
    return tmp_path / "ours"


def test_the_result_is_a_configuration_of_ours(ours: Path) -> None:
    _check_sections(load(ours / "vcsreplicator.toml"))
    found = tomllib.loads((ours / "vcsreplicator.toml").read_text())
    assert found["log"] == "kafka://kafka1.example:9092,kafka2.example:9092?topic-prefix=hg."
    assert found["relay"]["roots"] == {"/repo/hg/mozilla": ""}
    assert found["mirror"] == {"hgweb0-dmz": {"root": "/repo/hg/mozilla", "master": "https://hgssh.example/"}}
    assert found["public"] == {"ignore": ["users/"], "urls": {"": "https://hg.example"}}
    assert found["notifier"]["pulse-v1"]["url"] == "amqps://hgpushes@pulse.example:5671/"
    assert found["notifier"]["pulse-v2"]["exchange"] == "exchange/hgpushes/v2"
    assert found["notifier"]["sns"]["topic-arn"] == "arn:aws:sns:us-west-2:123456789012:events"


def test_the_masters_hgrc_has_the_built_in_landing_accounts(ours: Path) -> None:
    hg = str(Path(sys.executable).with_name("hg"))
    off = ["--config", "extensions.pushlog=!", "--config", "extensions.vcsreplicator=!"]
    command = [hg, "config", "-T", "{name}={value}\n", "pushlog", "vcsreplicator", "vcsreplicator-roots", *off]
    environment = {**os.environ, "HGRCPATH": str(ours / "master.hgrc")}
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    accounts = {**LANDING_ACCOUNTS, "autolanduser": "lander@example.com"}
    assert f"pushlog.landingusers={', '.join(accounts.values())}\n" in text
    assert "pushlog.timeoutro=5000\n" in text
    assert "vcsreplicator.acknowledge-timeout=10\n" in text
    assert "vcsreplicator.snapshot-allow=sync@example.com\n" in text
    assert "vcsreplicator-roots./repo/hg/mozilla=.\n" in text
    assert {key.encode() for key in LANDING_ACCOUNTS} == set(LANDING_OPTIONS)


def test_rules_become_commands_and_what_has_no_counterpart_a_comment(theirs: list[str]) -> None:
    text = adopt(*theirs)
    assert "# then type: vcsreplicator roster add hgweb0-dmz --include 're:.*' --exclude 'path:private'" in text
    for setting, reason in (
        ("[replicationproducer] reqacks = -1", "no counterpart: every record is acknowledged"),
        ("[replicationproducer] partitionmap.0 = 0,1:.*", "no counterpart: the repository's id decides"),
        ("[consumer] todelete_path = /repo/hg/todelete", "no counterpart: what is deleted is kept"),
        ("[replication] role = (its value is not shown)", "not documented, not converted"),
        ("[extensions] (replication)", "keep what is not of that system"),
        ("[directives] (%include /etc/mercurial/site.rc)", "keep what is not of that system"),
    ):
        [line] = [line for line in text.splitlines() if setting in line]
        assert line.startswith("# ")
        assert reason in line


def test_no_secret_is_printed(theirs: list[str]) -> None:
    text = adopt(*theirs)
    assert not [secret for secret in ("s3cr3t", "t0ps3cr3t", "AKIA0") if secret in text]
    assert "[pulse] password = (its value is not shown): no counterpart: write it into" in text


def test_no_value_that_may_be_a_secret_is_printed(tmp_path: Path) -> None:
    keys = {"pulse": "Password", "consumer": "sasl_plain_password", "awsevents": "session_token", "other": "token"}
    text = "".join(f"[{section}]\n{key} = s3cr3t\n" for section, key in keys.items())
    urls = "{moz} = https://u:s3cr3t@hg.example/x\n{l10n} = https://u:s3cr@3t@hg.example/y\n"
    (tmp_path / "x.ini").write_text(f"{text}[pull_url_rewrites]\n{urls}")
    text = adopt(str(tmp_path / "x.ini"))
    assert "s3cr" not in text
    assert all(key in text for key in keys.values())
    assert 'master = "https://u:PASSWORD@hg.example/x/"' in text


@pytest.mark.parametrize("known", MAPPING, ids=lambda known: f"{known.section}-{known.key}")
def test_every_setting_of_the_table_is_converted_or_named(known: Counterpart) -> None:
    key = known.key.replace("*", "{moz}/x" if known.section == "ignore_paths" else "7531")
    value = {"backup": "yes", "ssl": "false", "port": "7531"}.get(key, "/7531")
    if known.section in ("replicationrules", "pull_url_rewrites"):
        value = "path:7531" if known.section == "replicationrules" else "https://7531"
    if key == "acktimeout":
        value = "7531000"
    sections: dict[str, dict[str, str | None]] = {"consumer": {"group": "m"}} if known.section in MIRRORS else {}
    sections.setdefault(known.section, {})[key] = value
    without = Conversion({"f": {**sections, known.section: {"group": "m"} if known.section == "consumer" else {}}})
    conversion = Conversion({"f": sections})
    texts, before = conversion.convert(), without.convert()
    comments = list(conversion.comments())
    if known.ours:
        assert comments == []
        assert (texts, conversion.commands) != (before, without.commands)
    else:
        assert len([line for line in comments if f"[{known.section}] {key} = " in line and known.note in line]) == 1


MIRRORS = ("consumer", "path_rewrites", "pull_url_rewrites", "replicationrules")


def test_what_a_second_file_says_otherwise_is_named() -> None:
    first = {"consumer": {"group": "a", "hosts": "k1:9092"}, "public_url_rewrites": {"{moz}": "https://one.example"}}
    second = {"consumer": {"group": "b", "hosts": "k2:9092"}, "public_url_rewrites": {"{moz}": "https://two.example"}}
    conversion = Conversion({"one": first, "two": second})  # type: ignore[dict-item]
    found = tomllib.loads(conversion.convert()["services"])
    assert found["mirror"].keys() == {"a", "b"}
    assert found["public"]["urls"] == {"": "https://one.example"}
    assert list(conversion.comments()) == [
        "two: [consumer] hosts = k2:9092: not converted: all services use one log, here k1:9092",
        "two: [public_url_rewrites] {moz} = https://two.example: not converted: "
        "another file says https://one.example, and the first counts",
    ]


def test_of_a_folder_with_two_names_the_first_counts_in_both_files() -> None:
    files = {name: {"replicationpathrewrites": {"/repo": wire}} for name, wire in (("one", "{moz}"), ("two", "{l10n}"))}
    texts = Conversion(files).convert()  # type: ignore[arg-type]
    assert tomllib.loads(texts["services"])["relay"]["roots"] == {"/repo": "moz"}
    assert "[vcsreplicator-roots]\n/repo = moz\n\n" in texts["master"]


def test_mirrors_of_one_name_are_told_apart() -> None:
    files = {str(number): {"consumer": {"group": group}} for number, group in enumerate(("a.b", "a-b", "a b"))}
    conversion = Conversion(files)  # type: ignore[arg-type]
    assert tomllib.loads(conversion.convert()["services"])["mirror"].keys() == {"a-b", "a-b-2", "a-b-3"}
    assert len(conversion.commands) == 3


def test_what_a_file_says_in_several_lines_is_no_section_of_an_hgrc(tmp_path: Path) -> None:
    odd = "x\n  [hooks]\n  pre-serve = touch /tmp/x\n"
    (tmp_path / "hgrc").write_text(
        f"[replication]\nunfiltereduser = {odd}[pushlog]\nuserprefix = {odd}autolanduser = {odd}"
    )
    text = adopt(str(tmp_path / "hgrc"))
    assert not [line for line in text.splitlines() if line.startswith(("[hooks]", "pre-serve"))]
    assert "snapshot-allow = x [hooks] pre-serve = touch /tmp/x\n" in text


def test_a_name_in_a_file_is_no_command() -> None:
    rules = {"exclude; rm -rf ~ #": "path:x", "include.a": "path:it's; rm -rf ~"}
    conversion = Conversion({"f": {"consumer": {"group": "m"}, "replicationrules": rules}})  # type: ignore[dict-item]
    conversion.convert()
    assert conversion.commands == ["vcsreplicator roster add m --include 'path:it'\\''s; rm -rf ~'"]
    assert len(list(conversion.comments())) == 1


@pytest.mark.parametrize("text", ["\U0001f600", "\x7f", '"\\', "\x9b31m", "a\nb"])
def test_any_text_is_text_of_toml(text: str) -> None:
    sections = {"public_url_rewrites": {"{moz}": f"https://{text}"}, "ignore_paths": {"{moz}/" + text: None}}
    services = Conversion({"f": sections}).convert()["services"]
    assert tomllib.loads(services)["public"] == {"ignore": [text], "urls": {"": f"https://{text}"}}
    assert services.replace("\n", "").isprintable()


@pytest.mark.parametrize(("there", "here"), [("/", ""), ("", ""), ("/hg", "%2Fhg"), ("a/b", "a%2Fb")])
def test_a_virtual_host_keeps_its_name(there: str, here: str) -> None:
    services = Conversion({"f": {"pulse": {"virtual_host": there}}}).convert()["services"]
    assert tomllib.loads(services)["notifier"]["pulse-v1"]["url"] == f"amqps://guest@BROKER:5671/{here}"


def test_what_belongs_to_no_mirror_or_would_be_a_second_master_is_named() -> None:
    urls = {"{moz}": "https://one.example", "{l10n}": "https://two.example"}
    files = {
        "mirror": {"consumer": {"group": "m"}, "pull_url_rewrites": urls},
        "other": {"path_rewrites": {"{moz}": "/x"}},
    }
    conversion = Conversion(files)  # type: ignore[arg-type]
    assert 'master = "https://one.example/"' in conversion.convert()["services"]
    assert list(conversion.comments()) == [
        "mirror: [pull_url_rewrites] {l10n} = https://two.example: not converted: "
        "a mirror has one master, whose URL goes before all wire paths",
        "other: [path_rewrites] {moz} = /x: not converted: this file has no section [consumer], so it belongs to no mirror",
    ]


def test_several_prefixes_keep_their_names() -> None:
    folders = {"{moz}": "/repo/hg/mozilla", "{l10n}": "/repo/hg/l10n"}
    rules = {"include.a": "re:\\{l10n\\}/.*"}
    conversion = Conversion({"f": {"consumer": {"group": "m"}, "path_rewrites": folders, "replicationrules": rules}})  # type: ignore[dict-item]
    found = tomllib.loads(conversion.convert()["services"])["mirror"]["m"]
    assert found == {"root": "/repo/hg", "paths": {"moz": "mozilla", "l10n": "l10n"}}
    assert conversion.commands == ["vcsreplicator roster add m --include 're:l10n/.*'"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"no section\n", "x.ini: expected sections"),
        (b"[a\n", "x.ini: expected sections"),
        (b"[a]\n\xff\n", "x.ini: expected sections"),
        (b"[consumer]\n[path_rewrites]\n{a} = relative\n{b} = /b\n", "{a}: expected an absolute path, got 'relative'"),
        (b"[consumer]\n[path_rewrites]\n{a}\n", "{a}: expected an absolute path, got None"),
        *(
            (f"[replicationproducer]\nacktimeout = {odd}\n".encode(), "milliseconds")
            for odd in ("nan", "-1", "9" * 400)
        ),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path: Path, text: bytes, expected: str) -> None:
    (tmp_path / "x.ini").write_bytes(text)
    error = CliRunner().invoke(program, ["adopt", str(tmp_path / "x.ini")]).exception
    assert isinstance(error, BadConfig)
    assert expected in str(error)
    assert str(error).isprintable()


def test_a_file_of_another_editor_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.ini").write_bytes(b"\xef\xbb\xbf[consumer]\r\ngroup = a\r\n")
    assert "[mirror.a]\n" in adopt(str(tmp_path / "x.ini"))


@pytest.mark.parametrize("folder", ["x.ini", "x.ini/below"])
def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, folder: str) -> None:
    (tmp_path / "x.ini").write_text("[consumer]\n")
    done = CliRunner().invoke(program, ["adopt", str(tmp_path / "x.ini"), "--output", str(tmp_path / folder)])
    assert isinstance(done.exception, BadConfig)
    assert "--output: " in str(done.exception)


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path, theirs: list[str]) -> None:
    (tmp_path / "vcsreplicator.toml").write_text("mine")
    done = CliRunner().invoke(program, ["adopt", *theirs, "--output", str(tmp_path)])
    assert "vcsreplicator.toml already exists" in str(done.exception)
    assert (tmp_path / "vcsreplicator.toml").read_text() == "mine"


def test_the_page_has_the_table_that_the_code_has() -> None:
    rows: dict[tuple[str, str, str], list[str]] = {}
    for each in MAPPING:
        rows.setdefault((each.section, each.ours, each.note), []).append(f"`{each.key}`")
    lines = ["| there | here | how, or why not |", "|---|---|---|"]
    for (section, ours, note), keys in rows.items():
        lines.append(f"| `[{section}]` {', '.join(keys)} | {ours or 'none'} | {note} |")
    assert "\n".join(lines) + "\n" in (CHECKOUT / "docs/adopt.md").read_text()
