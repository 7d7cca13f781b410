# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings of every user of a broker."""

from dataclasses import dataclass
from typing import Any

from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from hgext.vcsreplicator.words.secrecy import split_url
from hgext.vcsreplicator.words.shape import Seconds, within

from ..secret import Secret
from .connection import BrokerRefusal, client, connect, translated, where


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """A broker and its user.

    kombu reads `url`: `amqp://USER@HOST:PORT/VHOST`, or `amqps://`, which verifies the certificate against `ca_file` or the
    system's authorities. `password` has its place outside the file. `confirm_timeout` and `heartbeat` are in seconds.
    """

    url: str
    password: Secret | None = None
    ca_file: str | None = None
    confirm_timeout: Seconds = 10.0
    heartbeat: Seconds = 20.0

    def __post_init__(self) -> None:
        if split_url(self.url, "amqp", "amqps") is None:
            raise ValueError("url: expected amqp://USER@HOST/VHOST or amqps://…")
        within(self, confirm_timeout=(0.001, DAY), heartbeat=(1, 3600))

    def client(self, name: str, **callbacks: Any) -> Any:
        """Return kombu's description of the broker.

        Raises Unavailable if the password or `ca_file` cannot be read.
        """
        try:
            password = None if self.password is None else self.password.read()
        except BadConfig as error:
            raise Unavailable(str(error)) from error
        return client(
            self.url,
            password=password,
            password_place=None if self.password is None else self.password.place,
            ca_file=self.ca_file,
            heartbeat=self.heartbeat,
            properties={"product": "vcsreplicator", "destination": name},
            **callbacks,
        )


def check_credentials(
    settings: BrokerSettings, section: str, *, url_key: str = "url", password_key: str = "password"
) -> None:
    """Raise BadConfig if the password cannot be read, or the broker refuses it.

    Other errors are ignored, since they may pass.
    """
    if settings.password is not None:
        settings.password.read(f"{section}.{password_key}")
    try:
        with translated(where(settings.url)):
            connect(settings.client(section)).collect()
    except BrokerRefusal as error:
        raise BadConfig(f"{section}.{url_key}: {error}: expected user and password that the broker accepts") from error
    except Unavailable:
        pass
