# SPDX-License-Identifier: GPL-2.0-or-later
"""Bookmarks and phases that a Mercurial without the extension moves are found, and no others."""

import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.relay import bookmarks
from hgext.vcsreplicator.relay.bookmarks import BookmarkWatch
from testing.builders.master.pushing import Master, new_master

pytestmark = pytest.mark.processes

BLIND = ("--config", "extensions.vcsreplicator=!")


class Watched:
    """A repository `one` with a push and a bookmark, and the watch that has seen it."""

    def __init__(self, master: Master) -> None:
        self.master, self.folder, self._watch = master, str(master.root / "one"), BookmarkWatch()
        master.create("one")
        for text in "ab":
            master.commit("one", text)
        master.push("one")
        self.hg("bookmark", "-r", "0", "known")
        assert not self.is_moved()

    @property
    def store(self) -> str:
        return f"{self.folder}/.hg/store"

    def become_old(self) -> None:
        """Let the store's folder be older than a tick of any clock, and be looked at."""
        os.utime(self.store, (0, os.stat(self.store).st_mtime - 100))
        assert not self.is_moved()

    def hg(self, *arguments: str) -> None:
        self.master.operate("-R", self.folder, *arguments)

    def is_moved(self) -> bool:
        return self._watch.is_moved(self.folder)


@pytest.fixture
def one() -> Iterator[Watched]:
    with new_master("acknowledge = outbox") as master:
        yield Watched(master)


MOVES = {
    "new": ("bookmark", "-r", "0", "mark"),
    "moved": ("bookmark", "-f", "-r", "1", "known"),
    "deleted": ("bookmark", "-d", "known"),
    "divergent": ("bookmark", "-r", "1", "known@other"),
    "draft": ("phase", "--force", "--draft", "1"),
    "secret": ("phase", "--force", "--secret", "1"),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_what_moves_with_the_extension_is_announced(one: Watched, move: tuple[str, ...]) -> None:
    one.hg(*move)
    assert not one.is_moved()


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_what_moves_without_the_extension_is_found_until_it_is_announced(one: Watched, move: tuple[str, ...]) -> None:
    one.hg(*BLIND, *move)
    assert one.is_moved()
    one.hg("bookmark", "-r", "1", "another")
    assert one.is_moved()
    one.hg("replicatesync")
    assert not one.is_moved()


def test_changesets_archived_outside_are_found_until_it_is_announced(one: Watched) -> None:
    formats = Path(one.folder, ".hg/store/requires")
    formats.write_text(formats.read_text() + "exp-archived-phase\n")
    one.hg(*BLIND, "phase", "--force", "--draft", "0")
    one.hg("replicatesync")
    assert not one.is_moved()
    one.hg(*BLIND, "--config", "extensions.strip=", "strip", "--soft", "1")
    assert one.is_moved()
    one.hg("replicatesync")
    assert not one.is_moved()


def test_phases_moved_outside_stay_a_trouble_after_a_push_that_moves_phases(one: Watched) -> None:
    one.hg(*BLIND, "phase", "--force", "--draft", "1")
    assert one.is_moved()
    one.hg("phase", "--force", "--secret", "1")
    assert one.is_moved()


def test_a_bookmark_moved_outside_is_found_between_two_pushes_of_one_round(one: Watched) -> None:
    one.hg("bookmark", "-f", "-r", "1", "known")
    one.hg(*BLIND, "bookmark", "-r", "0", "mark")
    one.hg("bookmark", "-r", "0", "another")
    assert one.is_moved()


def test_what_is_moved_back_is_no_trouble_any_more(one: Watched) -> None:
    one.hg(*BLIND, "bookmark", "-f", "-r", "1", "known")
    assert one.is_moved()
    one.hg(*BLIND, "bookmark", "-f", "-r", "0", "known")
    assert not one.is_moved()


def test_no_act_of_a_master_is_taken_for_a_move_from_outside(one: Watched) -> None:
    master = one.master

    def push() -> None:
        master.commit("one", "c")
        master.push("one")

    def obsolete() -> None:
        one.hg("phase", "--force", "--draft", "2")
        one.hg("debugobsolete", master.operate("-R", one.folder, "log", "-r", "2", "-T", "{node}"))

    acts: list[Callable[[], object]] = [
        push,
        lambda: one.hg("phase", "--force", "--secret", "1"),
        lambda: one.hg("phase", "--public", "tip"),
        lambda: one.hg("bookmark", "-r", "tip", "gone"),
        lambda: one.hg("strip", "--no-backup", "tip"),
        lambda: master.push("one"),
        obsolete,
        lambda: one.hg("replicatesync"),
        lambda: one.hg("verify", "-q"),
        lambda: one.hg("debugupdatecaches"),
    ]
    for act in acts:
        act()
        assert not one.is_moved()


def test_while_a_process_works_there_what_is_known_stands(one: Watched) -> None:
    marks, lock = Path(one.folder, ".hg/bookmarks"), Path(one.folder, ".hg/store/lock")
    lock.symlink_to("host:1")
    marks.write_text("")
    assert not one.is_moved()
    lock.unlink()
    assert one.is_moved()
    lock.symlink_to("host:1")
    assert one.is_moved()


def test_nothing_is_read_while_no_process_took_a_lock(one: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    one.become_old()
    monkeypatch.setattr("hgext.vcsreplicator.relay.bookmarks.outbox_of", lambda _folder: pytest.fail("read"))
    assert not one.is_moved()


def test_a_move_in_the_same_tick_as_the_look_before_it_is_found(one: Watched) -> None:
    one.hg("bookmark", "-r", "0", "another")
    tick = os.stat(one.store).st_mtime_ns
    assert not one.is_moved()
    one.hg(*BLIND, *MOVES["new"])
    os.utime(one.store, ns=(tick, tick))
    assert one.is_moved()


def test_the_watch_remembers_many_bookmarks_in_little_memory(one: Watched) -> None:
    node = one.master.operate("-R", one.folder, "log", "-r", "0", "-T", "{node}")
    marks = Path(one.folder, ".hg/bookmarks")
    marks.write_text("".join(f"{node} release-{number:010}\n" for number in range(10_000)))
    tracemalloc.start()
    try:
        watch = BookmarkWatch()
        assert not watch.is_moved(one.folder)
        assert tracemalloc.get_traced_memory()[0] < 10_000 * 40
    finally:
        tracemalloc.stop()
    one.hg("bookmark", "-d", "release-0000000007")
    assert not watch.is_moved(one.folder)
    one.hg(*BLIND, "bookmark", "-d", "release-0000000008")
    assert watch.is_moved(one.folder)


def test_a_round_reads_some_repositories_and_the_next_one_others(one: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookmarks, "AT_ONCE", 0)
    watch = BookmarkWatch()
    watch.begin_round({one.folder})
    assert not watch.is_moved(one.folder)
    one.hg(*BLIND, *MOVES["new"])
    monkeypatch.setattr(bookmarks, "AT_ONCE", 1)
    watch.begin_round({one.folder})
    assert not watch.is_moved(one.folder)
    one.hg(*BLIND, *MOVES["moved"])
    assert not watch.is_moved(one.folder)
    watch.begin_round({one.folder})
    assert watch.is_moved(one.folder)


def test_what_was_moved_before_the_first_look_is_not_found(one: Watched) -> None:
    one.hg(*BLIND, "bookmark", "-r", "0", "mark")
    assert not BookmarkWatch().is_moved(one.folder)
