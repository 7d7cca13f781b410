# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository that an operator removes by hand leaves the mirrors, where the relay may announce that."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.waiting import eventually

pytestmark = pytest.mark.processes


def expire_events(cluster: Cluster) -> None:
    """Let the log forget all events, as if they were older than its retention."""
    with closing(sqlite3.connect(cluster.folder / "log.db", timeout=60)) as log, log:
        streams = "SELECT id FROM streams WHERE topic = (SELECT id FROM topics WHERE name = 'events')"
        log.execute(f"DELETE FROM records WHERE stream IN ({streams})")
        log.execute(f"UPDATE streams SET beginning = next WHERE id IN ({streams})")


def test_an_old_repository_removed_by_hand_leaves_and_returns(tmp_path: Path) -> None:
    """Also one whose events the log no longer has, as of most repositories that are removed."""
    cluster = Cluster(tmp_path)
    announcing = '[relay]\nscan = 0.5\nremoved = "announce"\nremoved-after = 2\n'
    cluster.config.write_text(cluster.config.read_text().replace("[relay]\n", announcing))
    with cluster:
        for name in ("old", "stays"):
            cluster.create(name)
            clone = cluster.folder / "work" / name
            cluster.commit(clone, "one")
            cluster.push(clone)
        eventually(lambda: len(cluster.lines()) >= 4, what="both pushes are announced")
        expire_events(cluster)
        shutil.copytree(cluster.repository("old"), tmp_path / "backup", symlinks=True)
        shutil.rmtree(cluster.repository("old"))
        eventually(lambda: not (tmp_path / "repos/beta/old").exists(), what="the repository left the mirror")
        assert (tmp_path / "repos/beta/stays").exists()
        assert "diverged" not in cluster.output("mirror-beta"), "the mirror does not compare how the changelog ended"
        shutil.copytree(tmp_path / "backup", cluster.repository("old"), symlinks=True)
        cluster.hg("-R", cluster.repository("old"), "replicateadopt", "--yes", on_master=True)
        eventually(lambda: (tmp_path / "repos/beta/old").exists(), what="the mirror has it again")
