# SPDX-License-Identifier: GPL-2.0-or-later
"""Backup and restore, rehearsed with the commands of the page on real files."""

import functools
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


def test_a_machine_is_restored_and_what_came_between_is_sent_again(on_call: OnCall, tmp_path: Path) -> None:
    cluster, copy = on_call.cluster, tmp_path / "copies/first"
    first, second = on_call.repository(), on_call.repository()
    copy.parent.mkdir()
    stopping = threading.Event()

    def push_on() -> int:
        count = 0
        while not stopping.is_set():
            on_call.push(second)
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        pushed = pool.submit(push_on)
        try:
            done = cluster.cli("backup", str(copy), "--repositories", "copy", "--secrets")
        finally:
            stopping.set()
        assert pushed.result() >= 1
    assert done.returncode == 0, done.stdout + done.stderr
    checked = cluster.cli("backup", str(copy), "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    refused = cluster.cli("restore", str(copy), "--replace")
    assert refused.returncode != 0
    assert "stop all services first" in refused.stderr

    cluster.stop(*cluster.roles)
    (tmp_path / "notifier.db").unlink()  # the log has what it knew
    restore = Entry(cluster, "Restore", operation("Restore the whole machine"))
    restore.do("mv ROOT AWAY", ROOT=cluster.master_root, AWAY=tmp_path / "away")
    restore.do("vcsreplicator restore FOLDER --replace", FOLDER=copy)
    cluster.start(*cluster.roles)
    for name in (first, second):
        if name == second:  # pushes that came after the copy of their repository are on mirrors alone
            cluster.hg("-R", cluster.repository(name), "replicateadopt", "--yes", on_master=True)
        on_call.push(name)
        on_call.wait_announced(name)
    restore.until_ok()
    eventually(lambda: restore.type("vcsreplicator verify").code == 0, "all are equal", every=1)
    assert restore.untyped == {"cp -aT COPY ROOT"}


def test_an_older_copy_is_adopted_and_what_mirrors_have_comes_back(on_call: OnCall, tmp_path: Path) -> None:
    cluster = on_call.cluster
    name = on_call.repository()
    folder, copy, saved = cluster.repository(name), tmp_path / "copy", tmp_path / "saved"
    shutil.copytree(folder, copy, symlinks=True)
    on_call.push(name)
    on_call.wait_announced(name)
    newest = cluster.hg("--cwd", tmp_path / "work" / name, "log", "-r", ".", "-T", "{node}")

    page = Entry(cluster, "Restore repositories", operation("Restore repositories"))
    page.do("hg -R FOLDER verify", FOLDER=folder)
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
