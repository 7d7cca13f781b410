# SPDX-License-Identifier: GPL-2.0-or-later
"""Mails to owners of queues.

Names in them are a client's choice, and reports come from the log: both stay within their line. Addresses are checked where they
enter (`settings.ADDRESS`).
"""

import contextlib
import datetime
import smtplib
import socket
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from urllib.parse import unquote, urlsplit

from hgext.vcsreplicator.words.errors import BadConfig, Rejected, Unavailable, counted, visible

from ...clients.authorities import trusting
from .settings import Deletion, GuardianSettings
from .state import QueueReport

# Seconds that the mail server may be silent.
SMTP_PATIENCE = 10.0

# Most queues that one mail lists.
LISTED = 100
# Most characters of a queue's name in a subject.
SUBJECT_NAME = 120

GONE_MEANWHILE = "deleted, perhaps: the guardian was interrupted, and the queue is smaller or new now"

_ADVICE = """
Consume the messages, or limit the queue (x-max-length), or delete it if you do not need it.
"""


class Postponed(Unavailable):
    """The server takes this mail later (a mailbox is full); it may take others."""


def compose(reports: Sequence[QueueReport], settings: GuardianSettings, *, to: str, now: float) -> EmailMessage:
    """Return one mail with these reports, oldest first and at most `LISTED`."""
    first = reports[0]
    mail = EmailMessage()
    mail["From"], mail["To"] = settings.sender, to
    mail["Subject"] = _write_subject(reports)
    mail["Date"] = format_datetime(datetime.datetime.fromtimestamp(now, datetime.UTC))
    mail["Message-ID"] = make_msgid(f"guardian-{first.id}", domain=settings.sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"
    lines = [_describe_report(report) for report in reports]
    mail.set_content("\n".join([*lines, "", _describe_limits(settings)]) + _ADVICE, cte="quoted-printable")
    return mail


def _write_subject(reports: Sequence[QueueReport]) -> str:
    if len(reports) > 1:
        return f"Pulse: {len(reports)} reports about your queues"
    [report] = reports
    name = visible(report.queue)
    name = name if len(name) <= SUBJECT_NAME else name[:SUBJECT_NAME] + "…"
    return f"Pulse: {name}: {visible(report.what).partition(',')[0]}"


def _describe_report(report: QueueReport) -> str:
    when = datetime.datetime.fromtimestamp(report.time, datetime.UTC)
    return f"{when:%Y-%m-%d %H:%M} UTC  {visible(report.queue)}: {counted(report.messages, 'message')}: {visible(report.what)}"


def _describe_limits(settings: GuardianSettings) -> str:
    then = {
        Deletion.NO: "is reported",
        Deletion.UNUSED: "is deleted with its messages as soon as it has no consumer",
        Deletion.YES: "is deleted with its messages",
    }[settings.delete]
    return f"The limit is {settings.limit} messages; a queue beyond it {then}. The warning comes at {settings.warn_at}."


class MailServer:
    """The server that `smtp_url` names; each mail has a connection of its own."""

    def __init__(self, settings: GuardianSettings) -> None:
        self._settings = settings
        self._parts = urlsplit(settings.smtp_url)

    def send(self, mail: EmailMessage) -> None:
        """Send the mail; return once the server took it.

        Raises Unavailable, Postponed for an address or a mail that the server refuses for now, or Rejected if for good. A refused
        sender is Unavailable: it is the same for every mail, and an operator must correct it.
        """
        try:
            server = self._connect()
            try:
                server.send_message(mail)
                # It has the mail, with any answer to a farewell.
                with contextlib.suppress(smtplib.SMTPException, OSError):
                    server.quit()
            finally:
                server.close()
        except smtplib.SMTPRecipientsRefused as error:
            code, reply = next(iter(error.recipients.values()))
            raise self._read_refusal(code, reply) from error
        except smtplib.SMTPResponseException as error:
            code = error.smtp_code if isinstance(error, smtplib.SMTPDataError) else 0
            raise self._read_refusal(code, error.smtp_error) from error
        except (smtplib.SMTPException, OSError, UnicodeError, BadConfig) as error:
            raise self._read_refusal(0, str(error) or type(error).__name__) from error

    def check(self) -> None:
        """Connect and log in; raise Unavailable if the server does not take it."""
        try:
            with self._connect() as server:
                server.noop()
        except (smtplib.SMTPException, OSError, BadConfig) as error:
            raise self._read_refusal(0, str(error) or type(error).__name__) from error

    def _connect(self) -> smtplib.SMTP:
        parts, settings = self._parts, self._settings
        host, name = parts.hostname or "", socket.gethostname()
        server: smtplib.SMTP
        if parts.scheme == "smtps":
            context = trusting(settings.smtp_ca_file)
            server = smtplib.SMTP_SSL(host, parts.port or 465, name, timeout=SMTP_PATIENCE, context=context)
        else:
            server = smtplib.SMTP(host, parts.port or 587, name, timeout=SMTP_PATIENCE)
        try:
            if parts.scheme == "smtp+starttls":
                server.starttls(context=trusting(settings.smtp_ca_file))
            secret = settings.smtp_password
            password = secret.read("guardian.smtp-password") if secret else unquote(parts.password or "")
            if parts.username:
                server.login(unquote(parts.username), password)
        except BaseException:
            server.close()
            raise
        return server

    def _read_refusal(self, code: int, reply: bytes | str) -> Rejected | Unavailable:
        text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
        kind: type[Rejected | Unavailable] = Rejected if 500 <= code < 600 else Unavailable
        if 400 <= code < 500 and code != 421:  # with 421 it closes the connection
            kind = Postponed
        return kind(f"mail server {self._parts.hostname}: {visible(text)[:200]}")
