# SPDX-License-Identifier: GPL-2.0-or-later
"""The lines that a client over SSH reads as `remote: …`.

Mercurial, hooks and extensions print them while the repository is locked. If the client reads none, the pipe fills: without a limit
the next line would wait for the client, and all other pushes for the lock. Programs that a hook starts print past this limit.
"""

from __future__ import annotations

import select
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mercurial.localrepo import localrepository
    from mercurial.ui import ui as Ui

# Seconds that all lines of a connection wait for a client that does not read, or reads slowly.
PATIENCE = 30.0
# Bytes that a pipe takes at once, if it takes any.
_PIECE = select.PIPE_BUF


def serve(orig: Any, ui: Ui, repo: localrepository, *arguments: Any, **keywords: Any) -> None:
    """Wrap `_runsshserver`: have lines wait for the client no longer than PATIENCE."""
    served: Any = repo.ui
    served.fout, served.ferr = RemoteLines(served.fout), RemoteLines(served.ferr)
    orig(ui, repo, *arguments, **keywords)


class RemoteLines:
    """A file for a client; once writers have waited for the client for PATIENCE seconds in all, it drops what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._patience = file, PATIENCE
        self._output = select.poll()
        self._output.register(file, select.POLLOUT)

    def write(self, data: bytes) -> int:
        for start in range(0, len(data), _PIECE):
            if self._patience > 0 and self._wait():
                self._file.write(data[start : start + _PIECE])
                self._file.flush()
        return len(data)

    def _wait(self) -> bool:
        """Wait until the file takes a piece; return whether it does."""
        begin = time.monotonic()
        is_taken = bool(self._output.poll(1000 * self._patience))
        self._patience = self._patience - (time.monotonic() - begin) if is_taken else 0.0
        return is_taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
