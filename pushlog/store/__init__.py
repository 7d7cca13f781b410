# SPDX-License-Identifier: GPL-2.0-or-later
"""The storage of pushes.

Pushes are in a file that commits with Mercurial's transaction, and in the SQLite database behind it.
"""

from __future__ import annotations

import functools

_JOURNAL = f"{__package__}.journal"


@functools.cache
def complete_journals() -> None:
    """Wrap what `journal` completes, once per process, for every repository in it.

    The first strip or rollback loads that module; no push does.
    """
    from .. import seams

    seams.wrap("mercurial.transaction", "transaction.endgroup", seams.loading(_JOURNAL, "endgroup"))
    seams.wrap("mercurial.transaction", "rollback", seams.loading(_JOURNAL, "rollback"))
