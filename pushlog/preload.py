# SPDX-License-Identifier: GPL-2.0-or-later
"""The loading of what a push uses, while its client works.

The client of `hg serve --stdio` takes tens of milliseconds between the first answer and its push, and the server waits. It uses
each wait to import modules, one after another, until the client's next request is there: that waits for one module at most, about a
millisecond. A client that leaves no time gets the same answers: what is not loaded then is loaded when it is used. There is no
thread, which Mercurial's demand import does not allow: a signal, or the end of the input, ends a server that imports like a
waiting one. A pull loads these modules, too.
"""

from __future__ import annotations

import importlib
import io
import select
from typing import Any

from . import seams

# In the order in which they are loaded: a module after those that it imports, so that none brings many others.
_awaited: list[str] = []


def load_while_waiting(*modules: str) -> None:
    """Have a server over SSH load these modules while it waits for requests."""
    if not _awaited:
        seams.wrap("mercurial.wireprotoserver", "_runsshserver", serve)
    _awaited.extend(modules)


def serve(orig: Any, ui: Any, repo: Any, fin: Any, *arguments: Any, **keywords: Any) -> None:
    """Serve one client, with an input that uses the time until it can be read.

    Mercurial has just opened `fin` anew, unless it is the input that it was given, so nothing is in its buffer.
    """
    if fin is not ui.fin and isinstance(fin, io.BufferedReader) and isinstance(fin.raw, io.FileIO):
        fin = io.BufferedReader(_Requests(fin.raw, ui))
    orig(ui, repo, fin, *arguments, **keywords)


class _Requests(io.RawIOBase):
    """The requests of a client; read only if no earlier one is left in the buffer."""

    def __init__(self, raw: io.FileIO, ui: Any) -> None:
        self._raw, self._ui = raw, ui
        self._input = select.poll()
        self._input.register(raw, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        while _awaited and not self._input.poll(0):
            self._load(_awaited.pop(0))
        return self._raw.readinto(buffer)

    def _load(self, module: str) -> None:
        """Import a module, or say why not: the code that uses it may not know."""
        try:
            dir(importlib.import_module(module))  # `dir` ends Mercurial's demand import
        except Exception as problem:
            _awaited.clear()
            self._ui.warn(b"cannot load %s: %s\n" % (module.encode(), str(problem).encode("utf-8", "backslashreplace")))
