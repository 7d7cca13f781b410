# SPDX-License-Identifier: GPL-2.0-or-later
"""The page of pushes leads on: from a text to the bug, with tags in each style, and with hashes that are copied whole."""

import pytest
from mercurial import bookmarks, tags

from pushlog.web import page
from tests.pushlog.conftest import Site

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
STYLES = ("paper", "coal", "gitweb", "monoblue", "spartan")


@pytest.fixture
def shown(place, tmp_path, monkeypatch):
    """A site with links to bugs, and the hash of a tagged changeset that names one."""
    monkeypatch.setattr(page, "ROLLED_UP_FROM", 1)
    made = place("shown")
    node = made.commit(b"Bug 1234567 - <b>bold</b> & more\n\nbug 7654321")
    others = [made.commit(b"bug 20000%02d - rolled up" % number) for number in range(2)]
    made.push_to(place("served"))
    served = place("served").repository
    with served.wlock(), served.lock(), served.transaction(b"test") as tr:
        bookmarks.addbookmarks(served, tr, [b"release<1>"], rev=node.encode())
    tags.tag(served, b"TAG_1", bytes.fromhex(node), b"tagged", True, b"test", (0, 0))
    link = r'websub = s!\b[Bb]ug (\d{4,})\b!<a href="https://bugs.example/\1">bug \1</a>!'
    return (
        Site(tmp_path / "served", f"[phases]\npublish = no\n[websub]\n{link.replace('websub', 'bug')}\n"),
        node,
        others,
    )


@pytest.mark.sample(2, keep=("spartan",))
@pytest.mark.parametrize("style", STYLES)
def test_a_push_shows_bugs_tags_and_whole_hashes_in_each_style(shown, style):
    site, node, others = shown
    status, _headers, body = site.get("/pushloghtml", f"startID=0&style={style}")
    text = body.decode()
    assert status == 200
    assert '<a href="https://bugs.example/1234567">bug 1234567</a> - &lt;b&gt;bold&lt;/b&gt; &amp; more' in text
    assert "7654321" not in text, "only the first line is shown"
    assert '<a href="https://bugs.example/2000000">' in text, "rolled up or not"
    for each in (node, *others):
        assert f">{each}</a>" in text
    for name in ("TAG_1", "release&lt;1&gt;"):
        assert f">{name}</span>" in text
    assert text.count('<a class="firstline"') == 0, "no link within a link"
