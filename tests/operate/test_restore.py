# SPDX-License-Identifier: GPL-2.0-or-later
"""Backup and restore, rehearsed with the commands of the page on real files."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.builders.endpoint import Endpoint
from testing.waiting import eventually

from .page import Entry, OnCall, operation

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def on_call(tmp_path: Path) -> Iterator[OnCall]:
    with Endpoint() as endpoint, Cluster(tmp_path) as cluster:
        yield OnCall(cluster, endpoint)


def test_a_machine_is_restored_and_what_came_between_the_copies_is_sent_again(on_call: OnCall, tmp_path: Path) -> None:
    cluster, copies = on_call.cluster, tmp_path / "copies"
    first, second = on_call.repository(), on_call.repository()
    backup = Entry(cluster, "Backup", operation("Backup"))
    copies.mkdir()
    backup.do('sqlite3 LOG ".backup COPY"', LOG=tmp_path / "log.db", COPY=copies / "log.db")
    on_call.push(first)  # the copy of the log lacks it
    on_call.wait_announced(first)
    backup.do('sqlite3 STATE ".backup COPY"', STATE=tmp_path / "notifier.db", COPY=copies / "notifier.db")
    backup.do("cp -a ROOT COPY", ROOT=cluster.master_root, COPY=copies / "master")
    assert not backup.untyped

    cluster.stop(*cluster.roles)
    shutil.rmtree(cluster.master_root)
    for name in ("log.db", "log.db-wal", "log.db-shm", "notifier.db", "notifier.db-wal", "notifier.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    restore = Entry(cluster, "Restore", operation("Restore the whole machine"))
    restore.do("cp COPY LOG", COPY=copies / "log.db", LOG=tmp_path / "log.db")
    restore.do("cp COPY LOG", COPY=copies / "notifier.db", LOG=tmp_path / "notifier.db")
    restore.do("cp -a COPY ROOT", COPY=copies / "master", ROOT=cluster.master_root)
    cluster.start(*cluster.roles)
    restore.until_ok()
    eventually(lambda: restore.type("vcsreplicator verify").code == 0, "all are equal", every=1)
    for name in (first, second):
        on_call.push(name)
        on_call.wait_announced(name)
    assert not restore.untyped


def test_an_older_copy_of_a_repository_is_adopted_and_what_mirrors_have_comes_back(
    on_call: OnCall, tmp_path: Path
) -> None:
    cluster = on_call.cluster
    name = on_call.repository()
    folder, copy, saved = cluster.repository(name), tmp_path / "copy", tmp_path / "saved"
    shutil.copytree(folder, copy, symlinks=True)
    on_call.push(name)
    on_call.wait_announced(name)
    newest = cluster.hg("--cwd", tmp_path / "work" / name, "log", "-r", ".", "-T", "{node}")
    shutil.rmtree(folder)

    page = Entry(cluster, "Restore repositories", operation("Restore repositories"))
    page.do("cp -a COPY FOLDER", COPY=copy, FOLDER=folder)
    mirror = {each["name"]: each["url"] for each in cluster.about["mirrors"]}["alpha"]
    page.do("hg clone MIRROR-URL SAVED", **{"MIRROR-URL": mirror + name, "SAVED": saved})
    page.do("hg -R FOLDER replicateadopt --yes", FOLDER=folder)
    page.do("hg -R SAVED push MASTER-URL", **{"MASTER-URL": cluster.master_url + name, "SAVED": saved})
    assert newest in cluster.hg("-R", folder, "log", "-T", "{node}\n", on_master=True)
    compare = "vcsreplicator verify --repository PATH"
    eventually(lambda: page.type(compare, PATH=name).code == 0, "all are equal", every=1)
    on_call.push(name)
    on_call.wait_announced(name)
    assert not page.untyped
