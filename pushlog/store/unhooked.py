# SPDX-License-Identifier: GPL-2.0-or-later
"""Transactions that run no hook of the site.

What an extension writes beside a change, after it or about it, cannot be refused any more: the change has happened.
"""

from __future__ import annotations

from collections.abc import Callable

from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction


def open_unhooked(repo: localrepository, begin: Callable[[], Transaction]) -> Transaction:
    """Open a transaction by `begin`; unless it is nested, no hook of it runs.

    Nor does Mercurial check the heads of branches (`experimental.single-head-per-branch`). Mercurial keeps what runs hooks under
    these names (`tests/pushlog/test_unhooked.py`).
    """
    if repo.currenttransaction() is not None:
        return begin()
    before, repo.ui.callhooks = repo.ui.callhooks, False
    try:
        tr = begin()
    finally:
        repo.ui.callhooks = before
    tr.addvalidator(b"001-userhooks", _do_nothing)
    tr.addfinalize(b"txnclose-hook", _do_nothing)
    tr.addabort(b"txnabort-hook", _do_nothing)
    return tr


def _do_nothing(_tr: Transaction) -> None:
    """Take the place of hooks."""
