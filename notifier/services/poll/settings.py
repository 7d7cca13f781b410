# SPDX-License-Identifier: GPL-2.0-or-later
"""The section `[poll]` of the TOML file."""

import enum
from dataclasses import dataclass

from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import quote_value
from hgext.vcsreplicator.words.secrecy import split_url
from hgext.vcsreplicator.words.shape import Seconds, absolute, within

from ...clients.amqp.pushes import QueueSettings
from ...messages.pushes import check_source


class OnReplaced(enum.StrEnum):
    """The reaction to a repository that lost pushes, or has others under their ids."""

    STOP = "stop"
    FOLLOW = "follow"


class StartAt(enum.StrEnum):
    """The place to begin with a repository that is new to the poller."""

    BEGINNING = "beginning"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSettings(QueueSettings):
    """The queue, and URLs to follow; see docs/hg-push-services.md."""

    repositories: tuple[str, ...]
    state: str = "/var/lib/vcsreplicator/poll/poll.db"
    source: str = "poll"
    interval: Seconds = 60.0
    per_host: int = 4
    timeout: Seconds = 30.0
    page: int = 200
    on_replaced: OnReplaced = OnReplaced.STOP
    start_at: StartAt = StartAt.BEGINNING
    hosts_ca_file: str | None = None
    takeover_after: Seconds = 10.0

    def __post_init__(self) -> None:
        QueueSettings.__post_init__(self)
        check_source(self.source)
        absolute(self, "state")
        within(
            self,
            interval=(0.01, DAY),
            takeover_after=(0.01, 3600),
            per_host=(1, 1000),
            timeout=(0.1, 3600),
            page=(1, 100_000),
        )
        if not self.repositories:
            raise ValueError("repositories: expected at least one URL")
        for url in self.repositories:
            if not _is_repository(url):
                raise ValueError(
                    f"repositories: expected http or https URLs without user, query and fragment, got {quote_value(url)}"
                )
        if len(set(self.repositories)) < len(self.repositories):
            twice = next(url for url in self.repositories if self.repositories.count(url) > 1)
            raise ValueError(f"repositories: {twice} is listed twice")


def _is_repository(url: str) -> bool:
    parts = split_url(url, "http", "https")
    plain = url.isascii() and url.isprintable() and not set("?# ") & set(url) and not url.endswith("/")
    return parts is not None and "@" not in parts.netloc and plain
