# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository in which every text that a pusher chooses tries to become a part of the page, and the pages that show it."""

import html.parser
import re
from urllib.parse import quote

from mercurial import bookmarks, context, encoding, obsolete, tags
from mercurial.node import hex

# One needs the end of an attribute, one of an element, one of a script's string; the element and attribute are found again.
EVIL = "\"'><xevil xevil='1' onerror=\"xevil()\">'\\-xevil()-\\\"</script><script>xevil()</script>"
NAME = EVIL.replace("/", "") + "<b xevil>"
STYLES = ("paper", "coal", "gitweb", "monoblue", "spartan")
FEEDS = ("atom", "rss")
REVISIONS = 4
# String literals of JavaScript.
_STRINGS = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""")


def fill(repository, monkeypatch):
    """Changesets with hostile names of files and folders, author, description, branch, tag, bookmark, rename and markers."""
    monkeypatch.setattr(encoding, "fromlocal", lambda text: text)  # what a client sends is stored as it is
    name, evil = NAME.encode(), EVIL.encode()
    folder = b"dir " + name
    first, renamed = folder + b"/" + name, folder + b"/renamed " + name
    nodes, parent = [], repository.nullid
    with repository.wlock(), repository.lock(), repository.transaction(b"test") as tr:
        for number, (path, source, user) in enumerate(
            [
                (first, None, evil),
                (renamed, first, b"xevil <" + evil + b"@example.com>"),
                (renamed, None, evil + b"@example.com"),
                (b"top " + name, None, b"<xevil xevil=1>"),
            ]
        ):

            def file(repo, ctx, wanted, path=path, source=source, number=number):
                if wanted != path:
                    return None
                return context.memfilectx(repo, ctx, wanted, evil + b"\n%d\n" % number, copysource=source)

            made = context.memctx(
                repository,
                (parent, repository.nullid),
                evil + b"\n\n" + evil,
                [path, *([source] if source else [])],
                file,
                user=user,
                date=(number, 0),
                branch=b"branch " + name,
            )
            parent = repository.commitctx(made)
            nodes.append(parent)
        bookmarks.addbookmarks(repository, tr, [b"bookmark " + name], rev=hex(parent))
        metadata = {b"operation": evil, b"user": evil, b"note": evil}
        replaced = repository.unfiltered()[1]
        obsolete.createmarkers(repository, [(replaced, (repository.unfiltered()[0],))], metadata=metadata)
    tags.tag(repository, b"tag " + name.replace(b":", b""), nodes[0], evil, True, evil, (9, 0))
    monkeypatch.undo()
    return {"folder": folder.decode(), "first": first.decode(), "renamed": renamed.decode(), "top": f"top {NAME}"}


def addresses(names):
    """(path, query) of every kind of page that Mercurial and the pushlog have of this repository; %s for `style-`."""
    pages = ["summary", "shortlog", "changelog", "log", "graph", "tags", "branches", "bookmarks", "manifest", "help"]
    pages += ["help/revsets", "help/nosuch" + quote(NAME), "pushloghtml", "rev/nosuch" + quote(EVIL, safe="")]
    for revision in range(REVISIONS):
        pages += [
            f"{kind}/{revision}" for kind in ("rev", "changeset", "log", "shortlog", "changelog", "graph", "file")
        ]
    pages += ["rev/0:3", "file/3/" + quote(names["folder"]), "file/3/" + quote("nosuch" + EVIL)]
    for kind in ("file", "annotate", "diff", "filediff", "comparison", "log", "filelog", "rev"):
        for revision, name in ((0, "first"), (1, "renamed"), (2, "renamed"), (3, "top")):
            pages.append(f"{kind}/{revision}/{quote(names[name])}")
    found = [(page, "") for page in pages]
    found += [(f"log/2/{quote(names['renamed'])}", "patch=1"), (f"log/2/{quote(names['renamed'])}", "linerange=1:2")]
    found += [("log", f"rev={quote(query)}") for query in ("xevil", EVIL, "keyword(xevil)", "all()", "desc('")]
    found += [("shortlog", f"rev={quote(EVIL)}"), ("graph/tip", f"revcount={quote(EVIL)}")]
    found += [("pushloghtml", f"startID=0&user={quote(EVIL)}"), ("nosuch" + quote(EVIL), "")]
    return [*found, ("file/" + quote("branch " + NAME, safe=""), ""), ("rev/" + quote("tag " + NAME, safe=""), "")]


class Page(html.parser.HTMLParser):
    """What a browser would make of a page: ``elements`` and attributes, and the ``scripts`` in it."""

    def __init__(self, body):
        super().__init__()
        self.elements, self.scripts, self._is_script = [], [], False
        self.feed(body.decode("utf-8", "replace"))
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._is_script = self._is_script and tag != "script"

    def handle_data(self, data):
        if self._is_script:
            self.scripts[-1] += data

    def intrusions(self):
        """Elements, attributes and pieces of scripts that come from a pusher."""
        found = [
            (tag, attributes)
            for tag, attributes in self.elements
            if "xevil" in tag
            or any("xevil" in name or name.startswith("on") for name in attributes)
            or any((value or "").lstrip().lower().startswith("javascript:") for value in attributes.values())
        ]
        return found + [script for script in self.scripts if "xevil" in _STRINGS.sub("", script)]
