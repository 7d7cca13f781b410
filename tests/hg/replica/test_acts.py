# SPDX-License-Identifier: GPL-2.0-or-later
"""What an event names is checked before the repository is touched; bookmarks at a release are those of its event."""

from typing import Any, cast

import pytest
from mercurial.vfs import vfs

from hgext.vcsreplicator.hg.replica import acts
from hgext.vcsreplicator.hg.serving import watermark
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.event import Type
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench


class Named:
    """What `censor` reads of an event."""

    seq, path = 3, "one"

    def __init__(self, file: str, node: str = "a" * 40) -> None:
        self.detail = {"file": file, "node": node}


@pytest.mark.parametrize(
    "event",
    [Named("../../../hgrc"), Named("a/../b"), Named("/etc/passwd"), Named(""), Named(".hg/hgrc"), Named("a", "-1")],
)
def test_a_censored_file_outside_the_history_is_no_file(event: Named) -> None:
    with pytest.raises(MalformedEvent, match="censored names no file or no node"):
        acts.censor(cast(Any, None), cast(Any, event))


def read_shown_bookmarks(bench: Bench, author: Author) -> bytes:
    return watermark.read_bookmarks(vfs(bytes(bench.home(author) / ".hg")))


@pytest.mark.processes
@pytest.mark.parametrize("later", ["hgrc", "strip"])
def test_a_release_shows_its_events_bookmarks_whatever_came_since(bench: Bench, worker: Any, later: str) -> None:
    author = bench.author("repo")
    first = author.push().after.node
    second = author.push(phase=1).after.node
    author.bookmark("here", first)
    shown = author.seq
    if later == "hgrc":
        author.bookmark("here", second)
        shown = author.seq
        author.event(Type.HGRC, hgrc={"web": {"description": "new"}})
    else:
        third = author.push(phase=1).after.node
        author.bookmark("here", third)
        author.strip(third)
    outcome = worker.perform(author, released=shown)
    assert (outcome.trouble, outcome.serving) == (None, shown)
    expected = second if later == "hgrc" else first
    assert read_shown_bookmarks(bench, author) == f"{expected} here\n".encode()
    worker.perform(author)
    assert read_shown_bookmarks(bench, author) == f"{second} here\n".encode()
