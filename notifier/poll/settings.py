# SPDX-License-Identifier: GPL-2.0-or-later
"""The section `[poll]` of the TOML file."""

import enum
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from hgext.vcsreplicator.words.clock import DAY

from ..hgpush.destination import check_source
from ..hgpush.queue import QueueSettings
from ..window import check_number


class OnReplaced(enum.StrEnum):
    """What to do with a repository that lost pushes or has others under the same ids."""

    STOP = "stop"
    FOLLOW = "follow"


class StartAt(enum.StrEnum):
    """Where to begin with a repository that is new here."""

    BEGINNING = "beginning"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSettings(QueueSettings):
    """The queue, and the `repositories` to follow, by their URLs.

    `state` is the database that remembers the last push of each. `interval` seconds between two questions about a repository,
    `per_host` questions at a time to one host, `timeout` seconds for an answer, `page` push ids asked for at once.
    `hosts_ca_file` has the authorities of the hosts. `source` says whose numbers the repository ids are.
    """

    repositories: tuple[str, ...]
    state: str = "/var/lib/vcsreplicator/poll.db"
    source: str = "poll"
    interval: float = 60.0
    per_host: int = 4
    timeout: float = 30.0
    page: int = 200
    on_replaced: OnReplaced = OnReplaced.STOP
    start_at: StartAt = StartAt.BEGINNING
    hosts_ca_file: str | None = None

    def __post_init__(self) -> None:
        QueueSettings.__post_init__(self)
        check_source(self.source)
        if not os.path.isabs(self.state):
            raise ValueError(f"state: expected an absolute path, got {self.state!r}")
        check_number("interval", self.interval, 0.01, DAY)
        check_number("per_host", self.per_host, 1, 1000)
        check_number("timeout", self.timeout, 0.1, 3600)
        check_number("page", self.page, 1, 100_000)
        if not self.repositories:
            raise ValueError("repositories: expected one URL at least")
        for url in self.repositories:
            if not _is_repository(url):
                raise ValueError(
                    f"repositories: expected http or https URLs without user, query and fragment, got {url!r}"
                )
        if len(set(self.repositories)) < len(self.repositories):
            twice = next(url for url in self.repositories if self.repositories.count(url) > 1)
            raise ValueError(f"repositories: {twice} stands there twice")


def _is_repository(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and not set("?# ") & set(url) and not url.endswith("/")
    return parts.scheme in ("http", "https") and has_host and "@" not in parts.netloc and plain
