# SPDX-License-Identifier: GPL-2.0-or-later
"""Backup and restore, rehearsed with the commands of the page on real files."""

import functools
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.builders.notifier.endpoint import Endpoint
from testing.waiting import eventually

from .page import Entry, OnCall, operation

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def on_call(tmp_path: Path) -> Iterator[OnCall]:
    with Endpoint() as endpoint, Cluster(tmp_path) as cluster:
        yield OnCall(cluster, endpoint)


@contextmanager
def leaving_journals(databases: list[Path]) -> Iterator[None]:
    """Leave the journals of what is closed in the block, as a machine that stops at once does."""
    files = [Path(f"{database}{ending}") for database in databases for ending in ("", "-wal", "-shm")]
    with ExitStack() as opened:
        for database in databases:
            reading = opened.enter_context(closing(sqlite3.connect(database)))
            assert reading.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
        yield
        left = {file: file.read_bytes() for file in files}
    for file, content in left.items():
        assert content
        file.write_bytes(content)


def test_a_machine_is_restored_and_what_came_between_is_sent_again(on_call: OnCall, tmp_path: Path) -> None:
    cluster, copies = on_call.cluster, tmp_path / "copies"
    first, second = on_call.repository(), on_call.repository()
    backup = Entry(cluster, "Backup", operation("Backup"))
    copies.mkdir()
    backup.do('sqlite3 LOG ".backup COPY"', LOG=tmp_path / "log.db", COPY=copies / "log.db")
    on_call.push(first)  # the copy of the log lacks it
    on_call.wait_announced(first)
    backup.do('sqlite3 ACTS ".backup COPY"', ACTS=tmp_path / "acts.db", COPY=copies / "acts.db")
    backup.do("cp -aT ROOT COPY", ROOT=cluster.master_root, COPY=copies / "master")
    assert not backup.untyped

    databases = [tmp_path / "log.db"]
    with leaving_journals(databases):
        cluster.stop(*cluster.roles)
    (tmp_path / "notifier.db").unlink()  # the log has what it knew
    restore = Entry(cluster, "Restore", operation("Restore the whole machine"))
    restore.do("mv ROOT AWAY", ROOT=cluster.master_root, AWAY=tmp_path / "away")
    restore.do("cp -aT COPY ROOT", COPY=copies / "master", ROOT=cluster.master_root)
    for database in databases:
        owner, mode = database.stat().st_uid, database.stat().st_mode
        restore.do("rm -f DATABASE-wal DATABASE-shm", DATABASE=database)
        restore.do("cp COPY DATABASE", COPY=copies / database.name, DATABASE=database)
        assert (database.stat().st_uid, database.stat().st_mode) == (owner, mode)
        restore.do("chown USER:GROUP DATABASE", DATABASE=database, USER=os.getuid(), GROUP=os.getgid())
    cluster.start(*cluster.roles)
    restore.until_ok()
    eventually(lambda: restore.type("vcsreplicator verify").code == 0, "all are equal", every=1)
    for name in (first, second):
        on_call.push(name)
        on_call.wait_announced(name)
    assert not restore.untyped


def test_an_older_copy_is_adopted_and_what_mirrors_have_comes_back(on_call: OnCall, tmp_path: Path) -> None:
    cluster = on_call.cluster
    name = on_call.repository()
    folder, copy, saved = cluster.repository(name), tmp_path / "copy", tmp_path / "saved"
    shutil.copytree(folder, copy, symlinks=True)
    on_call.push(name)
    on_call.wait_announced(name)
    newest = cluster.hg("--cwd", tmp_path / "work" / name, "log", "-r", ".", "-T", "{node}")

    page = Entry(cluster, "Restore repositories", operation("Restore repositories"))
    page.do("mv FOLDER AWAY", FOLDER=folder, AWAY=tmp_path / "away")
    page.do("cp -aT COPY FOLDER", COPY=copy, FOLDER=folder)
    mirror = {each["name"]: each["url"] for each in cluster.about["mirrors"]}["alpha"]
    page.do("hg clone MIRROR-URL SAVED", **{"MIRROR-URL": mirror + name, "SAVED": saved})
    page.do("hg -R FOLDER replicateadopt --yes", FOLDER=folder)
    page.do("hg -R SAVED push MASTER-URL", **{"MASTER-URL": cluster.master_url + name, "SAVED": saved})
    assert newest in cluster.hg("-R", folder, "log", "-T", "{node}\n", on_master=True)
    for mirror in ("alpha", "beta"):
        words = "vcsreplicator verify MIRROR --repository PATH"
        compare = functools.partial(page.type, words, MIRROR=mirror, PATH=name)
        eventually(lambda compare=compare: compare().code == 0, f"{mirror} is equal", every=1)
    on_call.push(name)
    on_call.wait_announced(name)
    assert not page.untyped
