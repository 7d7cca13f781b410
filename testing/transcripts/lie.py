# SPDX-License-Identifier: GPL-2.0-or-later
"""For transcripts: `lie.py REPOSITORY PATH SIZE` commits a file of that many bytes so that no changeset both names and has it.

The first of two changesets names the file and does not have it, the second has it and does not name it: both are pushed whole.
"""

import inspect
import os
import sys

from mercurial import metadata
from mercurial import ui as uimod

from pushlog.versions import factory, initialize

initialize()
repo = factory.repository(uimod.ui.load(), os.fsencode(sys.argv[1])).unfiltered()
path, content = os.fsencode(sys.argv[2]), b"x" * int(sys.argv[3])
null = repo.nodeconstants.nullid
# Before 7.2 every file's history can be written.
writable = {"writable": True} if "writable" in inspect.signature(repo.file).parameters else {}
with repo.lock(), repo.transaction(b"lie") as tr:
    parent = repo[b"tip"]
    version = repo.file(path, **writable).add(content, {}, tr, len(repo), null, null)
    files = metadata.ChangingFiles(touched=[path])
    named = repo.changelog.add(parent.manifestnode(), files, b"named", tr, parent.node(), null, b"liar", b"0 0")
    manifest = repo.manifestlog[parent.manifestnode()].copy()
    manifest.read()[path] = version
    had = manifest.write(tr, len(repo), parent.manifestnode(), null, [path], [])
    repo.changelog.add(had, metadata.ChangingFiles(), b"had", tr, named, null, b"liar", b"1 0")
