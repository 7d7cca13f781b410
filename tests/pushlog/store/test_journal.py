# SPDX-License-Identifier: GPL-2.0-or-later
"""An abort rolls back in the same process, also while the disk has no room for what its journal still has in memory."""

import os
from pathlib import Path

import pytest
from mercurial import ui as ui_module
from mercurial.localrepo import localrepository

from pushlog import store, versions


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> localrepository:
    monkeypatch.setenv("HGRCPATH", "")
    versions.initialize()
    store.complete_journals()
    ui = ui_module.ui.load()
    ui.setconfig(b"ui", b"quiet", True)
    made = versions.factory.repository(ui, os.fsencode(tmp_path / "repo"), create=True)
    made.svfs.write(b"obsstore", b"before\n")
    return made


def fill_disk(descriptor: int) -> None:
    """Let each write to this descriptor fail as on a full disk."""
    full = os.open("/dev/full", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(full, descriptor)
    os.close(full)


def test_an_abort_needs_no_room_for_the_list_of_backups(repo: localrepository) -> None:
    with repo.lock():
        tr = repo.transaction(b"push")
        tr.add(b"obsstore", 7)
        repo.svfs.append(b"obsstore", b"and more\n")
        fill_disk(tr._backupsfile.fileno())
        tr.release()
    assert repo.svfs.read(b"obsstore") == b"before\n"
    assert not repo.svfs.exists(b"journal")


def test_an_abort_cuts_no_file_by_a_line_that_had_no_room(repo: localrepository) -> None:
    repo.svfs.write(b"bookmarks.log", b"ten bytes\n")
    with repo.lock():
        tr = repo.transaction(b"push")
        tr.add(b"obsstore", 7)
        repo.svfs.append(b"obsstore", b"and more\n")
        # The file system had room for these bytes of a line.
        repo.svfs.append(b"journal", b"bookmarks.log\x001")
        fill_disk(tr._file.fileno())
        with pytest.raises(OSError, match="No space left"):
            tr.add(b"bookmarks.log", 10)
        tr.release()
    assert repo.svfs.read(b"obsstore") == b"before\n"
    assert repo.svfs.read(b"bookmarks.log") == b"ten bytes\n"
    assert not repo.svfs.exists(b"journal")


def test_an_abort_on_a_full_disk_follows_no_link_in_place_of_its_journal(repo: localrepository, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with repo.lock():
        tr = repo.transaction(b"push")
        fill_disk(tr._file.fileno())
        with pytest.raises(OSError, match="No space left"):
            tr.add(b"obsstore", 7)
        os.replace(repo.svfs.join(b"journal"), tmp_path / "journal")
        os.symlink(tmp_path / "mine", repo.svfs.join(b"journal"))
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            tr.release()
        tr._backupsfile.close()
        tr._journal = None  # else it tries again when it is collected
    assert (tmp_path / "mine").read_text() == "mine"
