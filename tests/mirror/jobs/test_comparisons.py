# SPDX-License-Identifier: GPL-2.0-or-later
"""What a restarted comparison knows of its earlier ones."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hgext.vcsreplicator.mirror.jobs import comparisons
from hgext.vcsreplicator.mirror.jobs.comparisons import FILE, Comparisons
from hgext.vcsreplicator.words.records import RepositoryState
from testing.builders.aggregator.states import some_state


@contextmanager
def opened(folder: Path, now: float) -> Iterator[Comparisons]:
    with closing(Comparisons(folder / FILE, now)) as known:
        yield known


def states(*names: str) -> list[RepositoryState]:
    return [some_state(repository=name, path=name) for name in names]


def chosen(known: Comparisons, *names: str, now: float = 0.0) -> list[str]:
    return [state.repository for state in known.choose(states(*names), now)]


def test_the_longest_untried_is_first_also_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, 100.0) as known:
        for now, name in ((101.0, "c"), (102.0, "a"), (103.0, "b")):
            known.note(name, now)
        known.begin_round(200.0)
    with opened(tmp_path, 300.0) as known:
        assert chosen(known, "a", "b", "c", "new") == ["new", "c", "a", "b"]
        known.note("c", 301.0)
    with opened(tmp_path, 302.0) as known:
        assert chosen(known, "a", "b", "c", "new") == ["new", "a", "b"]


def test_all_were_verified_since_the_oldest_comparison_that_succeeded(tmp_path: Path) -> None:
    with opened(tmp_path, 100.0) as known:
        chosen(known, "a", "b")
        known.note("a", 101.0)
        assert known.measure().oldest is None
        known.note("b", 102.0)
        assert known.measure().oldest == 101.0
        known.begin_round(200.0)
        known.note("a", 201.0, failure="a: unreachable")
        assert (known.measure().oldest, known.measure().done, known.measure().failing) == (101.0, 1, 1)


def test_a_repository_that_differed_is_named_until_it_is_equal(tmp_path: Path) -> None:
    with opened(tmp_path, 100.0) as known:
        known.note("a", 101.0, trouble="a differs")
        known.note("a", 102.0, failure="a: unreachable")
        known.note("a", 103.0, trouble="a still differs")
        assert [(each.text, each.since) for each in known.list_troubles(104.0)] == [("a still differs", 101.0)]
        known.note("a", 105.0)
        assert list(known.list_troubles(106.0)) == []


def test_what_could_not_be_compared_twice_is_a_lasting_trouble(tmp_path: Path) -> None:
    with opened(tmp_path, 100.0) as known:
        known.note("a", 101.0, failure="a (unreachable 404)")
        known.note("b", 102.0, failure="b (unreachable 404)")
        [once] = known.list_troubles(110.0)
        assert (once.text, once.is_permanent) == ("a (unreachable 404) and 1 more: not compared with the master", False)
        known.note("a", 120.0, failure="a (unreachable 404)")
        [twice] = known.list_troubles(130.0)
        assert (twice.is_permanent, twice.is_urgent) == (True, False)


def test_what_was_in_trouble_an_hour_ago_is_first_in_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparisons, "BATCH", 2)
    with opened(tmp_path, 100.0) as known:
        assert (chosen(known, *"abcde"), known.has_more) == (["a", "b"], True)
        known.note("a", 101.0, trouble="a differs")
        known.note("b", 102.0)
        assert chosen(known, *"abcde", now=200.0) == ["c", "d"]
        known.note("c", 103.0, failure="c: unreachable")
        known.note("d", 104.0)
        assert (chosen(known, *"abcde", now=3701.0), known.has_more) == (["a", "e"], False)
        known.note("a", 3702.0)
        known.note("e", 3703.0)
        assert chosen(known, *"abcde", now=3704.0) == ["c"]


def test_a_repository_that_is_not_carried_any_more_is_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path, 100.0) as known:
        known.note("a", 101.0, trouble="a differs")
        chosen(known, "b")
    with opened(tmp_path, 102.0) as known:
        assert known.measure().differing == 0


def test_times_that_are_still_to_come_do_not_count(tmp_path: Path) -> None:
    with opened(tmp_path, 1000.0) as known:
        known.note("a", 1001.0)
    with opened(tmp_path, 10.0) as known:
        assert (chosen(known, "a"), known.began) == (["a"], 10.0)


@pytest.mark.parametrize("what", ["damaged", "a folder", "no folder"])
def test_comparing_begins_anew_without_a_usable_database(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "state"
    if what != "no folder":
        folder.mkdir()
    if what == "damaged":
        (folder / FILE).write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    if what == "a folder":
        (folder / FILE).mkdir()
    with opened(folder, 100.0) as known:
        assert chosen(known, "a") == ["a"]
        known.note("a", 101.0)
        assert chosen(known, "a") == []
    with opened(folder, 102.0) as known:
        assert chosen(known, "a") == ([] if what == "damaged" else ["a"])
