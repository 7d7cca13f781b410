# SPDX-License-Identifier: GPL-2.0-or-later
"""One head per branch.

A push that leaves a branch with several open heads, one of them new, is refused.

    [hooks]
    pretxnopen.streams = python:hooks.streams.refuse
    pretxnclose.heads = python:hooks.heads.one_per_branch

    [one-head]
    # The branches this applies to, as the server's locale or UTF-8 writes them; all without it.
    branches = default, stable

Several heads from before the rule, or from a strip, must be merged by one push that leaves one. Closed heads, and heads that are
hidden as obsolete or secret, do not count.
"""

from __future__ import annotations

from typing import Any

from mercurial import encoding
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui
from mercurial.utils import stringutil

# Most heads that a message names.
SHOWN = 5


def one_per_branch(
    ui: Ui, repo: localrepository, node: bytes | None = None, source: bytes = b"", **_arguments: Any
) -> bool:
    """Refuse several heads of a branch: a `pretxnclose` hook.

    Of the hook's arguments it takes only `node`, the first new changeset, and `source`. A strip is never refused: the changesets
    that it adds again would be lost.
    """
    if node is None or source == b"strip":
        return False
    served = repo.filtered(b"served")
    first = repo.unfiltered()[node].rev()
    asked = stringutil.parselist(dict(ui.configitems(b"one-head")).get(b"branches", b""))
    branches = {served[rev].branch() for rev in served.changelog.revs(first)}
    refused = False
    for branch in sorted(branches):
        if asked and branch not in asked and encoding.fromlocal(branch) not in asked:
            continue
        heads = served.branchmap().branchheads(branch)
        new = [head for head in heads if served.changelog.rev(head) >= first]
        if len(heads) > 1 and new:
            _warn_of_heads(ui, served, branch, heads)
            refused = True
    return refused


def _warn_of_heads(ui: Ui, repo: localrepository, branch: bytes, heads: list[bytes]) -> None:
    names = b", ".join(bytes(repo[head]) for head in heads[:SHOWN])
    more = b" and %d more" % (len(heads) - SHOWN) if len(heads) > SHOWN else b""
    ui.warn(b'branch "%s" would have %d heads: %s%s\n' % (branch, len(heads), names, more))
    ui.warn(b"(pull and merge or rebase, then push again)\n")
