# SPDX-License-Identifier: GPL-2.0-or-later
"""An extension that confines the worker's Mercurial.

Without it a pull would survive a worker that is killed, and keep the lock of a clone that the next worker needs. A host must not
send the worker into the worker's own network, neither by a redirect nor by a bundle that names another address. It must not name
files of a clone either: Mercurial believes the files in `.hg/store`, and some of them name paths anywhere on this machine. So a
pull takes no copy of a store, and reads none over HTTP, as Mercurial would where a host answers with a page. The command
server loads this file by its path; no module imports it.
"""

import ctypes
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from mercurial import bundle2, error, exchange, statichttprepo, streamclone, url

testedwith = b"6.3 6.9 7.0 7.1 7.2"

# Of prctl: the signal that a process gets when the thread that started it ends.
_PR_SET_PDEATHSIG = 1

# Characters of an address that are shown.
_SHOWN = 200

# The parts of a bundle that a pull needs.
_NEEDED = (b"bookmarks", b"changegroup", b"error:abort", b"listkeys", b"phase-heads")


class _RefusedRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise urllib.error.URLError(f"it redirects to {newurl[:_SHOWN]!r}, which is not followed")


def extsetup(ui: Any) -> None:
    """End this process with the worker, and have a pull take changesets alone.

    The worker sends the first command after this, so no command begins without a worker. Raises KeyError or AttributeError if this
    Mercurial keeps parts of bundles or the ways of cloning elsewhere; then the required extension is not loaded, and no command
    runs.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    url.handlerfuncs.append(lambda ui, passwords: _RefusedRedirects())
    needed = {name: bundle2.parthandlermapping[name] for name in _NEEDED}
    bundle2.parthandlermapping.clear()
    bundle2.parthandlermapping.update(needed)
    del bundle2.capabilities[b"remote-changegroup"]
    _replace(streamclone, "canperformstreamclone", lambda *_, **__: (False, None))
    _replace(exchange, "_maybeapplyclonebundle", lambda *_: None)
    _replace(statichttprepo.statichttprepository, "__init__", _refuse_files)


def _refuse_files(*_: Any) -> None:
    raise error.RepoError(b"expected a server of Mercurial")


def _replace(module: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a function of Mercurial; raises AttributeError if there is none."""
    getattr(module, name)
    setattr(module, name, function)
