# SPDX-License-Identifier: GPL-2.0-or-later
"""`sequence` and `previous` of the messages of one repository, after all acts of an administrator."""

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testing.builders.cluster import Cluster
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def changegroups(cluster: Cluster) -> list[dict[str, Any]]:
    return [line for line in cluster.lines() if line["type"] == "changegroup.1"]


def push(cluster: Cluster, clone: Path, text: str, name: str) -> None:
    """Push one changeset to this repository of the master, and wait until its message is there."""
    node = cluster.commit(clone, text)
    assert "recorded push in replication log" in cluster.push(clone, cluster.master_url + name)
    eventually(lambda: node in [head for line in changegroups(cluster) for head in line["data"]["heads"]], text)


def test_sequence_and_previous_go_on_over_a_rename_and_an_adopted_copy(cluster: Cluster) -> None:
    clone = cluster.create("old")
    push(cluster, clone, "before", "old")
    cluster.hg("-R", cluster.repository("old"), "replicaterename", "--yes", cluster.repository("new"), on_master=True)
    push(cluster, clone, "renamed", "new")
    copy = cluster.folder / "copy"
    shutil.copytree(cluster.repository("new"), copy, symlinks=True)
    push(cluster, clone, "after the copy", "new")
    shutil.rmtree(cluster.repository("new"))
    copy.rename(cluster.repository("new"))
    cluster.hg("-R", cluster.repository("new"), "replicateadopt", "--yes", on_master=True)
    push(cluster, clone, "adopted", "new")

    found = changegroups(cluster)
    assert len({line["repository"] for line in found}) == 1
    sequences = [line["sequence"] for line in found]
    assert sequences == sorted(set(sequences))
    assert found[0]["previous"] is None
    assert all(later["previous"] == earlier["id"] for earlier, later in pairwise(found))
    names = [line["data"]["repo_url"].rpartition("/")[2] for line in found]
    assert names == ["old", "new", "new", "new"]
