# SPDX-License-Identifier: GPL-2.0-or-later
"""The search for pushes: by a changeset, a user, a bookmark or a repository, and for guests in public names only."""

import html
from collections.abc import Iterator

import pytest

from hgext.vcsreplicator.dashboard.settings import DashboardRole
from hgext.vcsreplicator.log import EVENTS, NewRecord, partition_of
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import DISCLOSED, Bookmark, Disclosure, Type
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain, pushed
from tests.dashboard.conftest import AS_READER, Installation, Site, pages, settings

# A changeset of a public and of a private repository, and one that no client sees.
PUBLIC, PRIVATE, HIDDEN = "ab" * 20, "cd" * 20, "ef" * 20
ROWS = 25


def put(installation: Installation, path: str, seq: int, node: str, user: str, **members: object) -> Chain:
    """A push to a repository of which no mirror has said anything yet."""
    chain = installation.chains.setdefault(path, Chain(path))
    made = pushed(seq)
    entry = made.push
    assert entry is not None
    changes = made.__class__(
        added=made.added,
        heads_added=(node,),
        bookmarks=(Bookmark(name="release/118", node=node),),
        push=entry.__class__(id=seq, user=user, date=entry.date),
    )
    event = chain.next(Type.CHANGED, changes=changes, time=installation.clock.now(), **members)
    value, partition = wire.encode(event), partition_of(event.repository, 2)
    installation.log.append([NewRecord(topic=EVENTS, key=event.repository, value=value, partition=partition)])
    installation.state(chain)
    installation.clock.advance(1)
    return chain


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """More pushes than a page lists, before the others."""
    installation = Installation(mirrors=())
    for number in range(ROWS + 5):
        put(installation, f"public/many{number}", 1, f"{number:08x}" * 5, "bulk@example.com")
    put(installation, "public/firefox", 1, PUBLIC, "Dana@example.com")
    put(installation, "secret/payroll", 1, PRIVATE, "erin@example.com")
    disclosed = to_json(Disclosure(heads=(), phases=(), bookmarks=())).decode()
    put(installation, "public/tools", 1, HIDDEN, "dana@example.com", detail={DISCLOSED: disclosed})
    for number in range(ROWS + 5):
        chain = installation.chains.setdefault(f"public/old{number}", Chain(f"public/old{number}"))
        event = chain.next(detail={"origin": "adopted"}, time=installation.clock.now())
        installation.log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event))])
        installation.state(chain)
    made = settings(tmp_path_factory.mktemp("search"), anonymous=DashboardRole.GUEST)
    with pages(installation, made) as site:
        yield site


def listed(site: Site, query: str, headers: dict[str, str] = AS_READER) -> list[str]:
    """The paths of the pushes that a page lists."""
    text = site.get(f"/pushes?{query}", headers=headers).text
    rows = text.partition("<main")[2].split('data-label="Repository">')[1:]
    return [html.unescape(row.partition("</")[0].rpartition(">")[2]) for row in rows]


def test_each_page_has_a_field_that_finds_pushes(site: Site) -> None:
    for address in ("/", "/repositories", "/pushes", "/roster", "/nowhere"):
        text = site.get(address, headers=AS_READER).text.partition("<main")[0]
        assert '<form role="search" action="/pushes"' in text, address
        assert 'aria-keyshortcuts="/"' in text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=DANA", ["public/tools", "public/firefox"]),
        ("q=payroll", ["secret/payroll"]),
        ("q=release+erin", ["secret/payroll"]),
        ("user=erin", ["secret/payroll"]),
        ("bookmark=118&repository=firef", ["public/firefox"]),
        ("q=efefefef", []),
        ("q=dana&user=erin", []),
        ("q=%22%3E%3Cb%3E", []),
    ],
)
def test_a_push_is_found_by_what_a_reader_knows(site: Site, query: str, found: list[str]) -> None:
    assert listed(site, query) == found


def test_a_changeset_of_one_push_leads_to_its_timeline(site: Site) -> None:
    answer = site.get("/pushes?q=cdcdcdCD", headers=AS_READER)
    repository = Chain("secret/payroll").repository
    assert (answer.status_code, answer.headers["location"]) == (303, f"/repository/{repository}/event/1")
    text = site.get(answer.headers["location"], headers=AS_READER).text
    assert PRIVATE in text
    assert "release/118" in text


def test_what_is_not_remembered_is_searched_by_a_named_command(site: Site) -> None:
    text = site.get("/pushes?q=feedbeef", headers=AS_READER).text
    assert "<code>vcsreplicator trace feedbeef</code>" in text
    assert "remembers" in text


def test_a_search_of_a_guest_finds_nothing_private(site: Site) -> None:
    for query in ("q=cdcdcdcd", "q=erin", "q=dana", "user=dana", "q=payroll", "repository=payroll", "q=efefefef"):
        assert listed(site, query, {}) == [], query
    assert site.get("/pushes?q=abababab").status_code == 303
    assert listed(site, "q=118+firefox", {}) == ["public/firefox"]


def test_a_search_for_many_words_is_refused(site: Site) -> None:
    """Each word is looked for in each event that is remembered, for any guest."""
    for words, status in ((8 * ["a"] + list("bcdefgh"), 200), (list("abcdefghi"), 400)):
        answer = site.get(f"/pushes?q={'+'.join(words)}")
        assert answer.status_code == status
    assert "A search may have at most 8 words." in answer.text


def test_an_adoption_does_not_fill_the_newest_pushes(site: Site) -> None:
    assert listed(site, "")[:3] == ["public/tools", "secret/payroll", "public/firefox"]
    assert "public/old" not in site.get("/", headers=AS_READER).text.partition("Newest pushes")[2]


def test_pushes_are_listed_page_by_page_with_the_question_kept(site: Site) -> None:
    first = site.get("/pushes?user=bulk&q=public", headers=AS_READER).text
    assert 'href="?q=public&amp;user=bulk&amp;page=2"' in html.unescape(first).replace("&", "&amp;")
    assert listed(site, "user=bulk&page=2") == [f"public/many{number}" for number in range(4, -1, -1)]
    assert 'rel="next"' not in site.get("/pushes?user=bulk&page=2", headers=AS_READER).text
