# SPDX-License-Identifier: GPL-2.0-or-later
"""`release.py REPOSITORY LENGTH [SEQ [PUSH]]`: release the first LENGTH changesets, as a mirror's worker does.

The hgrc files say whether the master is publishing.
"""

import contextlib
import os
import sys

from mercurial import ui as uimod
from mercurial.node import hex

from hgext.vcsreplicator.hg.serving import watermark
from hgext.vcsreplicator.words.event import ClientSettings
from pushlog.versions import factory, initialize


def main(path: str, length: int, seq: int = 1, push: int | None = None) -> None:
    initialize()
    ui = uimod.ui.load()
    repo = factory.repository(ui, os.fsencode(path)).unfiltered()
    with contextlib.suppress(FileNotFoundError):
        ui.readconfig(repo.vfs.join(b"hgrc"), trust=True)
    settings = ClientSettings(publishing=ui.configbool(b"phases", b"publish"))
    tip = hex(repo.changelog.node(length - 1)).decode()
    shown = watermark.Watermark(seq=seq, length=length, tip=tip, push_id=push)
    watermark.write_watermark(repo, shown, settings=settings)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
