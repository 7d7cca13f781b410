# SPDX-License-Identifier: GPL-2.0-or-later
"""For transcripts: `heavy.py REPOSITORY KIND PATH SIZE` commits a small file whose stored history has that many bytes.

They are, by KIND, `metadata` of its version, the content of a `censored` version, or an `unnamed` version, which is in no manifest.
"""

import inspect
import os
import sys

from mercurial import metadata
from mercurial import ui as uimod

from pushlog.versions import factory, initialize

# How a revlog marks such a version.
CENSORED = 1 << 15

initialize()
repo = factory.repository(uimod.ui.load(), os.fsencode(sys.argv[1])).unfiltered()
kind, path, content = sys.argv[2], os.fsencode(sys.argv[3]), b"x" * int(sys.argv[4])
null = repo.nodeconstants.nullid
# Before 7.2 every file's history can be written.
writable = {"writable": True} if "writable" in inspect.signature(repo.file).parameters else {}
with repo.lock(), repo.transaction(b"heavy") as tr:
    parent, history = repo[b"tip"], repo.file(path, **writable)
    if kind == "metadata":
        version = history.add(b"small", {b"more": content}, tr, len(repo), null, null)
    elif kind == "unnamed":
        version = history.add(b"small", {}, tr, len(repo), null, null)
        history.add(content, {}, tr, len(repo), version, null)
    elif kind == "censored":
        text, version = b"\x01\ncensored: \n\x01\n" + content, b"\x12" * 20
        history._revlog.addrawrevision(text, tr, len(repo), null, null, version, flags=CENSORED)
    manifest = repo.manifestlog[parent.manifestnode()].copy()
    manifest.read()[path] = version
    has = manifest.write(tr, len(repo), parent.manifestnode(), null, [path], [])
    files = metadata.ChangingFiles(touched=[path])
    repo.changelog.add(has, files, b"heavy", tr, parent.node(), null, b"author", b"0 0")
