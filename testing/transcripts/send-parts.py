# SPDX-License-Identifier: GPL-2.0-or-later
"""For transcripts: `send-parts.py SERVER REVSET...` pushes changesets of the repository here in one push, a part for each set."""

import io
import os
import sys

from mercurial import bundle2, changegroup, error
from mercurial import ui as uimod

from pushlog.versions import factory, initialize

initialize()
ui = uimod.ui.load()
repo, peer = factory.repository(ui, b"."), factory.peer(ui, {}, os.fsencode(sys.argv[1]))
bundle = bundle2.bundle20(ui, {b"HG20": (), b"changegroup": (b"02",)})
for revset in sys.argv[2:]:
    revs = list(repo.revs(os.fsencode(revset)))
    nodes = [repo[rev].node() for rev in revs]
    changes = changegroup.getbundler(b"02", repo).generate(range(revs[0]), nodes, False, b"push")
    part = bundle.newpart(b"changegroup", data=changes)
    part.addparam(b"version", b"02")
try:
    peer.unbundle(io.BytesIO(b"".join(bundle.getchunks())), [b"force"], b"")
except error.Abort as problem:
    ui.write(b"abort: %s\n" % problem.message)
