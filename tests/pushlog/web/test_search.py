# SPDX-License-Identifier: GPL-2.0-or-later
"""hgweb's search evaluates the revsets that cost little, and takes all others for words."""

import json
from urllib.parse import quote

import pytest

from pushlog.web.search import LONGEST, MOST
from tests.pushlog.conftest import Site

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def search(site, expression):
    """How hgweb understood the search, and the number of changesets that it found."""
    query = "rev=" + quote(expression)
    _status, _headers, page = site.get("/log", query + "&style=paper")
    kind = page.partition(b"Assuming ")[2].partition(b" search")[0]
    return kind.decode(), len(json.loads(site.get("/json-log", query)[2])["entries"])


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    "expression",
    [
        "desc('r'##'e:(.|.)*Z')",
        "desc(r ## e ## ':.')",
        "pushuser('r'##'e:.')",
        "desc('re:.')",
        "pushuser('re:.')",
        "file('set:grep(a)')",
        "file('listfile:/dev/zero')",
        "file('include:/etc/passwd')",
        "file('re:.')",
        "file(a)",
        "filelog('listfile:/etc/passwd')",
        "follow('listfile:/etc/passwd')",
        "followlines(a, 1:2)",
        "adds('set:grep(a)')",
        "modifies('set:grep(a)')",
        "removes('set:grep(a)')",
        "contains('set:grep(a)')",
        "extra('a', 're:.')",
        "matching(tip, 'diff')",
        "successors(all())",
        "_matchfiles('r:', 'p:listfile:/etc/passwd')",
        "revset(file('listfile:/etc/passwd'))",
        "not file(a)",
        "limit(all(), n=2) and file(a)",
        "0~99999999999999999999",
        "all()~9999",
        "tip~-9999",
        "tip#generations[-9999]",
        "tip and wdir()",
        "sort(all(), 'desc')",
        "(file)(a)",
        "'all'() and tip",
    ],
)
def test_a_search_of_unknown_cost_or_with_a_pattern_is_for_words(site, expression):
    assert search(site, expression)[0] == "literal keyword"


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("pushid(3)", 3),
        ("pushhead() and pushuser(alice)", 4),
        ("pushdate('>2016-03-01') and draft()", None),
        ("pushrev(3)", None),
        ("user(alice) and date('>2000-01-01')", None),
        ("author('literal:alice') or desc(change) or keyword(change)", None),
        ("0:3", 4),
        ("0::tip", None),
        ("heads(all()) - branch(default)", None),
        ("limit(reverse(ancestors(tip)), 2)", 2),
        ("tip~2", 1),
        ("tip^", 1),
        ("only(tip, 0) and not merge()", None),
        ("present(nothing) or tag(tip) or bookmark()", None),
        ("children(parents(tip)) or p1(tip) or 0 or '1'", None),
    ],
)
def test_a_search_that_lists_use_is_evaluated(site, expression, found):
    kind, number = search(site, expression)
    assert kind == "revset expression"
    assert found is None or number == found


@pytest.mark.parametrize("count", [MOST, MOST + 1])
def test_a_search_has_few_functions_and_operators(site, count):
    expression = " or ".join(["draft()"] * (count - 1))  # `reverse()`, which hgweb adds, is one more
    assert search(site, expression)[0] == ("revset expression" if count <= MOST else "literal keyword")


def test_a_search_for_a_hundred_revisions_is_evaluated(site):
    assert search(site, " or ".join(["0"] * 100)) == ("revset expression", 1)


@pytest.mark.parametrize("expression", ["rev(99999999999999999999999)", "all() and rev(99999999999999999999999)"])
def test_a_number_that_no_changeset_has_is_searched_as_words(site, expression):
    assert search(site, expression)[0] == "literal keyword"


def test_a_template_of_the_server_evaluates_any_revset(root):
    site = Site(root / "golden", "[web]\nallow-archive = gz\n")
    status, _headers, archive = site.get("/archive/tip.tar.gz")
    assert status == 200
    assert archive.startswith(b"\x1f\x8b")


@pytest.mark.parametrize("part", ["tip+", "(", "a or "])
def test_a_search_that_is_too_long_or_too_deep_is_refused(site, part):
    for count, statuses in ((50, {200}), (LONGEST // len(part), {200, 400}), (LONGEST, {400})):
        status, _headers, _body = site.get("/log", "rev=" + quote(part * count + "a"))
        assert status in statuses
