# SPDX-License-Identifier: GPL-2.0-or-later
"""What provokes the entries about an edge and a decoder, and what shows that their words repaired it."""

import json
import shutil
import sqlite3
import tomllib
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hgext.vcsreplicator.demo.layout import PROGRAM
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.demo.submission import DOCUMENT
from testing.services.cache import CHECKOUT
from testing.services.redis import Redis
from testing.waiting import eventually

from .page import Entry, OnCall, read_metric
from .provoking import provokes
from .upgrading import other_release

SECTIONS = """
log = "{log}"
[edge]
listen = "127.0.0.1:{port}"
queue = "{folder}/queue"
reserved = []
[decode]
output = "file:{folder}/"
repeats = {repeats}
schemas = "{folder}/schemas"
[listen]
edge = "127.0.0.1:{edge}"
decode = "127.0.0.1:{decode}"
"""


@contextmanager
def edge_and_decoder(on_call: OnCall, repeats: str = '"none"') -> Iterator[tuple[Path, str]]:
    """Run both during the block; their folder and the URL of the edge."""
    cluster = on_call.cluster
    folder = cluster.folder / f"submitted-{uuid.uuid4()}"
    shutil.copytree(CHECKOUT / "notifier/messages/schemas/documents", folder / "schemas")
    port, *metrics = free_port(), free_port(), free_port()
    config = folder / "edge.toml"
    config.write_text(
        SECTIONS.format(
            log=cluster.log_url, port=port, folder=folder, repeats=repeats, edge=metrics[0], decode=metrics[1]
        )
    )
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


# A log that takes no raw message, as if its limit were lowered.
REFUSES = """
from hgext.vcsreplicator.log.sqlite import adapter
from hgext.vcsreplicator.words.errors import Rejected
right = adapter.check_message
def check_message(message):
    if message.topic == "raw":
        raise Rejected("too large")
    right(message)
adapter.check_message = check_message
"""
# Bytes that wait at the edge.
QUEUED = "vcsreplicator_edge_queued_bytes"


def address_of(folder: Path, role: str) -> str:
    """Where the edge or the decoder listens."""
    return str(tomllib.loads((folder / "edge.toml").read_text())["listen"][role])


@contextmanager
def locked_log(on_call: OnCall) -> Iterator[None]:
    """Let no other process write to the log during the block."""
    with closing(sqlite3.connect(on_call.cluster.folder / "log.db", isolation_level=None)) as log:
        log.execute("BEGIN IMMEDIATE")
        yield
        log.execute("ROLLBACK")


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
        others, on_call.cluster.config = on_call.cluster.config, folder / "edge.toml"  # that of the decoder's machine
        said = entry.do("vcsreplicator errors retry --type ERROR-TYPE --yes", **{"ERROR-TYPE": "schema"})
        on_call.cluster.config = others
        assert "submitted 1 again" in said
        eventually(lambda: list(folder.glob("*.ndjson")), "the message is delivered")


@provokes("VcsreplicatorEdgeQueues")
def edge_queues(on_call: OnCall, entry: Entry) -> None:
    with edge_and_decoder(on_call) as (folder, url):
        with locked_log(on_call):
            submit(url)
            eventually(lambda: entry.metric(address_of(folder, "edge"), QUEUED) > 0, "the edge keeps the message")
            assert "another process keeps it locked" in entry.type("vcsreplicator topics list").text
        eventually(lambda: entry.metric(address_of(folder, "edge"), QUEUED) == 0, "the queue drains by itself")
        eventually(lambda: list(folder.glob("*.ndjson")), "the message is delivered")


@provokes("VcsreplicatorEdgeSetAside")
def edge_set_aside(on_call: OnCall, entry: Entry) -> None:
    with edge_and_decoder(on_call) as (folder, url):
        aside = "vcsreplicator_edge_set_aside_messages_total"
        with locked_log(on_call):
            submit(url)
            on_call.cluster.stop("edge")
        with other_release(on_call, "edge", REFUSES):
            eventually(lambda: read_metric(address_of(folder, "edge"), aside) == 1, "the log refuses the message")
            assert str(folder / "queue/rejected.log") in on_call.cluster.output("edge")
        assert not list(folder.glob("*.ndjson"))
        entry.do("mv -n QUEUE/rejected.log QUEUE/0000000000.log", QUEUE=folder / "queue")
        on_call.cluster.stop("edge")
        entry.type("systemctl start", unit="edge")
        eventually(lambda: list(folder.glob("*.ndjson")), "the message is delivered")
        assert entry.metric(address_of(folder, "edge"), QUEUED) == 0


@provokes("VcsreplicatorRepeatsPass")
def repeats_pass(on_call: OnCall, entry: Entry) -> None:
    away = "vcsreplicator_decode_repeats_away_flag"
    with Redis() as redis, edge_and_decoder(on_call, f'"redis"\nredis = "{redis.url}"') as (folder, url):
        delivered = folder / "eng-workflow.hgpush.ndjson"
        submit(url)
        eventually(lambda: delivered.exists(), "the message is delivered")
        redis.kill()
        submit(url)
        eventually(lambda: entry.metric(address_of(folder, "decode"), away) == 1, "the store does not answer")
        assert entry.type("redis-cli -u URL ping", URL=redis.url).code != 0
        redis.restart()
        assert entry.do("redis-cli -u URL ping", URL=redis.url).strip() == "PONG"

        def is_back() -> bool:
            submit(url)
            return entry.metric(address_of(folder, "decode"), away) == 0

        eventually(is_back, "ids are remembered again", every=0.5)
