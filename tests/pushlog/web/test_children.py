# SPDX-License-Identifier: GPL-2.0-or-later
"""Children from memory are Mercurial's own, after any change of the history between two pages."""

import json
import random

import pytest
from mercurial import bundle2, context, exchange, repair
from mercurial.node import nullid

from pushlog import versions
from pushlog.web import children
from pushlog.web.children import Children
from tests.pushlog.conftest import Site

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def repo(tmp_path):
    return Site(tmp_path / "random", create=True).repository


def grow(repo, chance, count):
    """Random changesets: children of anything, merges among them."""
    with repo.lock():
        for number in range(count):
            length = len(repo.changelog)
            parents = [repo.changelog.node(chance.randrange(length)) if length and chance.random() < 0.9 else nullid]
            other = repo.changelog.node(chance.randrange(length)) if length and chance.random() < 0.4 else nullid
            parents.append(nullid if other == parents[0] or parents[0] == nullid else other)
            text = b"%d of %d" % (number, chance.randrange(10**9))
            repo.commitctx(context.memctx(repo, parents, text, [], None, user=b"dana", date=b"0 0"))


def agrees(known, repo):
    changelog = repo.unfiltered().changelog
    assert [known.of(changelog, rev) for rev in changelog] == [
        [changelog.rev(child) for child in changelog.children(changelog.node(rev))] for rev in changelog
    ]


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(8))
def test_they_are_mercurials_own_while_the_history_grows_and_is_cut(repo, seed):
    chance, known = random.Random(seed), Children()
    for _ in range(4):
        grow(repo, chance, 8)
        agrees(known, repo)
        repair.strip(repo.ui, repo, [repo.changelog.node(chance.randrange(len(repo.changelog)))], backup=False)
        if len(repo.changelog) and chance.random() < 0.5:
            agrees(known, repo)


def test_a_strip_that_was_added_again_in_another_order_is_noticed(repo, tmp_path):
    with repo.lock():
        for parent in (-1, 0, 0, 1):  # 1 and 2 are children of 0, 3 is one of 1
            parents = [repo.changelog.node(parent), nullid]
            repo.commitctx(context.memctx(repo, parents, b"%d" % len(repo), [], None, user=b"dana", date=b"0 0"))
    known, tip = Children(), repo.changelog.tip()
    agrees(known, repo)
    backup = repair.strip(repo.ui, repo, [repo.changelog.node(1)])
    with repo.vfs(backup, b"rb") as file, repo.lock(), repo.transaction(b"unbundle") as tr:
        bundle2.applybundle(repo, exchange.readbundle(repo.ui, file, backup), tr, b"unbundle", b"")
    assert (len(repo.changelog), repo.changelog.tip()) == (4, tip)
    agrees(known, Site(tmp_path / "random").repository)


@pytest.mark.parametrize("few", [0, 2, children._FEW])
def test_a_page_names_the_children_that_mercurial_would_name(site, monkeypatch, few):
    monkeypatch.setattr(children, "_FEW", few)

    def shown(rev):
        return json.loads(site.get(f"/json-rev/{rev}")[2])["children"]

    plain = site.repository.filtered(b"served").changelog
    if versions.is_older_than((6, 4)):  # its JSON names none
        plain = ()
    for rev in plain:
        assert shown(rev) == [child.hex() for child in plain.children(plain.node(rev))]
