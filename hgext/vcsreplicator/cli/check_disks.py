# SPDX-License-Identifier: GPL-2.0-or-later
"""Full disks of the embedded log and of the folder of blobs, on this machine.

On a full log no service can write that it is alive, so all of them would be named, and the disk would not.
"""

import os
from urllib.parse import unquote, urlsplit

from ..config import Config
from ..status.wording import Finding, Severity

# Bytes below which a disk counts as full.
LEAST = 1 << 20


def find_full_log(config: Config) -> Finding | None:
    """Return what to say if the embedded log's disk is full."""
    parts = urlsplit(config.log)
    if parts.scheme != "sqlite":
        return None
    return _describe_full(os.path.dirname(unquote(parts.path)), "no service can write to the log")


def find_full_blobs(config: Config) -> Finding | None:
    """Return what to say if the disk of the folder of blobs is full."""
    parts = urlsplit(config.blobs or "")
    if parts.scheme != "file":
        return None
    return _describe_full(unquote(parts.path), "pushes with large bundles wait in their outboxes")


def _describe_full(folder: str, what: str) -> Finding | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    if not found.f_blocks or found.f_bavail * found.f_frsize >= LEAST:
        return None
    text = f"{folder}: no space left on its disk: {what}; free some space"
    return Finding(level=Severity.CRITICAL, text=text)
