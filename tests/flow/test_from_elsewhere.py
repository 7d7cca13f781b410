# SPDX-License-Identifier: GPL-2.0-or-later
"""What a master gets without a push of its own, all services real: the pushes of a pull, and what was changed outside."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.builders.cluster import Cluster
from testing.waiting import eventually

pytestmark = pytest.mark.processes

BLIND = ("--config", "extensions.vcsreplicator=!")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("elsewhere")) as cluster:
        yield cluster


def pushes(url: str, name: str) -> Any:
    with urllib.request.urlopen(f"{url}{name}/json-pushes?version=2&full=1", timeout=60) as answer:
        return json.load(answer)


def mirrors_have(cluster: Cluster, name: str, wanted: Any) -> bool:
    try:
        return all(pushes(mirror["url"], name) == wanted for mirror in cluster.about["mirrors"])
    except OSError:  # not there yet
        return False


def bookmarks(cluster: Cluster, folder: str | Path) -> str:
    return cluster.hg("-R", folder, "log", "-r", "all()", "-T", "{rev}{bookmarks % ' {bookmark}'}\n")


def test_mirrors_get_the_pushes_that_a_clone_and_a_pull_brought(cluster: Cluster) -> None:
    clone = cluster.create("one")
    for text in ("a", "b"):
        cluster.commit(clone, text)
        cluster.push(clone)
    copy = cluster.repository("two")
    cluster.hg("clone", "-q", "--noupdate", cluster.master_url + "one", copy, on_master=True)
    for text in ("c", "d"):
        cluster.commit(clone, text)
        cluster.push(clone)
    cluster.hg("-R", copy, "pull", "-q", on_master=True)
    wanted = pushes(cluster.master_url, "two")
    assert list(wanted["pushes"]) == ["1", "2", "3", "4"]
    eventually(lambda: mirrors_have(cluster, "two", wanted), "the same pushes on all mirrors", timeout=60)


def test_a_request_brings_a_bookmark_that_was_set_outside(cluster: Cluster) -> None:
    clone = cluster.create("three")
    cluster.commit(clone, "a")
    cluster.push(clone)
    master = cluster.repository("three")
    cluster.hg("-R", master, "bookmark", "-r", "0", "outside", *BLIND, on_master=True)
    cluster.hg("-R", master, "replicatesync", on_master=True)
    roots = [mirror["root"] for mirror in cluster.about["mirrors"]]
    for root in roots:
        eventually(lambda root=root: bookmarks(cluster, Path(root, "three")) == "0 outside\n", "bookmark", timeout=60)
