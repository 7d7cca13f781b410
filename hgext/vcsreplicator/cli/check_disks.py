# SPDX-License-Identifier: GPL-2.0-or-later
"""Full and hung disks on this machine, of the embedded log and of the blobs.

On a full log no service can write that it is alive, so all of them would be named, and the disk would not.
"""

import os
import threading
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from ..config import Config
from ..status.wording import Finding, Severity

# Bytes below which a disk counts as full.
LEAST = 1 << 20
# Seconds for which a disk may take to answer; that of a network may hang for good.
PATIENCE = 3.0


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
    found = list[os.statvfs_result]()

    def measure() -> None:
        with suppress(OSError):
            found.append(os.statvfs(folder))

    thread = threading.Thread(target=measure, name="disk", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        text = f"{folder}: its disk does not answer: {what}"
    elif found and (lacking := _find_lacking(found[0])):
        text = f"{folder}: no {lacking} left on its disk: {what}; free some {lacking}"
    else:
        return None
    return Finding(level=Severity.CRITICAL, text=text)


def _find_lacking(disk: os.statvfs_result) -> str | None:
    """Return what a disk has no more of; a file system without limits says 0 in all."""
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < LEAST:
        return "space"
    return "inodes" if disk.f_files and not disk.f_favail else None
