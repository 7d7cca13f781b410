# SPDX-License-Identifier: GPL-2.0-or-later
"""Lines that a pusher reads only when several things go wrong at once, and what the page says about them."""

from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.waiting import eventually
from tests.flow.test_log_loss import EmbeddedLog, announced, prune, push

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_change_that_had_begun_rolls_back_what_a_killed_one_left(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.create("red")
        cluster.stop("relay")  # which would do it itself
        folder, killed = cluster.repository("red"), tmp_path / "killed"
        killed.write_text(f"hg -R {folder} bookmark half --config hooks.pretxnclose='kill -9 $PPID'; true\n")
        said = cluster.hg(
            "-R", folder, "bookmark", "whole", "--config", f"hooks.pre-bookmarks.killed=sh {killed}", on_master=True
        )
        assert said.count("abandoned transaction found; running recover") == 1
        assert "half" not in cluster.hg("-R", folder, "bookmarks", on_master=True)
        assert "whole" in cluster.hg("-R", folder, "bookmarks", on_master=True)


def test_a_push_that_sends_its_own_events_names_those_lost_for_good(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        clone = cluster.create("red")
        nodes = push(cluster, {"red": clone}, "before")
        eventually(lambda: set(nodes) <= set(announced(cluster)), "the first notice")
        log = EmbeddedLog(tmp_path)
        log.copy()
        nodes = push(cluster, {"red": clone}, "lost for good") + push(cluster, {"red": clone}, "still in the outbox")
        eventually(lambda: set(nodes) <= set(announced(cluster)), "all notices")
        services = [role for role in cluster.roles if not role.startswith("web-")]
        cluster.stop(*services)
        log.restore()
        prune(cluster.repository("red") / ".hg" / "store", kept=1)
        cluster.commit(clone, "sent by the push itself")
        said = cluster.push(clone)
        lost = "the replication log lost events 3 to 3, which are no longer kept"
        assert said.count(f"{lost}: an operator must run 'hg replicatesync'") == 1
        cluster.start(*services)
        cluster.hg("-R", cluster.repository("red"), "replicatesync", on_master=True)
        [newest] = push(cluster, {"red": clone}, "after")
        eventually(lambda: newest in announced(cluster), "a later notice")
        eventually(lambda: cluster.cli("verify").returncode == 0, "all are equal", every=1)
