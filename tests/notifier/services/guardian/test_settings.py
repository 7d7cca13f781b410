# SPDX-License-Identifier: GPL-2.0-or-later
"""The section [guardian]: each mistake is one line that names file, key and what was expected."""

from pathlib import Path

import pytest

from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.words.errors import BadConfig
from notifier.services.guardian.settings import GuardianSettings

DOCS = Path(__file__).parents[4] / "docs/guardian.md"
LOG = 'log = "sqlite:///log.db"\n'
RIGHT = {
    "management-url": '"http://127.0.0.1:15672"',
    "broker-url": '"amqp://127.0.0.1/"',
    "smtp-url": '"smtp://127.0.0.1"',
    "sender": '"a@b.example"',
    "operator": '"c@d.example"',
}


def read(folder: Path, **changed: str) -> GuardianSettings:
    keys = {**RIGHT, **{key.replace("_", "-"): value for key, value in changed.items()}}
    file = folder / "guardian.toml"
    file.write_text(LOG + "[guardian]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()))
    return load(file).settings(GuardianSettings, "guardian")


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("management-url", '"ftp://h"', "guardian.management-url: expected https://USER@HOST:PORT"),
        (
            "management-url",
            '"http://127.0.0.1:5672"',
            "guardian.management-url: expected the port of the management API",
        ),
        ("broker-url", '"amqps:"', "guardian.broker-url: expected amqps://USER@HOST/VHOST"),
        ("smtp-url", '"mail.example"', "guardian.smtp-url: expected smtps://USER@HOST or"),
        ("sender", '"absent"', "guardian.sender: expected a mail address, got 'absent'"),
        ("operator", '"a@b\\nBcc: c@d"', "guardian.operator: expected a mail address"),
        ("state", '"here.db"', "guardian.state: expected an absolute path, got 'here.db'"),
        ("delete", '"maybe"', "guardian.delete: expected one of no, unused, yes, got"),
        ("every", "0", "guardian.every: expected a number of seconds from 1 to 86400, got 0"),
        ("limit", "1", "guardian.limit: expected a number from 2 to 1000000000, got 1"),
        ("warn-at", "8000", "guardian.warn-at: expected less than limit (8000), got 8000"),
        ("warnat", "1", "guardian: unknown key 'warnat'"),
        ("management-url", '"http://h.example"', "guardian.management-url: http:// to h.example, expected https://"),
        ("broker-url", '"amqp://h.example/"', "guardian.broker-url: amqp:// to h.example, expected amqps://"),
        ("smtp-url", '"smtp://h.example"', "guardian.smtp-url: smtp:// to h.example, expected smtps://"),
        ("smtp-url", '"smtps://a:b@h.example"', "guardian.smtp-url: a password in a URL to h.example"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, key: str, value: str, complaint: str) -> None:
    with pytest.raises(BadConfig) as found:
        read(tmp_path, **{key: value})
    assert str(found.value).startswith(f"{tmp_path}/guardian.toml: {complaint}")


def test_starttls_to_another_machine_is_no_exposure(tmp_path: Path) -> None:
    assert read(tmp_path, smtp_url='"smtp+starttls://me@mail.example"').warn_at == 2000


@pytest.mark.parametrize(
    ("url", "vhost"), [("", "/"), ("/", "/"), ("//", "/"), ("/%2F", "/"), ("/pulse", "pulse"), ("/a%20b", "a b")]
)
def test_the_virtual_host_is_the_one_that_clients_read(tmp_path: Path, url: str, vhost: str) -> None:
    import kombu

    address = f"amqp://127.0.0.1{url}"
    assert read(tmp_path, broker_url=f'"{address}"').vhost == vhost
    assert (kombu.Connection(address).virtual_host or "/") == vhost


def test_the_documented_section_is_one(tmp_path: Path) -> None:
    file = tmp_path / "guardian.toml"
    file.write_text(LOG + DOCS.read_text().partition("```toml\n")[2].partition("```")[0])
    documented = load(file).settings(GuardianSettings, "guardian")
    given = {key.replace("_", "-") for key in GuardianSettings.__dataclass_fields__}
    assert all(f"\n{key} = " in file.read_text() for key in given)
    assert (documented.every, documented.warn_at, documented.limit, documented.delete.value) == (60, 2000, 8000, "no")
