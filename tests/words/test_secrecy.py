# SPDX-License-Identifier: GPL-2.0-or-later
"""A configuration that gives data or secrets away is refused with file, key and what to write, unless it says that it is meant."""

from pathlib import Path

import pytest

from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.secrecy import is_loopback

SQLITE = 'log = "sqlite:///x"\n'
PULSE = 'log = "sqlite:///x"\n[notifier.p]\ntype = "pulse"\nurl = '
SNS = 'log = "sqlite:///x"\n[notifier.s]\ntype = "sns"\n'
HOOKS = 'log = "sqlite:///x"\n[notifier.h.subscriptions.ci]\nurl = "https://ci.example/"\nheaders = '


def written(folder: Path, text: str, mode: int = 0o640) -> Path:
    file = folder / "services.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


PLAIN = [
    ('log = "kafka://k1.example:9092"', "log: PLAINTEXT to k1.example, expected security_protocol=SSL or SASL_SSL"),
    ('log = "kafka://127.0.0.1:1,192.0.2.7:9092"', "log: PLAINTEXT to 192.0.2.7"),
    ('log = "kafka://k:1?security-protocol=SASL_PLAINTEXT&sasl_mechanism=PLAIN"', "log: SASL_PLAINTEXT to k"),
    ('log = "kafka://k:1?security_protocol=plaintext"', "log: plaintext to k"),
    (PULSE + '"amqp://me@pulse.example/"', "notifier.p.url: amqp:// to pulse.example, expected amqps://"),
    (PULSE + '"amqp://me@[2001:db8::1]:5672/"', "notifier.p.url: amqp:// to 2001:db8::1"),
    (SNS + 'sns-endpoint-url = "http://sns.example/"', "notifier.s.sns-endpoint-url: http:// to sns.example"),
    (
        SNS + 's3-endpoint-url = "http://s3.example:80/"',
        "notifier.s.s3-endpoint-url: http:// to s3.example, expected https",
    ),
    (SQLITE + '[mirror.a]\nmaster = "http://hg.example/"', "mirror.a.master: http:// to hg.example"),
]
IN_URL = [
    ('log = "kafka://k:1?security_protocol=SASL_SSL&sasl_plain_password=s3cret"', "log: option sasl_plain_password, "),
    (
        'log = "kafka://k:1?security_protocol=SSL&ssl-password=s3cret"',
        "log: option ssl_password, expected ssl_password_file",
    ),
    (
        PULSE + '"amqps://me:s3cret@pulse.example/"',
        "notifier.p.url: a password in a URL to pulse.example, expected a",
    ),
]


@pytest.mark.parametrize(("text", "complaint"), [*PLAIN, *IN_URL])
def test_what_gives_something_away_is_refused_with_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(BadConfig) as caught:
        load(file)
    word = "password-in-url" if (text, complaint) in IN_URL else "plain-text"
    assert str(caught.value).startswith(f"{file}: {complaint}")
    assert str(caught.value).endswith(f'; if it is meant, write insecure = ["{word}"] at the top of the file')
    assert "s3cret" not in str(caught.value)
    load(written(tmp_path, f'insecure = ["{word}"]\n{text}'))
    other = "readable-file"
    with pytest.raises(BadConfig, match="if it is meant"):
        load(written(tmp_path, f'insecure = ["{other}"]\n{text}'))


@pytest.mark.parametrize(
    "text",
    [
        'log = "kafka://127.0.0.1:9092,[::1]:9092,localhost:9092?sasl_plain_password=x"',
        'log = "kafka://k1.example:9093,k2.example:9093?security_protocol=SASL_SSL&sasl_plain_password_file=/x"',
        PULSE + '"amqp://guest:guest@127.0.0.1:5672//"',
        PULSE + '"amqps://me@pulse.example/"',
        SNS + 'sns-endpoint-url = "http://localhost:4566"\ns3-endpoint-url = "https://s3.example"',
        HOOKS + '{ x-team = "build" }',
        SQLITE + '[public.urls]\n"" = "http://hg.example/"',
    ],
)
def test_loopback_tls_and_public_names_are_fine_in_a_readable_file(tmp_path: Path, text: str) -> None:
    load(written(tmp_path, text, 0o644))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (PULSE + '"amqps://me:s3cret@pulse.example/"', "notifier.p.url"),
        (HOOKS + '{ Authorization = "Bearer s3cret" }', "notifier.h.subscriptions.ci.headers.Authorization"),
        (HOOKS + '{ x-api-key = "s3cret" }', "notifier.h.subscriptions.ci.headers.x-api-key"),
    ],
)
def test_file_with_a_secret_is_not_for_all_users(tmp_path: Path, text: str, where: str) -> None:
    text = f'insecure = ["password-in-url"]\n{text}'
    load(written(tmp_path, text, 0o640))
    file = written(tmp_path, text, 0o644)
    expected = f"{file}: {where}: a secret in a file that all users may read (mode 0644), expected chmod o= {file}"
    with pytest.raises(BadConfig) as caught:
        load(file)
    assert str(caught.value).startswith(expected)
    assert "s3cret" not in str(caught.value)
    load(written(tmp_path, text.replace('["', '["readable-file", "', 1), 0o644))


@pytest.mark.parametrize("value", ['"plain-text"', '["everything"]', "true", "[1]"])
def test_what_cannot_be_meant_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(BadConfig, match="insecure: expected a list of plain-text, password-in-url, readable-file, got"):
        load(written(tmp_path, f"insecure = {value}\n{SQLITE}"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "localhost.example", "127.0.0.1.example", ""])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)
