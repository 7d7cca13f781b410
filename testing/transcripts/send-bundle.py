# SPDX-License-Identifier: GPL-2.0-or-later
"""For transcripts: `send-bundle.py URL FILE` has a server unbundle a file as it is, where `hg push` would make one itself."""

import sys

from mercurial import ui as uimod

from pushlog.versions import factory, initialize

initialize()
ui, url = uimod.ui.load(), sys.argv[1].encode()
peer = factory.peer(ui, {}, url)
with open(sys.argv[2], "rb") as bundle:
    for part in peer.unbundle(bundle, [b"force"], url).iterparts():
        if part.type == b"error:abort":
            ui.write(b"abort: %s\n" % part.params[b"message"])
peer.close()
