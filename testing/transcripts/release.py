# SPDX-License-Identifier: GPL-2.0-or-later
"""`release.py REPOSITORY LENGTH [SEQ [PUSH]]`: release the first LENGTH changesets, as a mirror's worker does."""

import os
import sys

from mercurial import ui as uimod
from mercurial.node import hex

from hgext.vcsreplicator.hg.serving import watermark
from pushlog.versions import factory, initialize


def main(path: str, length: int, seq: int = 1, push: int | None = None) -> None:
    initialize()
    repo = factory.repository(uimod.ui.load(), os.fsencode(path)).unfiltered()
    tip = hex(repo.changelog.node(length - 1)).decode()
    watermark.write_watermark(repo, watermark.Watermark(seq=seq, length=length, tip=tip, push_id=push))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
