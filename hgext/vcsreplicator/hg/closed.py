# SPDX-License-Identifier: GPL-2.0-or-later
"""The stand-in for an extension that cannot be loaded.

This module needs nothing that another Mercurial may lack.
"""

from collections.abc import Callable
from typing import Any

from mercurial import error


def refuse_for(failure: Exception) -> Callable[[Any, Any], None]:
    """Return a `reposetup` that refuses every local repository, with the reason."""

    def reposetup(ui: Any, repo: Any) -> None:
        if repo.local():
            reason = f"the extension vcsreplicator cannot be loaded: {failure}"
            raise error.Abort(reason.encode(), hint=b"until that is fixed no repository is opened")

    return reposetup
