# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings of one mirror: section `[mirror.NAME]`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..words.clock import DAY
from ..words.errors import quote_value
from ..words.path import check_prefix
from ..words.secrecy import split_url
from ..words.shape import GIB, Bytes, Days, Seconds, absolute, within

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """One mirror. Times are seconds, sizes bytes; docs/install.md explains each key."""

    name: str
    root: str
    master: str | None = None
    master_auth: str | None = None
    blobs: str | None = None
    state: str | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    workers: int = 2
    heavy_workers: int = 2
    repair_workers: int = 2
    worker_memory_bytes: Bytes = 4 * GIB
    open_repositories: int = 64
    recycle_after: int = 50_000
    buffer_bytes: Bytes = 64 * _KIB * _KIB
    repository_buffer_bytes: Bytes = 16 * _KIB * _KIB
    batch_events: int = 64
    batch_bytes: Bytes = 4 * _KIB * _KIB
    slow_after: Seconds = 5.0
    hung_after: Seconds = 300.0
    beat_interval: Seconds = 5.0
    retry_first: Seconds = 0.5
    retry_longest: Seconds = 60.0
    check_interval: Seconds = 3600.0
    check_share: float = 0.1
    backup: bool = False
    lock: bool = False
    keep_deleted_days: Days = 7.0
    master_timeout: Seconds = 60.0

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(f"name: expected letters, digits, dots and dashes, got {self.name[:70]!r}")
        absolute(self, "root", "state", "master_auth")
        if self.master is not None:
            _check_master(self.master)
        for prefix in (*self.paths, *self.paths.values()):
            check_prefix(prefix, "paths")
        many, size, seconds = (1, 10**9), (1, 1024 * GIB), (0.01, 31 * DAY)
        within(self, workers=(1, 1000), heavy_workers=(1, 1000), repair_workers=(1, 1000))
        within(self, worker_memory_bytes=(GIB // 4, 1024 * GIB))
        within(self, open_repositories=many, recycle_after=many)
        within(self, buffer_bytes=size, repository_buffer_bytes=size, batch_events=many, batch_bytes=size)
        within(self, slow_after=seconds, hung_after=seconds, beat_interval=seconds, check_interval=(0, 31 * DAY))
        within(self, check_share=(0.001, 1))
        within(self, retry_first=seconds, retry_longest=seconds, master_timeout=seconds, keep_deleted_days=(0, 36_500))

    @property
    def folder(self) -> str:
        """The folder of notes, set-aside and half-made repositories."""
        return self.state or self.root.rstrip("/") + "/~vcsreplicator"

    @property
    def group(self) -> str:
        """The group under which positions in `events` are stored."""
        return f"mirror-{self.name}"

    def local(self, path: str) -> str:
        """Return the folder of the repository at a (checked) wire path."""
        for prefix in sorted(self.paths, key=len, reverse=True):
            bare = prefix.strip("/")
            if not bare or path == bare or path.startswith(bare + "/"):
                path = "/".join(part for part in (self.paths[prefix].strip("/"), path[len(bare) :].strip("/")) if part)
                break
        return f"{self.root.rstrip('/')}/{path}"


def _check_master(url: str) -> None:
    parts = split_url(url, "http", "https", "ssh")
    if parts is None or not url.startswith(parts.scheme):
        # There may be a password before the @.
        found = "another (not shown, there may be a password before the @)" if "@" in url else quote_value(url)
        raise ValueError(f"master: expected a URL http://, https:// or ssh://, got {found}")
    if parts.password is not None:
        raise ValueError(
            "master: a password in a URL ends up in logs; put it into section [auth] of a file and name that as master-auth"
        )
