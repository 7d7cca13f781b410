# SPDX-License-Identifier: GPL-2.0-or-later
"""Bundles from the log, or from a master that turned hostile, which would do more than add changesets."""

import io
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from hgext.vcsreplicator.hg.replica.apply import unbundle
from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, prepare
from hgext.vcsreplicator.words.errors import MalformedEvent, UnknownEvent
from testing.builders.notifier.hostile import bundle, interrupted, part

pytestmark = pytest.mark.processes


class Counted(BaseHTTPRequestHandler):
    """Counts who asks here."""

    server: Any

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[Any]:
    """Another server, which no mirror may ask."""
    with HTTPServer(("127.0.0.1", 0), Counted) as running:
        state: Any = running
        state.asked = 0
        thread = Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield state
        running.shutdown()
        thread.join()


def apply(folder: Path, content: bytes) -> None:
    repository = OpenRepositories(prepare(), 1).create(str(folder))
    with repository.lock(), repository.transaction(b"test") as tr:
        unbundle(repository, tr, io.BytesIO(content), 100_000)


def fetching(server: Any) -> bytes:
    """Return a part that has the receiver fetch changesets from a server."""
    url = f"http://127.0.0.1:{server.server_address[1]}/x".encode()
    return part(b"remote-changegroup", {b"url": url, b"size": b"1"})


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("is_within", [False, True], ids=["alone", "within another part"])
def test_mirror_fetches_no_address_that_a_bundle_names(tmp_path: Path, elsewhere: Any, is_within: bool) -> None:
    bad = fetching(elsewhere)
    content = bundle(interrupted(part(b"changegroup", {b"version": b"02"}), bad) if is_within else bad)
    with pytest.raises((MalformedEvent, UnknownEvent), match="remote-changegroup"):
        apply(tmp_path / "repository", content)
    assert elsewhere.asked == 0


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("name", ["stream2", "stream3-exp", "pushkey", "bookmarks", "phase-heads", "hgtagsfnodes"])
def test_mirror_takes_changesets_and_markers_alone(tmp_path: Path, name: str) -> None:
    with pytest.raises(MalformedEvent, match=f"part '{name}' is not one of an event"):
        apply(tmp_path / "repository", bundle(part(name.encode(), {b"requirements": b""})))
    assert not (tmp_path / "repository/.hg/store/journal").exists()
