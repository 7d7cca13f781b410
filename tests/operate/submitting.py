# SPDX-License-Identifier: GPL-2.0-or-later
"""What provokes the entries about an edge and a decoder, and what shows that their words repaired it."""

import json
import shutil
import sqlite3
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hgext.vcsreplicator.demo.layout import PROGRAM, free_ports
from hgext.vcsreplicator.demo.submission import DOCUMENT
from testing.services.cache import CHECKOUT
from testing.waiting import eventually

from .page import Entry, OnCall
from .provoking import PROVOCATIONS, provokes

__all__ = ["PROVOCATIONS"]  # with those of this module

SECTIONS = """
log = "{log}"
[edge]
listen = "127.0.0.1:{port}"
queue = "{folder}/queue"
[decode]
output = "file:{folder}/"
repeats = "none"
schemas = "{folder}/schemas"
[listen]
edge = "127.0.0.1:{metrics}"
"""


@contextmanager
def edge_and_decoder(on_call: OnCall) -> Iterator[tuple[Path, str]]:
    """Run both during the block; their folder and the URL of the edge."""
    cluster = on_call.cluster
    folder = cluster.folder / f"submitted-{uuid.uuid4()}"
    shutil.copytree(CHECKOUT / "notifier/schemas/documents", folder / "schemas")
    port, metrics = free_ports(2)
    config = folder / "edge.toml"
    config.write_text(SECTIONS.format(log=cluster.log_url, port=port, folder=folder, metrics=metrics))
    for role in ("edge", "decode"):
        environment = cluster.about["services"]["notifier"]["env"]
        cluster.about["services"][role] = {"argv": [*PROGRAM, role, "--config", str(config)], "env": environment}
    try:
        cluster.start("edge", "decode")
        yield folder, f"http://127.0.0.1:{port}/submit/eng-workflow/hgpush/1/"
    finally:
        for role in ("edge", "decode"):
            if cluster.running(role):
                cluster.stop(role)
            del cluster.about["services"][role]


def submit(url: str) -> None:
    request = urllib.request.Request(f"{url}{uuid.uuid4()}", DOCUMENT.encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


@provokes("VcsreplicatorDecodeRejects")
def decode_rejects(on_call: OnCall, entry: Entry) -> None:
    with edge_and_decoder(on_call) as (folder, url):
        [schema] = folder.glob("schemas/eng-workflow/hgpush/hgpush.1.schema.json")
        right = schema.read_text()
        schema.write_text(json.dumps({**json.loads(right), "required": ["what no client sends"]}))
        on_call.cluster.stop("decode")
        on_call.cluster.start("decode")
        submit(url)
        assert "schema" in entry.until("vcsreplicator errors list", "decode")
        schema.write_text(right)
        on_call.cluster.stop("decode")
        on_call.cluster.start("decode")
        said = entry.do("vcsreplicator errors retry --type ERROR-TYPE --yes", **{"ERROR-TYPE": "schema"})
        assert "submitted 1 again" in said
        eventually(lambda: list(folder.glob("*.ndjson")), "the message is delivered")


@provokes("VcsreplicatorEdgeQueues")
def edge_queues(on_call: OnCall, entry: Entry) -> None:
    with edge_and_decoder(on_call) as (folder, url):
        metrics = (folder / "edge.toml").read_text().rpartition('"127.0.0.1:')[2].partition('"')[0]

        def queued() -> float:
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            return float(next(line for line in lines if line.startswith("vcsreplicator_edge_queued_bytes ")).split()[1])

        with closing(sqlite3.connect(on_call.cluster.folder / "log.db", isolation_level=None)) as log:
            log.execute("BEGIN IMMEDIATE")  # no other process can write
            submit(url)
            eventually(lambda: queued() > 0, "the edge keeps the message")
            assert "another process keeps it locked" in entry.type("vcsreplicator topics list").text
            log.execute("ROLLBACK")
        eventually(lambda: queued() == 0, "the queue drains by itself")
        eventually(lambda: list(folder.glob("*.ndjson")), "the message is delivered")
