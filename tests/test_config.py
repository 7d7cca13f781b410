# SPDX-License-Identifier: GPL-2.0-or-later
"""The configuration file: every mistake is one line with file, key and what was expected."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.config import _check_sections
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import BadConfig, TopicMissing

pytestmark = pytest.mark.processes

NESTED = '[relay]\nsocket = "/s"\nsource = "hg://m"\n[relay.roots]\n"/m" = ""\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    poll_timeout: float
    name: str
    workers: int = 2

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers: expected a number from 1, got {self.workers}")


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "x.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("log = 5", "log: expected text, got 5"),
        ("", "log: expected text, got None"),
        ('log = "sqlite:///x"\n[mirorr.a]', "mirorr: unknown, expected one of mirror, "),
        ("log = ", "not TOML: "),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_is_refused_when_read(tmp_path: Path, text: str, complaint: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(BadConfig) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: {complaint}")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(BadConfig, match=r"/nowhere/x.toml: cannot be read: No such file"):
        load("/nowhere/x.toml")


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("poll-timeout = 'fast'", "mirror.a.poll-timeout: expected a number, got 'fast'"),
        ("", "mirror.a: key 'poll-timeout' is missing"),
        ("poll-timeout = 1\nroots = 1", "mirror.a: unknown key 'roots', expected one of poll-timeout, workers"),
        ("poll-timeout = 1\nworkers = 0", "mirror.a.workers: expected a number from 1, got 0"),
    ],
)
def test_a_wrong_section_is_refused_with_file_and_key(tmp_path: Path, section: str, complaint: str) -> None:
    file = written(tmp_path, f'log = "sqlite:///x"\n[mirror.a]\n{section}\n')
    with pytest.raises(BadConfig) as caught:
        load(file).settings(Example, "mirror", "a", name="a")
    assert str(caught.value) == f"{file}: {complaint}"


def test_a_missing_section_is_named_with_those_there_are(tmp_path: Path) -> None:
    file = written(tmp_path, 'log = "sqlite:///x"\n[mirror.a]\n[mirror.b]\n')
    with pytest.raises(BadConfig, match=r"section \[mirror.c\] is missing \(there are: a, b\)"):
        load(file).settings(Example, "mirror", "c", name="c")


def test_a_section_becomes_its_settings(tmp_path: Path) -> None:
    file = written(tmp_path, 'log = "sqlite:///x"\n[mirror.a]\npoll-timeout = 1\nworkers = 3\n')
    assert load(file).settings(Example, "mirror", "a", name="a") == Example(poll_timeout=1.0, name="a", workers=3)


@pytest.mark.parametrize(
    "value", ["nonsense", "host", "host:", ":80", "host:99999", "host:x", "host:0", "host:\u00b2", "host:" + "9" * 5000]
)
def test_an_address_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    file = written(tmp_path, f'log = "sqlite:///x"\n[listen]\nrelay = "{value}"\n')
    with pytest.raises(BadConfig, match=r"listen.relay: expected host:port, got"):
        load(file).listen("relay")


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ('[mirror.a]\nroot = "/r"\n[mirror.b]\nroot = "/r/"', r"mirror.b.root: /r/ is the root of mirror a"),
        (f'{NESTED}[mirror.a]\nroot = "/m"\n', "mirror.a.root: /m is /m of [relay.roots]: expected a folder apart"),
        (f'{NESTED}[mirror.a]\nroot = "/m/a"\n', "mirror.a.root: /m/a lies below /m of [relay.roots]"),
        (f'{NESTED}[mirror.a]\nroot = "/"\n', "mirror.a.root: / lies above /m of [relay.roots]"),
        ('[mirror.a]\nroot = "/r"\nmaster = "https://dana:secret@host/"', r"mirror.a.master: a password in a URL"),
        (
            '[public.urls]\n[notifier.it]\ntype = "webhook"\ndatabase = "/d"\n'
            '[notifier.it.subscriptions.a]\nurl = "http://x/"',
            "notifier.it.subscriptions.a.url: expected https; to allow http as well, set allow-http = true",
        ),
    ],
)
def test_a_check_finds_what_would_only_hurt_later(tmp_path: Path, section: str, complaint: str) -> None:
    file = written(tmp_path, f'log = "sqlite://{tmp_path}/log.db"\n{section}\n')
    result = CliRunner().invoke(program, ["config", "check", "--config", str(file)])
    assert isinstance(result.exception, BadConfig)
    assert complaint in str(result.exception)
    assert "secret" not in str(result.exception)


class Hiding:
    """A log on Kafka whose user may see one topic."""

    def partitions(self, topic: str) -> int:
        if topic != "events":
            raise TopicMissing(f"topic {topic}: hidden from this user")
        return 16


@pytest.fixture
def hiding_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hgext.vcsreplicator.cli.config.log_of", lambda _: nullcontext(Hiding()))


@pytest.mark.parametrize(("root", "is_named"), [("/m", False), ("/m/a", True), ("/other", False)])
@pytest.mark.usefixtures("hiding_log")
def test_a_mirror_below_a_root_of_the_master_is_named(tmp_path: Path, root: str, is_named: bool) -> None:
    file = written(tmp_path, f'log = "kafka://127.0.0.1:1"\n{NESTED}[mirror.a]\nroot = "{root}"\n')
    result = CliRunner().invoke(program, ["config", "check", "--config", str(file)])
    assert ("lies below /m of [relay.roots]: expected a folder apart from it, if both are on one" in result.output) == (
        is_named
    )


@pytest.mark.usefixtures("hiding_log")
def test_topics_that_a_kafka_user_may_not_see_are_not_called_missing(tmp_path: Path) -> None:
    file = written(tmp_path, 'log = "kafka://127.0.0.1:1"\n')
    result = CliRunner().invoke(program, ["config", "check", "--config", str(file)])
    assert (
        "notices, notifier, watches, errors, or hides them from this user by its ACLs; run: vcsreplicator topics create"
        in str(result.exception)
    )


def test_mirrors_on_two_machines_have_one_root_in_a_shared_file(tmp_path: Path) -> None:
    mirrors = '[mirror.a]\nroot = "/r"\n[mirror.b]\nroot = "/r"\n'
    _check_sections(load(written(tmp_path, f'log = "kafka://localhost:9092"\n{mirrors}')))


PUBLIC = '[public.urls]\n"" = "https://hg.example/"\n'
RELAY = 'socket = "/s"\nsource = "hg://m"\n'


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("listen = 5", "listen: expected a section, got 5"),
        ("[aggregator]\nbeat = nan", "aggregator.beat: expected a number of seconds from 0.01 to 3600, got nan"),
        ('[aggregator]\nbeat = "1m"', "aggregator.beat: expected a number of seconds, got '1m'"),
        (f'[relay]\n{RELAY}blob-age = "1w"\nroots = {{ "/r" = "" }}', "relay.blob-age: expected a number of days, got"),
        (
            '[mirror.a]\nroot = "/r"\nbuffer-bytes = "64M"',
            "mirror.a.buffer-bytes: expected a whole number of bytes, got '64M'",
        ),
        ("[aggregator]\nbatch = true", "aggregator.batch: expected a whole number, got True"),
        ("[health]\nlate = inf", "health.late: expected a number of seconds from 0 to 86400, got inf"),
        ("[health]\nbehind = -1", "health.behind: expected a number from 0 to 1000000000, got -1"),
        ("[verify]\nagain = nan", "verify.again: expected a number of seconds from 0 to 86400, got nan"),
        ("[verify]\npace = 1", "verify: pace is no longer a key; write share, the part of its time"),
        ("[verify]\nshare = 0", "verify.share: expected a number from 0.001 to 1, got 0"),
        ("[verify]\nrest = 1e300", "verify.rest: expected a number of seconds from 0 to 2678400, got 1e+300"),
        ("[bootstrap]\nworkers = 99999", "bootstrap.workers: expected a number from 1 to 100, got 99999"),
        (
            f'[relay]\n{RELAY}scan = nan\nroots = {{ "/r" = "" }}',
            "relay.scan: expected a number of seconds from 0.01 to 86400, got",
        ),
        (f'[relay]\n{RELAY}roots = {{ "r" = "" }}', "relay.roots: expected an absolute folder, got 'r'"),
        (f'[relay]\n{RELAY}roots = {{ "/r" = "../x" }}', "relay.roots: repository path '../x': the part '..' is not"),
        (f'[relay]\n{RELAY}blobs = "ftp://x"\nroots = {{ "/r" = "" }}', "relay.blobs: expected file:///"),
        ('[relay]\nsocket = "s"\nsource = "hg://m"\nroots = { "/r" = "" }', "relay.socket: expected an absolute path"),
        (
            '[mirror.a]\nroot = "/r"\nheavy-workers = 0',
            "mirror.a.heavy-workers: expected a number from 1 to 1000, got 0",
        ),
        (
            '[mirror.a]\nroot = "/r"\nslow-after = -1',
            "mirror.a.slow-after: expected a number of seconds from 0.01 to 2678400, got",
        ),
        ('[mirror.a]\nroot = "/r"\nbuffer-bytes = -1', "mirror.a.buffer-bytes: expected a number of bytes from 1 to "),
        ('[mirror.a]\nroot = "/r"\nslow_after = 1', "mirror.a: unknown key 'slow_after', expected 'slow-after'"),
        ('[mirror.a]\nroot = "/r"\nname = "b"', "mirror.a: unknown key 'name', the section's name says it"),
        (
            '[mirror.a]\nroot = "/r"\npaths = { "a" = "../.." }',
            "mirror.a.paths: repository path '../..': the part '..'",
        ),
        ('[mirror.a]\nroot = "/r"\nblobs = "ftp://x"', "mirror.a.blobs: expected file:///"),
        ('[mirror.a]\nroot = "/r"\nblobs = "http://["', "mirror.a.blobs: expected file:///"),
        ('[mirror.a]\nroot = "/r"\nmaster = "http://["', "mirror.a.master: expected a URL http://, https:// or ssh://"),
        (
            '[mirror.a]\nroot = "/r"\nmaster = "HTTPS://h/"',
            "mirror.a.master: expected a URL http://, https:// or ssh://",
        ),
        (
            '[mirror.a]\nroot = "/r"\nmaster = "https://h/\\n"',
            "mirror.a.master: expected a URL http://, https:// or ssh://",
        ),
        (
            '[mirror.a]\nroot = "/r"\nmaster = " https://h/"',
            "mirror.a.master: expected a URL http://, https:// or ssh://",
        ),
        (
            '[mirror.a]\nroot = "/r"\nmaster = "https://u:secret@[/"',
            "mirror.a.master: expected a URL http://, https:// or ssh://, got another (not shown, there may be a password",
        ),
        (
            '[mirror.a]\nroot = "/r\\u0000"',
            "mirror.a.root: expected text without the character NUL",
        ),
        ('[public]\nonly = ["a", "b\\u0000"]', "public.only: expected text without the character NUL"),
        (
            '[notifier.a]\ntype = "pulse"\nca-file = ""',
            "notifier.a.ca-file: expected a file of certificates, or no such key for those of the system",
        ),
        ('[work]\nhosts-ca-file = ""', "work.hosts-ca-file: expected a file of certificates, or no such key for"),
        ('[public.urls]\n"a\\u0000" = "https://h/"', "public.urls.a\\0: expected text without the character NUL"),
        (
            f'{PUBLIC}[notifier.it]\ntype = "webhook"\ndatabase = "/d"\nsubscriptions = {{ a = "https://x/" }}',
            "notifier.it.subscriptions.a: expected",
        ),
        (
            f'{PUBLIC}[notifier.it]\ntype = "sns"\ntopic-arn = "arn:aws:sns:us-east-1:1:x"\nbucket = "b"\n'
            'region = "us-east-1"\ns3-endpoint-url = "http://["',
            "notifier.it.s3-endpoint-url: expected an http or https URL, got 'http://['",
        ),
        (
            f'{PUBLIC}[decode]\n[notifier.it]\ntype = "decode"\nmirror-url = "http://["',
            "notifier.it.mirror-url: expected https://HOST",
        ),
    ],
)
def test_a_value_that_can_only_hurt_is_refused_in_one_line(tmp_path: Path, section: str, complaint: str) -> None:
    file = written(tmp_path, f'log = "sqlite://{tmp_path}/log.db"\n{section}\n')
    result = CliRunner().invoke(program, ["config", "check", "--config", str(file)])
    assert isinstance(result.exception, BadConfig), result.exception
    assert str(result.exception).startswith(f"{file}: {complaint}")
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    "text",
    [
        'log = "{}"',
        'insecure = ["{}"]\nlog = "sqlite:///l.db"',
        'log = "kafka://{}"',
        'log = "sqlite:///l.db"\n"{}" = 1',
        'log = "sqlite:///l.db"\n[mirror.a]\n"{}_" = 1',
        'log = "sqlite:///l.db"\n[mirror.a]\nroot = "{}"',
        'log = "sqlite:///l.db"\n[mirror.a]\nroot = "/r"\nmaster = "{}"',
        'log = "sqlite:///l.db"\n[relay]\nsocket = "{}"\nsource = "hg://m"\nroots = { "/r" = "" }',
        'log = "sqlite:///l.db"\n[listen]\nrelay = "{}"',
        'log = "sqlite:///l.db"\n[dashboard]\nlisten = "localhost:1"\nanonymous = "guest"\nsocket = "/s"\n'
        'socket-users = ["", "{}"]',
        'log = "sqlite:///l.db"\n' + PUBLIC + '[notifier.a]\ntype = "{}"',
        'log = "sqlite:///l.db"\n' + PUBLIC + '[notifier.a]\ntype = "stdout"\ntypes = ["{}"]',
    ],
)
def test_a_message_repeats_only_the_beginning_of_a_long_value(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, text.replace("{}", 100_000 * "x"))
    result = CliRunner().invoke(program, ["config", "check", "--config", str(file)])
    assert isinstance(result.exception, BadConfig), result.output
    assert "xxx" in str(result.exception)
    assert len(str(result.exception)) < 1000


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "create", "--partitions", "0"),
        ("topics", "create", "--retention", "-1"),
        ("topics", "create", "--retention", "nan"),
        ("roster", "add", "alpha", "--wait", "nan"),
        ("verify", "--patience", "-1"),
        ("errors", "--last", "-5"),
        ("check", "--warn", "-1"),
    ],
    ids=" ".join,
)
def test_a_number_that_makes_no_sense_is_a_mistake_of_the_user(tmp_path: Path, words: tuple[str, ...]) -> None:
    file = written(tmp_path, f'log = "sqlite://{tmp_path}/log.db"\n[mirror.a]\nroot = "{tmp_path}"\n')
    result = CliRunner().invoke(program, [*words, "--config", str(file)])
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-2]}'" in result.output


def test_a_check_fails_while_topics_are_missing_and_says_the_command(tmp_path: Path) -> None:
    file = written(tmp_path, f'log = "sqlite://{tmp_path}/log.db"\n')
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create([topic for topic in topics(partitions=1) if topic.name not in ("state", "errors")])
    result = CliRunner().invoke(program, ["config", "check", "--config", str(file)])
    assert result.exit_code
    assert str(result.exception) == "the log lacks the topics state, errors; run: vcsreplicator topics create"
