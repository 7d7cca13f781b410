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
        with urllib.request.urlopen(f"http://{where}/health", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_mirror_is_ready_while_all_is_level_and_not_when_the_aggregator_is_gone(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    with cluster.config.open("a") as file:
        file.write("\n[health]\nsilence = 7\n")
    with cluster:
        cluster.create("red")
        eventually(lambda: health(cluster, "alpha") == (200, {"mirror": "alpha", "ready": True, "reasons": []}))
        os.kill(cluster.pid("aggregator"), signal.SIGSTOP)
        _, body = eventually(lambda: (h := health(cluster, "alpha"))[0] == 503 and h, timeout=30)
        os.kill(cluster.pid("aggregator"), signal.SIGCONT)
        assert not body["ready"]
        assert "aggregator" in body["reasons"][0]
        eventually(lambda: health(cluster, "alpha")[0] == 200, timeout=30)
