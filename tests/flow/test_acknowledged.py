# SPDX-License-Identifier: GPL-2.0-or-later
"""A whole installation whose pushers wait for the mirrors."""

import re
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.waiting import eventually
from tests.flow.test_log_loss import announced

pytestmark = pytest.mark.processes

ANNOUNCED = re.compile(
    r"remote: recorded push in replication log in \d+\.\d{3}s\nremote: on 2/2 mirrors in \d+\.\d{3}s, announced\n"
)
LATE = re.compile(
    r"remote: recorded push in replication log in \d+\.\d{3}s\n"
    r"remote: not on all mirrors after \d+\.\ds: mirrors get it later, and it is announced then\n"
)


def set_timeout(cluster: Cluster, seconds: float) -> None:
    """Have pushers wait for the mirrors, so many seconds at most, once the master's web server starts."""
    with (cluster.folder / "master.hgrc").open("a") as hgrc:
        hgrc.write(f"[vcsreplicator]\nacknowledge = mirrors\nacknowledge-timeout = {seconds}\n")


def test_a_push_waits_for_both_mirrors_and_no_longer_than_the_timeout(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    set_timeout(cluster, 60)
    with cluster:
        clone = cluster.create("x")
        node = cluster.commit(clone, "in time")
        read = cluster.push(clone)
        assert ANNOUNCED.search(read), read
        eventually(lambda: node in announced(cluster), "the notice is delivered")

        set_timeout(cluster, 2)
        cluster.stop("web-master", "mirror-alpha")
        cluster.start("web-master")
        node = cluster.commit(clone, "late")
        read = cluster.push(clone)
        assert LATE.search(read), read
        assert node not in announced(cluster)
        cluster.start("mirror-alpha")
        eventually(lambda: node in announced(cluster), "the notice of the late push is delivered")
