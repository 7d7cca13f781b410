# SPDX-License-Identifier: GPL-2.0-or-later
"""An extension of the worker's Mercurial that follows no redirect.

A host must not send the worker into the worker's own network. The command server loads this file by its path; no module imports
it.
"""

import urllib.error
import urllib.request
from typing import Any

from mercurial import url

testedwith = b"7.2"

# Characters of an address that are shown.
_SHOWN = 200


class _RefusedRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise urllib.error.URLError(f"it redirects to {newurl[:_SHOWN]!r}, which is not followed")


def extsetup(ui: Any) -> None:
    """Add the handler that refuses redirects to every connection."""
    url.handlerfuncs.append(lambda ui, passwords: _RefusedRedirects())
