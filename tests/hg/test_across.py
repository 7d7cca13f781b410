# SPDX-License-Identifier: GPL-2.0-or-later
"""A master and mirrors on different versions of Mercurial: what one writes, the others read, and so do they after an exchange."""

import os
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.versions.__main__ import is_supported
from testing.versions.environment import OLDER, interpreter
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PATIENCE = 120.0
# The newest is the checkout's own; it does not matter on which this test itself runs.
VERSIONS = (None, *(version for version in OLDER if is_supported(version, "mirror")))
MIRRORS = ("alpha", "beta", "gamma")
EVOLVING = ("--config", "experimental.evolution=all")
STRIPPING = ("--config", "extensions.strip=")
HGRC = "[phases]\npublish = no\n[experimental]\nevolution = all\n"


def choose_versions(cluster: Cluster, turn: int) -> None:
    """Have the master and what pushes to it run on one version, and each mirror on another."""
    for number, place in enumerate(("master", *MIRRORS)):
        python = interpreter(VERSIONS[(number + turn) % len(VERSIONS)])
        roles = ("relay", "web-master") if place == "master" else (f"mirror-{place}", f"web-{place}")
        environments = [cluster.about["master"]["env"]] if place == "master" else []
        for service in map(cluster.about["services"].__getitem__, roles):
            service["argv"][0] = python
            environments.append(service["env"])
        for environment in environments:
            environment["PATH"] = f"{Path(python).parent}{os.pathsep}{environment['PATH']}"


def is_announced(cluster: Cluster, head: str) -> bool:
    return any(head in line["data"].get("heads", ()) for line in cluster.lines())


def is_verified(cluster: Cluster) -> bool:
    """Whether master and mirrors, each by its own Mercurial, say that they have the same."""
    return cluster.cli("verify").returncode == 0


def push_evolution(cluster: Cluster, clone: Path, text: str) -> str:
    """Push a bookmarked changeset, then its successor with a marker; gives the successor's node."""
    cluster.commit(clone, text)
    cluster.hg("--cwd", clone, "bookmark", "-f", "moving")
    cluster.hg("--cwd", clone, "push", "-B", "moving", *EVOLVING)
    cluster.hg("--cwd", clone, "commit", "--amend", "-m", f"{text} amended", *EVOLVING)
    cluster.hg("--cwd", clone, "push", "-f", "-B", "moving", *EVOLVING)
    return cluster.hg("--cwd", clone, "log", "-r", ".", "-T", "{node}")


def heal(cluster: Cluster, mirror: str) -> None:
    """Have a mirror copy the repository from the master again."""
    folder = cluster.folder / "repos" / mirror / "one" / ".hg"
    before = folder.stat().st_ino
    healed = cluster.cli("heal", mirror, "one", "--yes")
    assert healed.returncode == 0, healed.stderr
    eventually(lambda: folder.stat().st_ino != before, f"{mirror} put a copy in place", timeout=PATIENCE)


def expect_same(cluster: Cluster, head: str, clones: Path) -> None:
    """Wait until a push is announced, and compare what each mirror has and serves."""
    eventually(lambda: is_announced(cluster, head), "announced, so each mirror serves it", timeout=PATIENCE)
    eventually(lambda: is_verified(cluster), "each mirror has what the master has", timeout=PATIENCE)
    clones.mkdir()
    for mirror in cluster.about["mirrors"]:
        url = mirror["url"] + "one"
        assert head in cluster.hg("identify", "--debug", "-r", "moving", url)
        cluster.hg("clone", "-U", "--stream", url, clones / mirror["name"], *EVOLVING)
        assert head in cluster.hg("-R", clones / mirror["name"], "log", "-T", "{node}\n", *EVOLVING)


def test_versions_read_and_go_on_with_each_others_files(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "--mirrors", str(len(MIRRORS)), warm=False)
    for turn in (0, 2):
        choose_versions(cluster, turn)
        with cluster:
            clone = tmp_path / "work" / "one"
            if not clone.exists():
                cluster.create("one")
                (cluster.repository("one") / ".hg" / "hgrc").write_text(HGRC)
            expect_same(cluster, push_evolution(cluster, clone, f"turn {turn}"), tmp_path / f"clones {turn}")
            heal(cluster, "alpha")
            cluster.hg("-R", cluster.repository("one"), "strip", "--no-backup", "moving", *STRIPPING, on_master=True)
            eventually(lambda: is_verified(cluster), "each mirror lacks what the master lacks", timeout=PATIENCE)
            cluster.hg("--cwd", clone, "push", "-f", "-B", "moving", *EVOLVING)
