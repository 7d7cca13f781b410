# SPDX-License-Identifier: GPL-2.0-or-later
"""Links that an account put in a repository, to a file of the user who opens the repository next."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mercurial import error, pycompat, streamclone, util, vfs
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from pushlog import versions
from pushlog.store import regular

MINE = "mine\n"


@pytest.fixture
def control(tmp_path: Path) -> Path:
    regular.install()
    for folder in ("home", "repository/.hg/cache"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "home/names").write_text(MINE)
    (tmp_path / "repository/.hg/cache/file").symlink_to(tmp_path / "home/names")
    (tmp_path / "repository/.hg/folder").symlink_to(tmp_path / "home")
    return tmp_path / "repository/.hg"


@pytest.mark.parametrize("mode", [b"rb", b"ab", b"a+b", b"r+b"])
@pytest.mark.parametrize("name", [b"cache/file", b"folder/names", b"folder/new"])
def test_mercurial_opens_nothing_in_a_repository_by_a_link(control: Path, name: bytes, mode: bytes) -> None:
    with pytest.raises(OSError, match="A link or a file is in the way") as refusal:
        # Mercurial's own look at the folders is before it opens the file.
        vfs.vfs(os.fsencode(control))(name, mode, auditpath=False)
    assert refusal.value.filename == str(control / os.fsdecode(name))
    assert (control.parents[1] / "home/names").read_text() == MINE
    assert not (control.parents[1] / "home/new").exists()


@pytest.fixture
def _links_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link comes whenever Mercurial has removed a file to make a new one of its name."""
    monkeypatch.setattr("mercurial.util.unlink", lambda _: None)


@pytest.mark.usefixtures("_links_come")
def test_mercurial_writes_through_no_link_that_comes_once_it_looked(control: Path) -> None:
    with pytest.raises(OSError, match="A link or a file is in the way"):
        vfs.vfs(os.fsencode(control))(b"cache/file", b"wb")
    assert (control.parents[1] / "home/names").read_text() == MINE


def test_mercurial_replaces_a_link_in_a_repository_by_a_file(control: Path) -> None:
    vfs.vfs(os.fsencode(control)).write(b"cache/file", b"new\n")
    assert not (control / "cache/file").is_symlink()
    assert (control.parents[1] / "home/names").read_text() == MINE


def test_links_outside_of_repositories_are_followed(control: Path) -> None:
    (control.parent / "link").symlink_to(control.parents[1] / "home/names")
    assert vfs.vfs(os.fsencode(control.parent)).read(b"link") == MINE.encode()


def test_a_missing_file_of_a_repository_is_missing(control: Path) -> None:
    folder = vfs.vfs(os.fsencode(control))
    assert folder.tryread(b"none/at/all") == b""
    folder.write(b"store/data/new", b"new\n")
    assert folder.tryread(b"store/data/new") == b"new\n"


@pytest.mark.parametrize("name", ["store/data/file", "store/none", "none/at/all", "cache/file", "folder/names"])
def test_no_folder_stays_open_however_an_opening_ends(control: Path, name: str) -> None:
    (control / "store/data").mkdir(parents=True)
    (control / "store/data/file").touch()
    before = os.listdir("/proc/self/fd")
    for act in (lambda path: util.posixfile(path, b"rb").close(), lambda path: os.chmod(path, 0o644)):
        with contextlib.suppress(OSError):
            act(os.fsencode(control / name))
    assert os.listdir("/proc/self/fd") == before


def test_a_stream_clone_has_no_file_that_a_link_names(control: Path) -> None:
    for name in ("cache/file", "folder/names"):
        with pytest.raises(OSError, match="A link or a file is in the way"):
            vars(streamclone)["open"](os.fsencode(control / name), "rb")


@pytest.mark.usefixtures("_links_come")
@pytest.mark.parametrize("hardlink", [False, True])
def test_mercurial_copies_nothing_through_a_link_that_comes_meanwhile(control: Path, hardlink: bool) -> None:
    (control / "bookmarks").write_text("of an account\n")
    with pytest.raises(OSError, match="A link or a file is in the way"):
        util.copyfile(os.fsencode(control / "bookmarks"), os.fsencode(control / "cache/file"), hardlink=hardlink)
    assert (control.parents[1] / "home/names").read_text() == MINE
    with pytest.raises(OSError, match="A link or a file is in the way"):
        vars(util)["shutil"].copyfile(os.fsencode(control / "cache/file"), os.fsencode(control / "copy"))
    util.copyfile(os.fsencode(control / "bookmarks"), os.fsencode(control.parent / "outside"), hardlink=hardlink)
    assert (control.parent / "outside").read_text() == "of an account\n"


@pytest.mark.parametrize("make", ["a file", "a folder", "a temporary file"])
def test_a_link_that_comes_once_mercurial_made_something_changes_no_mode(
    control: Path, make: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is made, and then gets its mode: here the link comes in between."""
    mine = control.parents[1] / "home" / ("" if make == "a folder" else "names")
    before = mine.stat().st_mode
    place = vfs.vfs(os.fsencode(control))
    place.createmode = 0o2777

    def exchange(made: bytes) -> None:
        os.rename(made, made + b".made")
        os.symlink(mine, made)

    def make_it() -> None:
        if make == "a file":
            wrap_once(
                monkeypatch, util, "posixfile", lambda file: (file.close(), exchange(os.fsencode(control / "new")))
            )
            place(b"new", b"wb").close()
        elif make == "a folder":
            wrap_once(monkeypatch, util, "makedir", lambda _: exchange(os.fsencode(control / "new")))
            place.makedirs(b"new", 0o2777)
        else:
            wrap_once(monkeypatch, pycompat, "mkstemp", lambda found: exchange(found[1]))
            place(b"new", b"w", atomictemp=True).close()

    with pytest.raises(OSError, match="A link or a file is in the way"):
        make_it()
    assert mine.stat().st_mode == before


def wrap_once(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, then: Callable[[Any], None]) -> None:
    """Have `then` called with what the function returned."""
    orig = getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        found = orig(*arguments, **named)
        then(found)
        return found

    monkeypatch.setattr(module, name, call)


def test_modes_are_given_in_a_repository_and_elsewhere(control: Path) -> None:
    for path in (control / "store", control.parent / "file"):
        path.touch()
        os.chmod(os.fsencode(path), 0o640)
        assert path.stat().st_mode & 0o777 == 0o640
        os.chmod(path, 0o600)
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["shared", "relshared"])
def test_a_share_has_no_store_where_mercurial_follows_links(control: Path, kind: str) -> None:
    """The folder has all of a `.hg` but its name."""
    named = control.parents[1] / "forged"
    (named / "store").mkdir(parents=True)
    (named / "requires").touch()
    (control / "requires").write_text(f"store\n{kind}\n")
    (control / "sharedpath").write_text("../../forged" if kind == "relshared" else str(named))
    with pytest.raises(error.RepoError, match=f"sharedpath: expected the .hg of a repository, got {named}"):
        open_repository(control)
    named.rename(control.parent / "source")
    (control.parents[1] / "forged").mkdir()
    (control.parent / "source").rename(named / ".hg")
    (control / "sharedpath").write_text(("../../forged" if kind == "relshared" else str(named)) + "/.hg")
    assert open_repository(control).sharedpath == os.fsencode(named / ".hg")


def open_repository(control: Path) -> localrepository:
    found: localrepository = versions.factory.repository(Ui.load(), os.fsencode(control.parent))
    return found
