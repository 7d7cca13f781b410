# SPDX-License-Identifier: GPL-2.0-or-later
"""What a load balancer hears from a mirror."""

import json
import os
import signal
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from testing.builders.cluster import Cluster
from testing.waiting import eventually

pytestmark = pytest.mark.processes


def health(cluster: Cluster, mirror: str) -> tuple[int, dict[str, Any]]:
    """(status, body) of the mirror's health page."""
    where = tomllib.loads(cluster.config.read_text())["listen"][f"mirror-{mirror}"]
    try:
        with urllib.request.urlopen(f"http://{where}/health", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_stopped_aggregator_takes_a_mirror_out_only_where_that_is_set(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    with cluster.config.open("a") as file:
        file.write("\n[health]\nsilence = 7\n")
    with cluster:
        cluster.create("red")
        well = {"alive": True, "mirror": "alpha", "ready": True, "reasons": [], "degraded": []}
        eventually(lambda: health(cluster, "alpha") == (200, well))
        with cluster.config.open("a") as file:
            file.write("refuse-when-silent = true\n")
        cluster.stop("mirror-beta")
        cluster.start("mirror-beta")
        eventually(lambda: health(cluster, "beta")[0] == 200)
        os.kill(cluster.pid("aggregator"), signal.SIGSTOP)
        _, body = eventually(lambda: (h := health(cluster, "beta"))[0] == 503 and h)
        assert "aggregator" in body["reasons"][0]
        status, body = eventually(lambda: (h := health(cluster, "alpha"))[1]["degraded"] and h)
        assert (status, body["ready"], body["reasons"]) == (200, True, [])
        assert "the aggregator is silent for " in body["degraded"][0]
        os.kill(cluster.pid("aggregator"), signal.SIGCONT)
        eventually(lambda: health(cluster, "beta")[0] == 200)
        eventually(lambda: not health(cluster, "alpha")[1]["degraded"])
        root = Path(tomllib.loads(cluster.config.read_text())["mirror"]["alpha"]["root"])
        root.rename(tmp_path / "away")
        status, body = health(cluster, "alpha")
        assert (status, body["reasons"]) == (503, [f"the folder {root} is missing"])
        (tmp_path / "away").rename(root)
        eventually(lambda: health(cluster, "alpha")[0] == 200)
