# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's look for repositories."""

from pathlib import Path

from hgext.vcsreplicator.relay.scan import find_repositories


def make(folder: Path) -> Path:
    """What a look sees of a repository that Mercurial finished making."""
    (folder / ".hg" / "store").mkdir(parents=True)
    (folder / ".hg" / "requires").write_text("share-safe\n")
    (folder / ".hg" / "store" / "requires").write_text("revlogv1\n")
    return folder


def test_repositories_in_dotted_folders_and_inside_others_are_found(tmp_path: Path) -> None:
    made = {make(tmp_path / name) for name in ("a", "a/b", "a/b/deep/c", ".secret/repo", "team/.d")}
    make(tmp_path / ".vcsreplicator" / "deleted" / "e")
    make(tmp_path / "a" / ".hg" / "strip-backup" / "f")
    assert sorted(find_repositories(str(tmp_path))) == sorted(map(str, made))
