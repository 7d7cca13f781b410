# SPDX-License-Identifier: GPL-2.0-or-later
"""Disks of a master and of the log that are really full, each a small tmpfs: mounting one needs root."""

import contextlib
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.waiting import eventually

from .damaging import MEBIBYTE, fill

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MakeDisk = Callable[[Path], Path]


@pytest.fixture
def make_disk() -> Iterator[MakeDisk]:
    """Mounts a disk of 24 MiB at a folder, for the length of the test."""
    with ExitStack() as mounted:

        def mount(folder: Path) -> Path:
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={24 * MEBIBYTE}", "tmpfs", folder], check=True)
            mounted.callback(subprocess.run, ["umount", "--lazy", folder], check=True)
            return folder

        yield mount


def push_large(cluster: Cluster, clone: Path, size: int) -> tuple[str, str]:
    """Push a file of so many bytes; the changeset, and what the pusher read."""
    (clone / "large").write_bytes(random.Random(size).randbytes(size))
    head = cluster.commit(clone, f"{size} bytes")
    return head, cluster.hg("--cwd", clone, "push", check=False)


def fill_whole(disk: Path) -> Path:
    """Leave no room on the disk, also while others write there; the file that takes it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return filler


def announced(cluster: Cluster) -> set[str]:
    return {head for line in cluster.lines() for head in line["data"].get("heads", ())}


def test_a_master_with_a_full_disk_refuses_a_push_whole(tmp_path: Path, make_disk: MakeDisk) -> None:
    root = make_disk(tmp_path / "repos/master")
    with Cluster(tmp_path) as cluster:
        clone = cluster.create("red")
        first, _ = push_large(cluster, clone, 1000)
        eventually(lambda: first in announced(cluster), "the first notice")
        filler = fill(root, left=2 * MEBIBYTE)
        head, said = push_large(cluster, clone, 5 * MEBIBYTE)
        assert "no room on the disk of the server; the push is rolled back" in said
        assert "HTTP Error" not in said
        filler.unlink()
        folder = cluster.repository("red")
        assert cluster.hg("-R", folder, "log", "-T", "{node}\n", on_master=True).split() == [first]
        assert "error" not in cluster.hg("-R", folder, "verify", on_master=True)
        assert "has errors" not in cluster.hg("-R", folder, "verifypushlog", on_master=True)
        cluster.push(clone)
        eventually(lambda: head in announced(cluster), "the second notice")
        eventually(lambda: cluster.cli("verify").returncode == 0, "all are equal", every=1)


def test_a_log_on_a_full_disk_keeps_pushes_in_the_outbox(tmp_path: Path, make_disk: MakeDisk) -> None:
    disk = make_disk(tmp_path / "log")
    with Cluster(tmp_path, "--log", f"sqlite://{disk}/log.db") as cluster:
        clone = cluster.create("red")
        first, _ = push_large(cluster, clone, 1000)
        eventually(lambda: first in announced(cluster), "the first notice")
        filler = fill_whole(disk)
        heads = []
        for number in range(3):
            head, said = push_large(cluster, clone, 300_000 + number)
            heads.append(head)
            assert "Traceback" not in said
        assert f"the relay cannot send (sqlite://{disk}/log.db: no space left on its disk; free some space): " in said
        assert "the push is kept and will be sent" in said
        assert f"CRITICAL - {disk}: no space left on its disk" in cluster.cli("check").stdout
        eventually(lambda: "free some space" in cluster.output("relay"), "the relay says why")
        filler.unlink()
        eventually(lambda: set(heads) <= announced(cluster), "all notices")
        eventually(lambda: cluster.cli("check").returncode == 0, "all is well", every=1)
        for role in cluster.roles:
            assert "Traceback" not in cluster.output(role), role
