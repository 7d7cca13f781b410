# SPDX-License-Identifier: GPL-2.0-or-later
"""The section `[work]` of the TOML file."""

import enum
import re
from dataclasses import dataclass

from hgext.vcsreplicator.words.errors import quote_value
from hgext.vcsreplicator.words.retry import Backoff
from hgext.vcsreplicator.words.shape import Bytes, Seconds, absolute, within

from ...clients.amqp.pushes import QueueSettings
from ...clients.secret import Secret
from ...delivery.window import check_retry

# The delays before a message is retried.
RETRY = Backoff(first=1.0, longest=60.0)


# The port of a database's URL, as SQLAlchemy reads it.
_PORT = re.compile(r"postgresql\+psycopg://(?:[^:/]*(?::[^@]*)?@)?(?:\[[^]]*\]|[^/:]*)(?::([^/?]*))?")


class Migrate(enum.StrEnum):
    """The occasion on which the worker's tables are brought up to date."""

    BY_HAND = "by-hand"
    AT_START = "at-start"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings(QueueSettings):
    """The worker's queue, `clones` and database; see docs/hg-push-services.md."""

    repositories: tuple[str, ...]
    clones: str
    database_url: str
    database_password: Secret | None = None
    migrate: Migrate = Migrate.BY_HAND
    max_hg_retries: int = 5
    retry: Backoff = RETRY
    dead_queue: str = "hg.dead"
    at_once: int = 2
    prefetch: int = 500
    park_bytes: Bytes = 1024**3
    hg_timeout: Seconds = 1200.0
    hg_memory_bytes: Bytes = 4 * 1024**3
    hosts_ca_file: str | None = None
    sentry_dsn: Secret | None = None

    def __post_init__(self) -> None:
        QueueSettings.__post_init__(self)
        absolute(self, "clones")
        if not self.database_url.startswith(("sqlite:////", "postgresql+psycopg://")):
            raise ValueError("database_url: expected sqlite:////path or postgresql+psycopg://USER@HOST/NAME")
        _check_port(self.database_url)
        if not self.repositories:
            raise ValueError("repositories: expected at least one beginning of URLs, such as https://hg.example/")
        for prefix in self.repositories:
            if not prefix.startswith(("https://", "http://")) or prefix.count("/") < 3:
                raise ValueError(
                    f"repositories: expected beginnings of URLs such as https://hg.example/, got {quote_value(prefix)}"
                )
        if self.dead_queue == self.queue:
            raise ValueError(f"dead_queue: expected another name than queue has, got {quote_value(self.dead_queue)}")
        within(self, max_hg_retries=(0, 1000), at_once=(1, 64), prefetch=(1, 65535), park_bytes=(0, 2**50))
        within(self, hg_memory_bytes=(64 * 1024**2, 2**50))
        within(self, hg_timeout=(1, 1500))  # a broker takes a message back after 1800 s
        check_retry(self.retry)


def _check_port(database_url: str) -> None:
    found = _PORT.match(database_url)
    port = found[1] if found else None
    if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16):
        raise ValueError("database_url: expected a port from 1 to 65535")
