# SPDX-License-Identifier: GPL-2.0-or-later
"""A page of hgweb shows a bounded number of changesets, however many the client asks for."""

import json

import pytest

from pushlog.web import bounds

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning"),  # in templates of Mercurial
]
HIGH = "1" + "0" * 30


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(bounds, "MOST", 3)


@pytest.mark.parametrize(
    ("path", "query", "members"),
    [
        ("/json-log", "", "changesets"),
        ("/json-shortlog", "", "changesets"),
        ("/json-log", "&rev=all()", "entries"),
        ("/json-log", "&rev=a", "entries"),
        ("/json-graph", "", "changesets"),
        ("/json-graph/tip", "", "changesets"),
    ],
)
def test_a_page_has_as_many_changesets_as_a_request_may_cost(site, path, query, members):
    assert len(json.loads(site.get(path, "revcount=2" + query)[2])[members]) == 2
    assert len(json.loads(site.get(path, f"revcount={HIGH}" + query)[2])[members]) == 3


@pytest.mark.parametrize(("path", "mark"), [("/rss-log", b"<item>"), ("/atom-log", b"<entry>")])
def test_a_feed_has_as_many_changesets_as_a_request_may_cost(site, path, mark):
    assert site.get(path, f"revcount={HIGH}")[2].count(mark) <= 3


@pytest.mark.parametrize(("start", "top", "drawn"), [(0, "tip", 1), (0, "3", 4), (0, "4", 1), (3, "3", 3), (4, "0", 3)])
def test_a_graph_begins_near_its_first_changeset(site, start, top, drawn):
    page = site.get(f"/graph/{start}", f"style=paper&graphtop={top}&revcount=3")[2]
    assert page.count(b'"vertex":') == drawn
