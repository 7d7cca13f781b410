# SPDX-License-Identifier: GPL-2.0-or-later
"""After a power cut a mirror's clients are refused until they see again what the mirror had acknowledged as served."""

import json
import os
import socket
import time
from pathlib import Path

import pytest

from hgext.vcsreplicator.mirror.supervision import boot
from hgext.vcsreplicator.mirror.supervision.boot import Lacking
from testing.faults.system import System


@pytest.fixture
def root(tmp_path: Path, boot_id: Path) -> Path:
    """A root whose service has compared everything; it is in boot "first"."""
    boot_id.write_text("first\n")
    (tmp_path / "root/project/repo").mkdir(parents=True)
    boot.write(f"{tmp_path}/root", "first", {})
    return tmp_path / "root"


INFINITE = b'{"boot": "", "machine": "", "lacking": {"a": ["x", "y", 1e999]}}'


def restart(root: Path) -> None:
    """Start the machine again."""
    (root.parent / "boot").write_text("second\n")
    boot._whole.clear()


def refused(root: Path, *paths: str) -> list[bool]:
    return [boot.is_behind(f"{root}/{path}") for path in paths]


def test_a_mirror_refuses_clients_from_a_boot_to_its_comparison(root: Path) -> None:
    assert refused(root, "project/repo", "other") == [False, False]
    restart(root)
    assert refused(root, "project/repo", "other") == [True, True]
    boot.write(str(root), "second", {"id": Lacking("project/repo", "inc", 5)})
    assert refused(root, "project/repo", "other", "project/repository") == [True, False, False]
    boot.write(str(root), "second", {})
    assert refused(root, "project/repo") == [False]


def test_a_mirror_that_stopped_in_order_refuses_nothing_afterwards(root: Path) -> None:
    boot.write(str(root), "", {"id": Lacking("project/repo", "inc", 5)})
    restart(root)
    assert refused(root, "project/repo", "other") == [True, False]


def test_a_server_reads_the_file_once_if_nothing_lacks(root: Path, system: System) -> None:
    reads: list[str] = []
    system.watch(reads.append, "os.open", at=f"*/{boot.FILE}")
    assert refused(root, "project/repo", "project/repo", "other") == [False] * 3
    assert reads == [f"{root}/project/{boot.FILE}", f"{root}/{boot.FILE}"]


def test_a_server_of_another_machine_waits_for_the_service_to_live(root: Path) -> None:
    file = root / boot.FILE
    restart(root)
    file.write_text(json.dumps({**json.loads(file.read_text()), "machine": f"not-{socket.gethostname()}"}))
    before_this_boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - 60
    now = time.time()  # the file server's clock may be ahead
    for at, is_refused in ((before_this_boot, True), (now + 600, True), (now - 1, False), (now + 20, False)):
        restart(root)
        os.utime(file, (at, at))
        assert refused(root, "project/repo") == [is_refused]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"boot": "first"}', b'{"boot": "", "machine": "", "lacking": {"a": 1}}', b"[" * 3000, INFINITE],
)
def test_a_damaged_file_refuses_until_it_is_written_again(root: Path, content: bytes) -> None:
    (root / boot.FILE).write_bytes(content)
    assert refused(root, "project/repo") == [True]
    boot.write(str(root), "first", {})
    assert refused(root, "project/repo") == [False]


def test_a_file_without_an_end_is_damaged_and_takes_no_memory(root: Path) -> None:
    """Accounts that may write in the root of a master can put one there."""
    boot.write(str(root), boot.read_boot(), {})
    os.truncate(root / boot.FILE, 1 << 42)
    found = boot.read(str(root))
    assert found is not None
    assert not found.is_of_this_boot()


def test_a_system_that_does_not_say_its_boot_refuses_nothing(root: Path, boot_id: Path) -> None:
    boot_id.unlink()
    assert refused(root, "project/repo") == [False]


def test_a_root_of_an_older_release_refuses_nothing(root: Path) -> None:
    (root / boot.FILE).unlink()
    restart(root)
    assert refused(root, "project/repo") == [False]


def test_the_file_is_on_disk_before_it_has_its_name(root: Path, system: System) -> None:
    calls: list[str] = []
    system.watch(lambda _: calls.append("fsync"), "os.fsync")
    system.watch(lambda _: calls.append("rename"), "os.rename")
    boot.write(str(root), "first", {})
    assert calls == ["fsync", "rename", "fsync"]


def test_the_web_servers_user_may_read_the_file_under_any_umask(root: Path) -> None:
    former = os.umask(0o077)
    try:
        boot.write(str(root), "first", {})
    finally:
        os.umask(former)
    assert (root / boot.FILE).stat().st_mode & 0o777 == 0o644
