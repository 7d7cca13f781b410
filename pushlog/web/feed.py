# SPDX-License-Identifier: GPL-2.0-or-later
"""The Atom feed: one entry per visible changeset.

The newest push comes first, and its last changeset first.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape as escape_text

from mercurial import encoding

from ..limit import Pushed
from ..store.entry import Push
from .answers import path
from .lookup import FoundPushes, Lookup
from .reply import address

if TYPE_CHECKING:
    from mercurial.hgweb.hgweb_mod_inner import requestcontext

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_HEAD = """<?xml version="1.0" encoding="{encoding}"?>
<feed xmlns="http://www.w3.org/2005/Atom">
 <id>{base}pushlog</id>
 <link rel="self" href="{base}pushlog"/>
 <link rel="alternate" href="{base}pushloghtml"/>
 <title>{repository} Pushlog</title>
 <updated>{updated}</updated>
"""

_ENTRY = """ <entry>
  <title>Changeset {node}</title>
  <id>{base}#changeset-{node}</id>
  <link href="{base}rev/{node}"/>
  <updated>{updated}</updated>
  <author>
   <name>{user}</name>
  </author>
  <content type="xhtml">
   <div xmlns="http://www.w3.org/1999/xhtml">
    <ul class="filelist">{files}</ul>
   </div>
  </content>
 </entry>
"""


def atom(web: requestcontext, lookup: Lookup, found: FoundPushes) -> Iterator[bytes]:
    """Yield the document in pieces, in the encoding that it declares."""
    name = encoding.encoding.decode("ascii")
    base = escape(address(web).decode("ascii"))
    repository = escape(web.reponame.decode("utf-8", "replace"))
    pushes = lookup.pushes(reversed(found.ids))
    newest = list(itertools.islice(pushes, 1))
    updated = _format_time(newest[0].date if newest else int(time.time()))
    head = _HEAD.format(encoding=name, base=base, repository=repository, updated=updated)
    yield head.encode(name, "xmlcharrefreplace")
    for push in itertools.chain(newest, pushes):
        for changeset in lookup.answers.visible(push, found.query):
            yield _make_entry(lookup, push, changeset, base).encode(name, "xmlcharrefreplace")
    yield b"\n</feed>\n"


def _make_entry(lookup: Lookup, push: Push, changeset: Pushed, base: str) -> str:
    files = "".join(f'<li class="file">{escape(path(name))}</li>' for name in lookup.answers.context(changeset).files())
    return _ENTRY.format(
        node=changeset.node, base=base, updated=_format_time(push.date), user=escape(push.user), files=files
    )


def escape(text: str) -> str:
    """Escape text for XML; U+FFFD for characters that XML cannot hold."""
    return escape_text(_NOT_XML.sub("\ufffd", text), {'"': "&quot;"})


def _format_time(epoch: int) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    except (OverflowError, ValueError, OSError):
        return "1970-01-01T00:00:00Z"
