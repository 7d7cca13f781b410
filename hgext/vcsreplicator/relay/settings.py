# SPDX-License-Identifier: GPL-2.0-or-later
"""The section `[relay]` of the services' file.

Verbs that only read it do not import the relay.
"""

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..words.clock import DAY
from ..words.errors import quote_value
from ..words.path import check_prefix
from ..words.shape import Days, Seconds, absolute, within


class Removed(enum.StrEnum):
    """What the relay does about a repository that was removed by hand."""

    REPORT = "report"
    ANNOUNCE = "announce"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """The section [relay]; docs/install.md explains each key.

    `roots` maps folders to wire prefixes.
    """

    socket: str
    source: str
    roots: Mapping[str, str]
    blobs: str | None = None
    blob_age: Days = 45.0
    workers: int = 8
    scan: Seconds = 30.0
    removed: Removed = Removed.REPORT
    removed_after: Seconds = 3600.0

    def __post_init__(self) -> None:
        if not self.roots:
            raise ValueError("roots: expected at least one folder")
        for folder, prefix in self.roots.items():
            if not os.path.isabs(folder):
                raise ValueError(f"roots: expected an absolute folder, got {quote_value(folder)}")
            check_prefix(prefix, "roots")
        absolute(self, "socket")
        if not self.source:
            raise ValueError("source: expected a name of this master such as hg://master.example, got nothing")
        within(self, workers=(1, 1000), scan=(0.01, DAY), blob_age=(0.01, 36_500), removed_after=(1, 365 * DAY))
