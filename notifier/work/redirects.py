# SPDX-License-Identifier: GPL-2.0-or-later
"""An extension of the worker's Mercurial that follows no redirect.

A host must not send the worker into the worker's own network, neither by a redirect nor by a bundle that names another address.
The command server loads this file by its path; no module imports it.
"""

import urllib.error
import urllib.request
from typing import Any

from mercurial import bundle2, url

testedwith = b"6.3 6.9 7.0 7.1 7.2"

# Characters of an address that are shown.
_SHOWN = 200

# The part of a bundle that names the address of changesets, and the capability to read it.
_REMOTE = b"remote-changegroup"


class _RefusedRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise urllib.error.URLError(f"it redirects to {newurl[:_SHOWN]!r}, which is not followed")


def extsetup(ui: Any) -> None:
    """Refuse redirects on every connection, and bundles that name another address.

    Raises KeyError if this Mercurial keeps such parts elsewhere; then the required extension is not loaded, and no command runs.
    """
    url.handlerfuncs.append(lambda ui, passwords: _RefusedRedirects())
    del bundle2.parthandlermapping[_REMOTE], bundle2.capabilities[_REMOTE]
