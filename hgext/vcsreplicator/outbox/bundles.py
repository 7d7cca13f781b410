# SPDX-License-Identifier: GPL-2.0-or-later
"""Stored bundles of unsent events whose changesets are about to be removed.

`.hg/store/outbox-ID.log` is the bundle of the event ID; `outbox-ID.size.log` beside it is the number of bytes that it unpacks to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING

from pushlog.store.appendfile import open_regular

from ..words.errors import ReplicationError
from .folder import create_file, read_file, replace_file

if TYPE_CHECKING:
    from pushlog.store.appendfile import Folder

# Bytes that are read at once.
PIECE = 1 << 20


class ChangesetsGone(ReplicationError):
    """An event's changesets are gone; mirrors must compare with the master."""


class Bundle:
    """A bundle in pieces; `unpacked` is the number of bytes before compression."""

    def __init__(self, pieces: Iterable[bytes], *, unpacked: int = 0) -> None:
        self.pieces = pieces
        self.unpacked = unpacked

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)


class StoredBundles:
    """The stored bundles in a store folder, by event id."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def has(self, event: str) -> bool:
        return os.path.exists(self._folder.join(_bundle_name(event)))

    def store(self, event: str, bundle: Bundle) -> None:
        """Store the bundle of an event durably; after a kill on the way none is stored."""
        path = self._folder.join(_bundle_name(event))
        with create_file(self._folder, path + b".new") as file:
            file.writelines(bundle)
            file.flush()
            os.fsync(file.fileno())
        replace_file(self._folder, _size_name(event), str(bundle.unpacked).encode())
        os.replace(path + b".new", path)

    @contextlib.contextmanager
    def opened(self, event: str) -> Iterator[Bundle | None]:
        """Open the bundle of an event within the block; give None if none is stored."""
        file: IO[bytes] | None = None
        # Not within a handler: Python would replace the context of the block's errors, which `lacks_memory` reads.
        with contextlib.suppress(FileNotFoundError):
            file = open(self._folder.join(_bundle_name(event)), "rb", opener=open_regular)  # noqa: SIM115
        if file is None:
            yield None
            return
        with file:
            size = read_file(self._folder.join(_size_name(event)))
            yield Bundle(
                iter(lambda: file.read(PIECE), b""), unpacked=int(size) if len(size) < 20 and size.isdigit() else 0
            )

    def remove(self, event: str) -> None:
        """Remove the bundle of an event, which the log has now."""
        for name in (_bundle_name(event), _size_name(event)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder.join(name))


def _bundle_name(event: str) -> bytes:
    return b"outbox-%s.log" % event.encode("ascii")


def _size_name(event: str) -> bytes:
    return b"outbox-%s.size.log" % event.encode("ascii")
