# SPDX-License-Identifier: GPL-2.0-or-later
"""The options of the extension, with their defaults, as Mercurial reads them."""

from __future__ import annotations

from typing import Any

from mercurial import registrar

# The hook that records a push.
HOOK = b"pretxnchangegroup.pushlog"
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
configitem(b"pushlog", b"timeoutro", default=10000)
configitem(b"pushlog", b"timeoutrw", default=30000)
configitem(b"pushlog", b"retrydelayms", default=1500)
configitem(b"pushlog", b"maxpushes", default=0)
configitem(b"pushlog", b"maxwait", default=10)
# Mercurial reads it some fifty times in a push, and searches for one that is not registered.
configitem(b"hooks", b"priority." + HOOK, default=0)
