# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror that cannot work where its settings say ends at its start."""

import errno
import os
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.mirror.notes import Notes
from hgext.vcsreplicator.mirror.service import lock_folder
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.passing import is_passing
from testing.faults.folding import ignore_case
from testing.faults.permission import under
from testing.faults.system import System


def test_no_other_user_may_read_the_state_of_a_mirror(tmp_path: Path) -> None:
    settings = MirrorSettings(name="alpha", root=str(tmp_path / "root"))
    with under(0), lock_folder(settings), closing(Notes(Path(settings.folder) / "mirror.db")):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"root": 0o777, "~vcsreplicator": 0o750, "lock": 0o640, "mirror.db": 0o640}


@pytest.mark.parametrize("state", [None, "state"])
def test_a_mirror_that_cannot_move_from_state_to_root_is_refused(
    tmp_path: Path, system: System, state: str | None
) -> None:
    root = tmp_path / "root"
    settings = MirrorSettings(name="alpha", root=str(root), state=state and str(tmp_path / state))
    with lock_folder(settings):
        assert [name for name in os.listdir(root) if name != "~vcsreplicator"] == []
    system.refuse(errno.EXDEV, "os.rename")
    with (
        pytest.raises(BadConfig, match=r"mirror\.alpha\.state: .* another file system .* expected"),
        lock_folder(settings),
    ):
        pass
    assert os.listdir(settings.folder) == ["lock"]


def test_a_mirror_on_a_disk_that_ignores_case_is_refused(tmp_path: Path) -> None:
    root = ignore_case(tmp_path / "root")
    refused = refusal(MirrorSettings(name="alpha", root=str(root)))
    assert refused.startswith(f"mirror.alpha.root: {root} is on a disk that does not distinguish names")


def refusal(settings: MirrorSettings) -> str:
    """Why a mirror with these settings does not start, for a user without a name."""
    with pytest.raises(BadConfig) as refused, lock_folder(settings):
        pass
    return str(refused.value)


@pytest.mark.parametrize("state", [None, "state"])
def test_a_mirror_says_which_folder_it_cannot_use_and_what_it_expects(
    tmp_path: Path, system: System, state: str | None
) -> None:
    system.become(4_000_000)
    expected = "expected a folder that user 4000000 may list and write to, or may make"
    (tmp_path / "file").write_text("")
    settings = MirrorSettings(name="alpha", root=f"{tmp_path}/root", state=state and f"{tmp_path}/{state}")
    for root in ("file", "file/root"):
        text = f"mirror.alpha.root: {tmp_path}/{root} cannot be used: Not a directory; {expected}"
        assert refusal(replace(settings, root=f"{tmp_path}/{root}")) == text
    key, folder, inside = (
        ("root", settings.root, f"{settings.folder}: ") if state is None else ("state", settings.folder, "")
    )
    lock = f"{settings.folder}/lock"
    for refused, text in (
        (settings.root, f"root: {settings.root} cannot be used: "),
        (settings.folder, f"{key}: {folder} cannot be used: {inside}"),
        (lock, f"{key}: {folder} cannot be used: {lock}: "),
    ):
        with system.refuse(errno.EACCES, "os.mkdir", "os.open", "os.scandir", at=refused):
            assert refusal(settings) == f"mirror.alpha.{text}Permission denied; {expected}"


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN])
@pytest.mark.parametrize("key", ["root", "state"])
def test_a_mirror_on_a_mount_that_hangs_names_its_error(tmp_path: Path, system: System, key: str, number: int) -> None:
    settings = MirrorSettings(name="alpha", root=str(tmp_path / "root"), state=str(tmp_path / "state"))
    with lock_folder(settings):
        folder = {"root": settings.root, "state": settings.folder}[key]
    system.refuse(number, "os.stat", "os.open", "os.scandir", at=f"{folder}*")  # not mkdir: the mount point is there
    with pytest.raises(BadConfig, match=f"{key}: {folder} cannot be used: {os.strerror(number)};") as refused:
        lock_folder(settings).__enter__()
    assert is_passing(refused.value)


@pytest.mark.parametrize(("number", "passes"), [(errno.ENOLCK, False), (errno.EIO, True), (errno.ESTALE, True)])
@pytest.mark.parametrize("state", [None, "state"])
def test_a_mirror_that_cannot_lock_its_folder_names_the_error(
    tmp_path: Path, system: System, state: str | None, number: int, passes: bool
) -> None:
    settings = MirrorSettings(name="alpha", root=f"{tmp_path}/root", state=state and f"{tmp_path}/{state}")
    key, folder = ("root", settings.root) if state is None else ("state", settings.folder)
    system.refuse(number, "fcntl.flock")
    with pytest.raises(BadConfig, match=f"{key}: {folder} cannot be used: {os.strerror(number)};") as refused:
        lock_folder(settings).__enter__()
    assert is_passing(refused.value) is passes


def test_a_second_mirror_in_one_folder_is_refused(tmp_path: Path) -> None:
    settings = MirrorSettings(name="alpha", root=str(tmp_path))
    with lock_folder(settings):
        assert refusal(settings) == (
            f"mirror.alpha.root: another mirror, or this one's service or bootstrap, works in {tmp_path}; stop it first"
        )


def test_a_mirror_whose_disk_is_full_at_its_start_waits_for_room(tmp_path: Path, system: System) -> None:
    system.refuse(errno.ENOSPC, "os.rename")
    with lock_folder(MirrorSettings(name="alpha", root=str(tmp_path))):
        pass
