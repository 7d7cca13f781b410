# SPDX-License-Identifier: GPL-2.0-or-later
"""Which repositories count as removed, and which folders as not mounted."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

from hgext.vcsreplicator.relay.gone.finding import find_gone, find_unmounted


class Seen(NamedTuple):
    """As much of a state as matters here."""

    path: str
    deleted: bool = False
    source: str | None = "hg://master"


gone = functools.partial(find_gone, source="hg://master")


def test_a_repository_removed_by_hand_is_gone_since_the_first_round(tmp_path: Path) -> None:
    states: Any = {
        "1" * 32: Seen("p/one"),
        "2" * 32: Seen("p/two"),
        "3" * 32: Seen("p/x", deleted=True),
        "4" * 32: Seen("q/one"),
    }
    roots = {str(tmp_path): "p"}
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert gone(states, roots, folders, {}, 10.0) == {}
    assert gone(states, roots, folders[:1], {}, 20.0) == {"2" * 32: 20.0}
    assert gone(states, roots, folders[:1], {"2" * 32: 20.0}, 30.0) == {"2" * 32: 20.0}
    (tmp_path / ".vcsreplicator" / "deleted" / ("2" * 32)).mkdir(parents=True)
    assert gone(states, roots, folders[:1], {"2" * 32: 20.0}, 40.0) == {}


def test_a_deleted_repository_is_not_gone_while_the_disk_hides_it(tmp_path: Path) -> None:
    states: Any = {"1" * 32: Seen("one")}
    (deleted := tmp_path / ".vcsreplicator" / "deleted").mkdir(parents=True)
    (deleted / ("1" * 32)).symlink_to("1" * 32)  # who looks gets ELOOP
    assert gone(states, {str(tmp_path): ""}, [], {}, 10.0) == {}


def test_what_another_master_sent_is_not_gone_without_a_prefix(tmp_path: Path) -> None:
    states: Any = {
        "1" * 32: Seen("one"),
        "2" * 32: Seen("two", source="hg://other"),
        "3" * 32: Seen("old", source=None),  # written by an aggregator that did not know
    }
    assert gone(states, {str(tmp_path): ""}, [], {}, 10.0) == {"1" * 32: 10.0, "3" * 32: 10.0}


def make_folders(root: Path, *names: str) -> list[str]:
    """Make repositories' folders; they are as a round knows them."""
    for name in names:
        (root / name).mkdir(parents=True)
    return [str(root / name) for name in names]


def test_a_root_without_its_known_repositories_may_not_be_mounted(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    roots = {str(one): "p", str(two): "q"}
    states: Any = {"1" * 32: Seen("p/a"), "2" * 32: Seen("p/b/c"), "3" * 32: Seen("q/a"), "4" * 32: Seen("q/b")}
    known = make_folders(two, "a")
    one.mkdir()
    (one / "README").write_text("this file system is not mounted")
    names = gone(states, roots, known, {}, 10.0)
    assert set(names) == {"1" * 32, "2" * 32, "4" * 32}
    assert find_unmounted(states, names, roots, known) == {str(one): 2}
    known += make_folders(one, "a")
    assert find_unmounted(states, gone(states, roots, known, {}, 10.0), roots, known) == {}


def test_a_root_that_lost_its_only_repository_may_not_be_mounted_either(tmp_path: Path) -> None:
    states: Any = {"1" * 32: Seen("a")}
    assert find_unmounted(states, ["1" * 32], {str(tmp_path): ""}, []) == {str(tmp_path): 1}


def test_a_repository_below_two_roots_counts_once(tmp_path: Path) -> None:
    states: Any = {"1" * 32: Seen("team/sub/a"), "2" * 32: Seen("team/b")}
    roots, known = {str(tmp_path): "", str(tmp_path / "team"): "team"}, make_folders(tmp_path, "team/b", "other")
    (tmp_path / "team" / "sub").mkdir()
    assert find_unmounted(states, ["1" * 32], roots, known) == {}, "the last one of a folder"


def test_an_empty_folder_that_had_repositories_may_not_be_mounted(tmp_path: Path) -> None:
    states: Any = {"1" * 32: Seen("team/a"), "2" * 32: Seen("team/sub/b"), "3" * 32: Seen("other")}
    roots, known = {str(tmp_path): ""}, make_folders(tmp_path, "other")
    names = ["1" * 32, "2" * 32]
    assert find_unmounted(states, names, roots, known) == {}, "the folder is gone, too"
    (tmp_path / "team").mkdir()
    assert find_unmounted(states, names, roots, known) == {str(tmp_path / "team"): 2}
    assert find_unmounted(states, names[:1], roots, known) == {}, "the last one of a team"
    (tmp_path / "team" / "sub").mkdir()
    assert find_unmounted(states, names, roots, known) == {}, "no mount point has a folder"
