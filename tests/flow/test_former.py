# SPDX-License-Identifier: GPL-2.0-or-later
"""The files and databases of a former release: the present one goes on with them as if the former had never stopped.

`former/make.py` made the folder with the last release before the modules were moved to rooms. Its services stopped in the middle.
"""

import subprocess
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.checks.lines import told_in_order
from testing.waiting import eventually

pytestmark = pytest.mark.processes

ARCHIVE = Path(__file__).parent / "former" / "installation.tar.gz"
NAMES = ("one", "group/two")
PATIENCE = 120.0


def newest(cluster: Cluster, name: str) -> str:
    """The newest changeset of the master's repository."""
    return cluster.hg("-R", cluster.repository(name), "log", "-r", "tip", "-T", "{node}", on_master=True)


def announced(cluster: Cluster) -> set[str]:
    """The changesets that the messages name."""
    return {head for line in cluster.lines() for head in line["data"].get("heads", ())}


def visible(cluster: Cluster, mirror: str, name: str) -> str:
    """What a mirror has of a repository: each changeset and its phase."""
    repository = cluster.folder / "repos" / mirror / name
    return cluster.hg("-R", repository, "log", "-T", "{node} {phase}\n", check=False)


def appended_files(folder: Path) -> dict[Path, bytes]:
    """The outboxes and pushlogs of the master and the mirrors, which are only appended to."""
    stores = [store for store in (folder / "repos").rglob("store") if store.parent.name == ".hg"]
    return {
        file: file.read_bytes()
        for store in stores
        for file in (*store.glob("outbox.*.log"), *store.glob("pushlog.log"))
    }


def test_the_present_release_goes_on_where_the_former_stopped(tmp_path: Path) -> None:
    subprocess.run(["tar", "--no-same-owner", "-xf", ARCHIVE, "-C", tmp_path], check=True)
    files = appended_files(tmp_path)
    with Cluster(tmp_path) as cluster:
        before = cluster.lines()
        for name in NAMES:
            eventually(
                lambda name=name: newest(cluster, name) in announced(cluster), f"{name} announced", timeout=PATIENCE
            )  # type: ignore[misc]
            clone = tmp_path / "work" / name
            clone.parent.mkdir(parents=True, exist_ok=True)
            cluster.hg("clone", "-q", cluster.master_url + name, clone)
            head = cluster.commit(clone, "pushed by the present release")
            cluster.push(clone)
            eventually(lambda head=head: head in announced(cluster), f"{head} announced", timeout=PATIENCE)  # type: ignore[misc]
        problems, repeats = told_in_order(cluster.lines())
        assert (problems, repeats) == ([], 0)
        assert len(before) > 0
        assert cluster.lines()[: len(before)] == before
        for name in NAMES:
            on_master = cluster.hg("-R", cluster.repository(name), "log", "-T", "{node} {phase}\n", on_master=True)
            assert [visible(cluster, mirror, name) for mirror in ("alpha", "beta")] == [on_master] * 2
            for role in ("master", "alpha", "beta"):
                repository, hgrc = (
                    tmp_path / "repos" / role / name,
                    "master.hgrc" if role == "master" else "mirror.hgrc",
                )
                assert "error" not in cluster.hg("-R", repository, "verifypushlog", HGRCPATH=str(tmp_path / hgrc))
        assert cluster.cli("verify").returncode == 0
    assert len(files) >= 8
    assert [file for file, content in appended_files(tmp_path).items() if not content.startswith(files[file])] == []
