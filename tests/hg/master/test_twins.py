# SPDX-License-Identifier: GPL-2.0-or-later
"""Of two repositories that are made at the same instant, and whose names are one to some file systems, the second is refused."""

import fcntl
import os
import subprocess
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path

import pytest
from mercurial import error
from mercurial import ui as uimod

from hgext.vcsreplicator.hg.master import creation, twins
from testing.builders.master.pushing import HG, Master
from testing.waiting import eventually

pytestmark = pytest.mark.processes


def is_waiting(process: "subprocess.Popen[bytes]", root: Path) -> bool:
    """Whether the process has come to the lock on this root."""
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the process has closed it
            if os.readlink(link) == str(root):
                return True
    return False


def test_of_twins_made_at_the_same_instant_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(tmp_path, f"relay = {tmp_path}/relay.sock").set_up()
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "master.hgrc"))
    second: list[subprocess.Popen[bytes]] = []

    def create(_ui: object, path: bytes) -> None:
        """Make the first while the second has begun, and is over or waits."""
        command = [sys.executable, HG, "init", str(master.root / "PROJ")]
        second.append(subprocess.Popen(command, stderr=subprocess.PIPE))
        eventually(lambda: second[0].poll() is not None or is_waiting(second[0], master.root))
        os.makedirs(os.path.join(path, b".hg"))

    creation.note_creation(create, uimod.ui.load(), os.fsencode(master.root / "proj"))
    _, said = second[0].communicate(timeout=120)
    assert b"PROJ: there is %s/proj, whose name is the same" % os.fsencode(master.root) in said
    assert sorted(os.listdir(master.root)) == [".vcsreplicator", "proj"]


def test_a_process_that_holds_a_root_ends_a_creation_after_a_time(tmp_path: Path) -> None:
    ui = uimod.ui.load()
    ui.setconfig(b"ui", b"timeout", 1, b"test")
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    said = f"^{tmp_path}: timed out waiting for the lock of another process"
    with pytest.raises(error.Abort, match=said), twins.reserved(ui, "one", str(tmp_path / "one"), {str(tmp_path): ""}):
        pytest.fail("passed")
    os.close(holder)


def test_a_name_is_free_again_once_its_repository_is_made(tmp_path: Path) -> None:
    roots = {str(tmp_path): "", str(tmp_path / "missing"): "other"}
    for _ in range(2):
        with twins.reserved(uimod.ui.load(), "one", str(tmp_path / "one"), roots):
            pass


def test_existing_twins_are_found_over_all_roots(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    names = ("a/proj", "a/PROJ", "a/other", "b/Proj", f"a/{composed}", f"a/deep/{composed}", f"a/{decomposed}")
    for name in names:
        (tmp_path / name / ".hg" / "store").mkdir(parents=True)
        (tmp_path / name / ".hg" / "requires").write_text("store\n")
    found = twins.find_all({str(tmp_path / "a"): "", str(tmp_path / "a/deep"): "elsewhere", str(tmp_path / "b"): ""})
    together = sorted(
        sorted(str(tmp_path / name) for name in group)
        for group in (("a/proj", "a/PROJ", "b/Proj"), (f"a/{composed}", f"a/{decomposed}"))
    )
    assert found == together
