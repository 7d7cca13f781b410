# SPDX-License-Identifier: GPL-2.0-or-later
"""What provokes the rarer reasons of detached repositories, and what shows that the page's words healed them."""

import os
import random
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from testing.waiting import eventually

from .page import Entry, OnCall
from .provoking import append_event, hold, mirror_folder, newest_event, provokes, rows, workers_of

MEBIBYTE = 1024 * 1024


def push_bytes(on_call: OnCall, name: str, size: int) -> None:
    """Push a file of so many bytes, which cannot be packed."""
    clone = on_call.cluster.folder / "work" / name
    (clone / "large").write_bytes(random.Random(name).randbytes(size))
    on_call.push(name)


def assert_equal(on_call: OnCall, mirror: str, name: str) -> None:
    done = on_call.cluster.cli("verify", mirror, "--repository", name)
    assert done.returncode == 0, done.stdout + done.stderr


# What each Python of a mirror runs at its start: a process that writes to the repository dies while the other file is there.
DEADLY = """
import os, signal, sys
def kill(event, details):
    if event == "open" and isinstance(details[0], (str, bytes)) and os.path.exists({flag!r}):
        if os.fsdecode(details[0]).endswith("/{name}/.hg/store/journal"):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
"""


@contextmanager
def deadly_repository(on_call: OnCall, mirror: str, name: str) -> Iterator[Path]:
    """Let the repository kill each worker of the mirror that writes to it; the file that must go to end that."""
    cluster, flag = on_call.cluster, on_call.cluster.folder / f"{name}-is-deadly"
    folder = cluster.folder / f"{name}-start"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(DEADLY.format(flag=str(flag), name=name))
    environment = cluster.about["services"][f"mirror-{mirror}"]["env"]
    cluster.stop(f"mirror-{mirror}")
    environment["PYTHONPATH"] = str(folder)
    cluster.start(f"mirror-{mirror}")
    flag.touch()  # it starts, and reads all repositories
    try:
        yield flag
    finally:
        del environment["PYTHONPATH"]
        cluster.stop(f"mirror-{mirror}")
        cluster.start(f"mirror-{mirror}")


