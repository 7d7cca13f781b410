# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror's views, asked directly: what is not released is in no view made from one of them, and what is hidden is not found."""

from pathlib import Path
from typing import Any

import pytest
from mercurial import obsolete, scmutil

from hgext.vcsreplicator.hg.pages import unknown
from hgext.vcsreplicator.hg.serving import guards, views, watermark
from testing.builders.mirror.author import Author

pytestmark = pytest.mark.processes
# Released changesets: the root and its first children.
RELEASED = 9


@pytest.fixture
def author(tmp_path: Path) -> Author:
    """A root with 48 draft children."""
    author = Author(tmp_path, "repo")
    root = author.push().after.node
    for _ in range(48):
        author.push(parent=root, phase=1)
    author.repo.ui.setconfig(b"vcsreplicator", b"role", b"mirror")
    tip = author.repo.changelog.node(RELEASED - 1).hex()
    watermark.write_watermark(author.repo, watermark.Watermark(seq=RELEASED, length=RELEASED, tip=tip, push_id=None))
    return author


def limited(repo: Any) -> Any:
    """The view of what is released."""
    views.register_views()
    repo.invalidatevolatilesets()
    views.hold_release(repo)
    return repo.filtered(views.VIEW)


def test_another_view_made_from_a_limited_one_is_limited(author: Author) -> None:
    view = limited(author.repo)
    assert list(view.changelog.revs()) == list(range(RELEASED))
    assert list(view.filtered(b"visible").changelog.revs()) == list(range(RELEASED))


def test_a_hidden_changeset_is_not_found_by_digits_that_others_share(author: Author) -> None:
    repo = author.repo
    nodes = [repo.changelog.node(rev).hex().encode() for rev in repo.changelog]
    released, behind = nodes[1:RELEASED], nodes[RELEASED:]
    digit, node = next(
        (node[:1], node)
        for node in released
        if [other[:1] for other in nodes[:RELEASED]].count(node[:1]) == 1
        if any(other[:1] == node[:1] for other in behind)
    )
    resolve = scmutil.resolvehexnodeidprefix
    assert unknown.resolve_prefix(resolve, limited(repo), digit) == bytes.fromhex(node.decode())
    with repo.wlock(), repo.lock(), repo.transaction(b"hide"):
        obsolete.createmarkers(repo, [(repo[node], ())])
    assert unknown.resolve_prefix(resolve, limited(repo), digit) is None


def test_a_repository_object_keeps_the_bookmarks_of_its_release(author: Author) -> None:
    repo = author.repo
    nodes = [repo.changelog.node(rev).hex() for rev in repo.changelog]
    (Path(author.folder) / ".hg" / "bookmarks").write_text(f"{nodes[1]} moving\n")
    watermark.write_watermark(
        repo, watermark.Watermark(seq=RELEASED, length=RELEASED, tip=nodes[RELEASED - 1], push_id=None)
    )
    views.hold_release(repo)
    (Path(author.folder) / ".hg" / "bookmarks").write_text(f"{nodes[RELEASED]} moving\n")
    watermark.write_watermark(
        repo, watermark.Watermark(seq=RELEASED + 1, length=RELEASED + 1, tip=nodes[RELEASED], push_id=None)
    )
    guards.serve(repo)
    assert (
        guards.open_bookmarks(lambda repo: pytest.fail("not its own"), repo).read() == f"{nodes[1]} moving\n".encode()
    )
