# SPDX-License-Identifier: GPL-2.0-or-later
"""The options of the extension, with their defaults, as Mercurial reads them."""

from __future__ import annotations

from typing import Any

from mercurial import error, registrar
from mercurial.ui import ui as Ui

# The hooks that record a push, and commits made here.
HOOK = b"pretxnchangegroup.pushlog"
COMMIT_HOOK = b"pretxncommit.pushlog"
# What can have a row: changesets that arrive, by Mercurial's name of their source, and those that are made here.
ARRIVING = (b"push", b"serve", b"pull", b"unbundle")
MADE_HERE = (b"commit", b"merge", b"rebase")
# One account each, as older configurations name them; `landingusers` takes any number.
LANDING_OPTIONS = (
    b"autolanduser",
    b"landingworkeruser",
    b"landingworkeruser2",
    b"landingworkeruserdev",
    b"landingworkertry",
    b"landingworkertrydev",
    b"landingworkertrystage",
    b"githgsyncworker",
    b"githgsyncworkerfirefox",
    b"githgsyncworkerthunderbird",
)

configtable: dict[Any, Any] = {}
configitem = registrar.configitem(configtable)
for _option in (*LANDING_OPTIONS, b"userprefix", b"remoteuserprefix"):
    configitem(b"pushlog", _option, default=None)
configitem(b"pushlog", b"landingusers", default=list)
configitem(b"pushlog", b"user-variables", default=b"REMOTE_USER USER")
configitem(b"pushlog", b"record", default=b"push serve")
configitem(b"pushlog", b"timeoutro", default=10000)
configitem(b"pushlog", b"timeoutrw", default=30000)
configitem(b"pushlog", b"retrydelayms", default=1500)
configitem(b"pushlog", b"maxpushes", default=0)
configitem(b"pushlog", b"maxwait", default=10)
# Mercurial reads them some fifty times in a push, and searches for it if it is not registered.
for _hook in (HOOK, COMMIT_HOOK):
    configitem(b"hooks", b"priority." + _hook, default=0)


def read_recorded(ui: Ui) -> frozenset[bytes]:
    """Read what gets a row; raises ConfigError for an unknown word."""
    words = frozenset(ui.configlist(b"pushlog", b"record"))
    if unknown := sorted(words.difference(ARRIVING, MADE_HERE)):
        known = b", ".join(ARRIVING + MADE_HERE)
        raise error.ConfigError(b'config: [pushlog] record: expected some of %s, got "%s"' % (known, unknown[0][:80]))
    return words