@provokes("reason crashed")
def crashed(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    with deadly_repository(on_call, "alpha", name) as flag:
        on_call.push(name)
        eventually(lambda: "crashed" in on_call.detached("alpha", name), "its worker died twice")
        assert '"worker died"' in on_call.cluster.output("mirror-alpha")
        flag.unlink()
        entry.do("vcsreplicator heal MIRROR PATH", MIRROR="alpha", PATH=name)
        on_call.wait_announced(name)


@provokes("reason blob-missing")
def blob_missing(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    on_call.cluster.stop("mirror-beta")
    push_bytes(on_call, name, MEBIBYTE)
    blobs = [path for path in (on_call.cluster.folder / "blobs").rglob("*") if path.is_file()]
    assert blobs
    for blob in blobs:
        blob.unlink()
    on_call.cluster.start("mirror-beta")
    on_call.wait_announced(name)
    assert "blob-missing" in on_call.detached("beta", name)
    assert_equal(on_call, "beta", name)


def expire_events(on_call: OnCall) -> None:
    """Let the log forget all events, as if they were older than its retention."""
    with closing(sqlite3.connect(on_call.cluster.folder / "log.db", timeout=60)) as log, log:
        streams = "SELECT id FROM streams WHERE topic = (SELECT id FROM topics WHERE name = 'events')"
        log.execute(f"DELETE FROM records WHERE stream IN ({streams})")
        log.execute(f"UPDATE streams SET beginning = next WHERE id IN ({streams})")


@provokes("reason expired")
def expired(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    held = hold(mirror_folder(on_call, "beta", name), os.getpid())
    on_call.push(name)
    eventually(lambda: "locked" in on_call.detached("beta", name), "it is read later, from its resume point")
    on_call.cluster.stop("mirror-beta")
    expire_events(on_call)
    held.unlink()
    on_call.cluster.start("mirror-beta")
    on_call.wait_announced(name)
    assert "expired" in on_call.detached("beta", name)
    assert_equal(on_call, "beta", name)


@provokes("reason fork")
def fork(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    event = newest_event(on_call, name)
    append_event(on_call, replace(event, seq=event.seq + 1, id="f" * 32, previous="e" * 32))
    for mirror in ("alpha", "beta"):
        eventually(lambda mirror=mirror: "fork" in on_call.detached(mirror, name), mirror)  # type: ignore[misc]
    entry.do("hg -R FOLDER replicateadopt --yes", FOLDER=on_call.cluster.repository(name))
    for mirror in ("alpha", "beta"):
        entry.do("vcsreplicator heal MIRROR PATH", MIRROR=mirror, PATH=name)
    on_call.push(name)
    on_call.wait_announced(name)
    for mirror in ("alpha", "beta"):
        assert_equal(on_call, mirror, name)


@contextmanager
def rival(on_call: OnCall, name: str) -> Iterator[Path]:
    """Have another repository of the same generation at its path, as a second master would. Yields its folder."""
    other = on_call.cluster.repository(on_call.repository())
    folder, aside = on_call.cluster.repository(name), on_call.cluster.folder / f"{name}-aside"
    folder.rename(aside)
    shutil.rmtree(folder.parent / ".vcsreplicator" / "generations")
    on_call.cluster.hg("-R", other, "replicaterename", folder, "--yes", on_master=True)
    eventually(lambda: "refused" in rows(on_call, "status"), "mirrors take only one of the two")
    yield folder
    aside.rename(folder)


@provokes("reason refused")
def refused(on_call: OnCall, entry: Entry) -> None:
    name, other = on_call.repository(), on_call.repository()
    place, second = on_call.cluster.repository(f"{name}-renamed"), on_call.cluster.folder / "second"
    with rival(on_call, name) as folder:
        folder.rename(second)
    entry.do("hg -R FOLDER replicaterename NEW-FOLDER --yes", **{"FOLDER": folder, "NEW-FOLDER": place})
    second.rename(folder)
    for mirror in ("alpha", "beta"):
        root, shown = mirror_folder(on_call, mirror, ""), {name, place.name}
        eventually(lambda root=root, shown=shown: shown <= {*os.listdir(root)}, mirror)  # type: ignore[misc]
    with rival(on_call, other) as folder:
        entry.do("hg -R FOLDER replicatedelete --yes", FOLDER=folder)
    eventually(lambda: "refused" not in rows(on_call, "status"), "nothing is refused", every=0.5)
    on_call.push(other)
    on_call.wait_announced(other)
    link, elsewhere = mirror_folder(on_call, "beta", "linked"), on_call.cluster.folder / "elsewhere"
    elsewhere.mkdir()
    link.symlink_to(elsewhere)
    linked = on_call.cluster.repository("linked/one")
    entry.do("hg -R FOLDER replicaterename NEW-FOLDER --yes", **{"FOLDER": place, "NEW-FOLDER": linked})
    eventually(lambda: "leads out of" in on_call.cluster.output("mirror-beta"), "the note says why")
    link.unlink()
    entry.until("vcsreplicator heal MIRROR PATH", "beta will heal it", MIRROR="beta", PATH="linked/one")
    eventually((link / "one/.hg").is_dir, "it is moved to its path")


@contextmanager
def small_disk(on_call: OnCall, mirror: str, size: int) -> Iterator[Path]:
    """Let the mirror have a disk of its own, of so many bytes; its folder."""
    cluster, root = on_call.cluster, on_call.cluster.folder / "repos" / mirror
    roles = (f"mirror-{mirror}", f"web-{mirror}")
    aside = root.with_name(f"{mirror}-aside")
    cluster.stop(*roles)
    root.rename(aside)
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", root], check=True)
    try:
        shutil.copytree(aside, root, symlinks=True, dirs_exist_ok=True)
        cluster.start(*roles)
        yield root
        cluster.stop(*roles)
        shutil.rmtree(aside)
        shutil.copytree(root, aside, symlinks=True)
    finally:
        cluster.kill(*(role for role in roles if cluster.running(role)))
        subprocess.run(["umount", "--lazy", root], check=True)
        root.rmdir()
        aside.rename(root)
        cluster.start(*roles)


def fill(folder: Path, left: int) -> Path:
    """Leave so many bytes of the disk; the file that takes the others."""
    filler = folder / "filler"
    disk = os.statvfs(folder)
    filler.write_bytes(b"\0" * (disk.f_bavail * disk.f_frsize - left))
    return filler


@contextmanager
def small_files(on_call: OnCall, mirror: str, size: int) -> Iterator[None]:
    """Let the mirror's workers write no file beyond so many bytes: what a user who may not mount can do."""
    for worker in workers_of(on_call, mirror):
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        for worker in workers_of(on_call, mirror):
            resource.prlimit(worker, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@provokes("reason disk")
def disk(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    if os.geteuid():
        with small_files(on_call, "beta", MEBIBYTE):
            push_bytes(on_call, name, 6 * MEBIBYTE)
            eventually(lambda: "disk" in on_call.detached("beta", name), "there is no room for it")
        entry.typed.add("vcsreplicator check")  # the mirror could note it
        on_call.wait_announced(name)
        return
    with small_disk(on_call, "beta", 64 * MEBIBYTE) as root:
        filler = fill(root, left=3 * MEBIBYTE)
        push_bytes(on_call, name, 6 * MEBIBYTE)
        entry.until("vcsreplicator check", "mirror beta cannot write to its disk, make room there")
        filler.unlink()
        on_call.wait_announced(name)
        assert "disk" in on_call.detached("beta", name)
    assert_equal(on_call, "beta", name)
