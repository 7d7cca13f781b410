# SPDX-License-Identifier: GPL-2.0-or-later
"""The lines that a client over SSH reads as `remote: …`.

Mercurial, hooks and extensions print them while the repository is locked. If the client reads none, the pipe fills: without a limit
the next line would wait for the client, and all other pushes for the lock. Programs that a hook starts print past this limit.
"""

from __future__ import annotations

import select
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mercurial.localrepo import localrepository
    from mercurial.ui import ui as Ui

# Seconds that a line waits for a client that does not read.
PATIENCE = 30.0
# Bytes that a pipe takes at once, if it takes any.
_PIECE = select.PIPE_BUF


def serve(orig: Any, ui: Ui, repo: localrepository, *arguments: Any, **keywords: Any) -> None:
    """Wrap `_runsshserver`: have no line wait for the client longer than PATIENCE."""
    served: Any = repo.ui
    served.fout, served.ferr = _RemoteLines(served.fout), _RemoteLines(served.ferr)
    orig(ui, repo, *arguments, **keywords)


class _RemoteLines:
    """A file for a client; after PATIENCE seconds in which the client read nothing, it drops what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._is_read = file, True
        self._output = select.poll()
        self._output.register(file, select.POLLOUT)

    def write(self, data: bytes) -> int:
        for start in range(0, len(data), _PIECE):
            self._is_read = self._is_read and bool(self._output.poll(1000 * PATIENCE))
            if self._is_read:
                self._file.write(data[start : start + _PIECE])
                self._file.flush()
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
