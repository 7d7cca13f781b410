# SPDX-License-Identifier: GPL-2.0-or-later
"""A mail server that keeps what it takes, with STARTTLS and a login if asked for, and that can refuse."""

import email
import email.policy
import ssl
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hgext.vcsreplicator.demo.ports import free_port
from testing.builders.certificates import certificate

if TYPE_CHECKING:
    from aiosmtpd.smtp import SMTP, AuthResult

USER, PASSWORD = "guardian", "p4ss"


class Mailbox:
    """Listens on a loopback port during its block; `mails` is what it took."""

    def __init__(self, *, tls_folder: Path | None = None) -> None:
        from aiosmtpd.controller import Controller  # 0.1 s, in each run of tests

        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.replies: dict[str, str] = {}
        self.certificate = None if tls_folder is None else certificate(tls_folder, "mail", "DNS:localhost")
        options: dict[str, Any] = {}
        if self.certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.certificate, self.certificate.with_suffix(".key"))
            options = {
                "tls_context": context,
                "require_starttls": True,
                "auth_required": True,
                "authenticator": self._is_known,
            }
        self.port = free_port()
        self._server: Any = Controller(self, hostname="127.0.0.1", port=self.port, **options)

    @property
    def url(self) -> str:
        if self.certificate is not None:
            return f"smtp+starttls://{USER}@localhost:{self.port}"
        return f"smtp://127.0.0.1:{self.port}"

    def to(self, address: str) -> list[EmailMessage]:
        """What came for this address."""
        return [mail for mail, recipients in zip(self.mails, self.recipients, strict=True) if address in recipients]

    async def handle_RCPT(self, server: "SMTP", session: Any, envelope: Any, address: str, _: list[str]) -> str:
        """Take the address, or answer what `replies` says."""
        if reply := self.replies.get(address):
            return reply
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_MAIL(self, server: "SMTP", session: Any, envelope: Any, address: str, options: list[str]) -> str:
        """Take the sender, or answer what `replies` says."""
        if reply := self.replies.get(address):
            return reply
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_DATA(self, server: "SMTP", session: Any, envelope: Any) -> str:
        """Keep the mail."""
        found = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(found, EmailMessage)
        self.recipients.append(list(envelope.rcpt_tos))
        self.mails.append(found)
        return "250 OK"

    async def handle_QUIT(self, server: "SMTP", session: Any, envelope: Any) -> str:
        """Say farewell, or what `replies` says."""
        return self.replies.get("QUIT", "221 bye")

    def _is_known(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> "AuthResult":
        from aiosmtpd.smtp import AuthResult, LoginPassword

        known = isinstance(data, LoginPassword) and (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=known, handled=False)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
