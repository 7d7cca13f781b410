# SPDX-License-Identifier: GPL-2.0-or-later
"""Mails to owners: what they say for all names of queues, and how they reach a real mail server."""

from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.words.errors import Rejected, Unavailable
from notifier.clients.secret import Secret
from notifier.services.guardian.mail import LISTED, MailServer, compose
from notifier.services.guardian.settings import GuardianSettings
from notifier.services.guardian.state import QueueReport
from testing.builders.notifier.mailbox import PASSWORD, Mailbox
from tests.notifier.services.guardian.conftest import some_settings

OWNER = "owner@x.example"


def a_report(queue: str = "queue/alice/q", number: int = 1, what: str = "near its limit") -> QueueReport:
    return QueueReport(id=number, owner=OWNER, queue=queue, what=what, messages=5, time=1700000000)


def text_of(*reports: QueueReport) -> str:
    return compose(reports, some_settings(), to=OWNER, now=1700000000).get_content()


def test_a_mail_says_which_queue_how_full_and_what_comes_next() -> None:
    made = compose([a_report()], some_settings(), to=OWNER, now=1700000000)
    assert (made["To"], made["Subject"]) == (OWNER, "Pulse: queue/alice/q: near its limit")
    assert made["Auto-Submitted"] == "auto-generated"
    assert "2023-11-14 22:13 UTC  queue/alice/q: 5 messages: near its limit" in made.get_content()
    assert "The limit is 8 messages; a queue beyond it is reported. The warning comes at 4." in made.get_content()


def test_several_reports_are_one_mail() -> None:
    text = text_of(*(a_report(f"queue/alice/{number}", number) for number in range(LISTED)))
    assert "queue/alice/0:" in text
    assert f"queue/alice/{LISTED - 1}:" in text


@pytest.mark.parametrize(
    "name", ["queue/a/x\r\nBcc: victim@x.example", "queue/a/\x1b[2J", "queue/a/" + "x" * 240, "queue/a/é\u202e"]
)
def test_a_queue_name_stays_within_its_line(name: str) -> None:
    made = compose([a_report(name)], some_settings(), to=OWNER, now=0)
    assert made["Bcc"] is None
    for text in (made["Subject"], made.get_content()):
        assert "\r" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert b"\nBcc:" not in made.as_bytes()
    assert sum("queue/a/" in line for line in made.get_content().splitlines()) == 1


@pytest.mark.parametrize(
    "what",
    ["deleted\nBcc: victim@x.example", "deleted\ud800", "\x1b[2Jdeleted"],
    ids=["header", "surrogate", "terminal"],
)
def test_a_report_of_a_stranger_stays_within_its_line(what: str) -> None:
    made = compose([a_report(what=what)], some_settings(), to=OWNER, now=0)
    assert b"\nBcc:" not in made.as_bytes()
    assert "\x1b" not in made["Subject"] + made.get_content()
    assert sum("deleted" in line for line in made.get_content().splitlines()) == 1


@pytest.mark.processes
def test_a_mail_goes_by_starttls_with_a_login(tmp_path: Path) -> None:
    with Mailbox(tls_folder=tmp_path) as mailbox:
        settings = some_settings(
            smtp_url=mailbox.url, smtp_password=a_secret(tmp_path, PASSWORD), smtp_ca_file=str(mailbox.certificate)
        )
        send(settings)
        assert [mail["Subject"] for mail in mailbox.to(OWNER)] == ["Pulse: queue/alice/q: near its limit"]
        MailServer(settings).check()


@pytest.mark.processes
def test_a_mail_server_with_an_unknown_certificate_gets_no_password(tmp_path: Path) -> None:
    with Mailbox(tls_folder=tmp_path) as mailbox:
        settings = some_settings(smtp_url=mailbox.url, smtp_password=a_secret(tmp_path, PASSWORD))
        with pytest.raises(Unavailable, match="certificate verify failed"):
            send(settings)
        assert mailbox.mails == []


@pytest.mark.processes
def test_a_wrong_password_is_retried_and_never_shown(tmp_path: Path) -> None:
    with Mailbox(tls_folder=tmp_path) as mailbox:
        settings = some_settings(
            smtp_url=mailbox.url, smtp_password=a_secret(tmp_path, "Wr0ng!"), smtp_ca_file=str(mailbox.certificate)
        )
        with pytest.raises(Unavailable) as trouble:
            send(settings)
        assert "Wr0ng!" not in str(trouble.value)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("reply", "kind"),
    [("550 no such mailbox", Rejected), ("450 mailbox busy", Unavailable), ("421 closing", Unavailable)],
)
def test_an_address_is_refused_for_good_or_for_now(mailbox: Mailbox, reply: str, kind: type[Exception]) -> None:
    mailbox.replies[OWNER] = reply
    with pytest.raises(kind, match=reply[4:]):
        send(some_settings(smtp_url=mailbox.url))


@pytest.mark.processes
def test_a_sender_that_the_server_refuses_is_no_fault_of_the_mail(mailbox: Mailbox) -> None:
    settings = some_settings(smtp_url=mailbox.url)
    mailbox.replies[settings.sender] = "550 not your address"
    with pytest.raises(Unavailable, match="not your address"):
        send(settings)


@pytest.mark.processes
def test_a_mail_that_the_server_took_is_sent_whatever_its_farewell(mailbox: Mailbox) -> None:
    mailbox.replies["QUIT"] = "421 too busy to say goodbye"
    send(some_settings(smtp_url=mailbox.url))
    assert len(mailbox.mails) == 1


def test_a_mail_server_that_is_away_is_named() -> None:
    with pytest.raises(Unavailable, match=r"mail server 127\.0\.0\.1: .*refused"):
        send(some_settings(smtp_url=f"smtp://127.0.0.1:{free_port()}"))


def test_a_password_that_cannot_be_read_is_trouble_of_the_moment(tmp_path: Path) -> None:
    settings = some_settings(smtp_url="smtp://me@127.0.0.1:9", smtp_password=Secret(file=str(tmp_path / "missing")))
    with pytest.raises(Unavailable):
        send(replace(settings))


def a_secret(folder: Path, text: str) -> Secret:
    file = folder / "secret"
    file.write_text(text)
    file.chmod(0o600)
    return Secret(file=str(file))


def send(settings: GuardianSettings) -> None:
    MailServer(settings).send(compose([a_report()], settings, to=OWNER, now=1700000000))
