# SPDX-License-Identifier: GPL-2.0-or-later
"""A whole installation that records connections: they reach the decoder, and nothing else that a reader sees or a mirror keeps."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.cluster import Cluster
from testing.builders.notifier.decoding import decoding, records, rejects, settings_in, settled
from testing.builders.notifier.submissions import BERLIN, write_geo
from testing.waiting import eventually

pytestmark = pytest.mark.processes

# What a push over SSH, and one over HTTP, carry.
PLANTED = (BERLIN, "mercurial/proto")

SECTIONS = """
[notifier.decoder]
type = "decode"
mirror-url = "{mirror}"

[decode]
input = "log:raw"
"""


def prepare(folder: Path) -> Cluster:
    """A cluster that records connections and hands them to a decoder, with an SSH that comes from Berlin."""
    cluster = Cluster(folder)
    with (folder / "master.hgrc").open("a") as hgrc:
        hgrc.write("[vcsreplicator]\nrecord-connection = yes\n")
    with cluster.config.open("a") as config:
        config.write(SECTIONS.format(mirror=cluster.about["mirrors"][0]["url"].rstrip("/")))
    ssh = folder / "ssh"
    ssh.write_text(
        f'#!/bin/sh\nshift\nHGRCPATH={folder}/master.hgrc SSH_CLIENT="{BERLIN} 50000 22"\n'
        'export HGRCPATH SSH_CLIENT\neval "exec $*"\n'
    )
    ssh.chmod(0o755)
    return cluster


def push_twice(cluster: Cluster) -> list[str]:
    """Push over HTTP and over SSH; return the changesets."""
    clone = cluster.create("x")
    nodes = [cluster.commit(clone, "over HTTP")]
    cluster.push(clone)
    nodes.append(cluster.commit(clone, "over SSH"))
    over_ssh = ("--ssh", str(cluster.folder / "ssh"), f"ssh://x/{cluster.repository('x')}")
    cluster.push(clone, *over_ssh)
    return nodes


def shown(cluster: Cluster) -> str:
    """What the verbs and the endpoints of the installation say."""
    verbs = (
        ("status", "--json"),
        ("check", "--json"),
        ("trace", "x"),
        ("errors", "list"),
        ("destination", "list"),
        ("config", "check"),
    )
    said = [done.stdout + done.stderr for done in (cluster.cli(*words) for words in verbs)]
    base = cluster.about["status_url"].removesuffix("/status")
    for page in ("status", "metrics", "health"):
        with urllib.request.urlopen(f"{base}/{page}") as answer:
            said.append(answer.read().decode())
    return "\n".join(said)


def holders(cluster: Cluster, planted: str) -> list[str]:
    """The files of the installation that have a text, but for the log and the master's outboxes."""
    files = (file for file in cluster.folder.rglob("*") if file.is_file())
    meant = {"log.db", "log.db-wal", "ssh"}
    return [
        str(file.relative_to(cluster.folder))
        for file in files
        if planted.encode() in file.read_bytes()
        if file.name not in meant and not file.match("repos/master/*/.hg/store/outbox.*.log")
    ]


def decode_all(log: Log, folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    geo = write_geo(folder / "geo.mmdb")
    with decoding(log, settings_in(folder, geoip=str(geo))):
        settled(log)
    return [json.loads(record.value or b"") for record in records(log, "decoded")]


def test_connections_reach_the_decoder_and_nothing_that_is_shown(tmp_path: Path) -> None:
    cluster = prepare(tmp_path / "cluster")
    with cluster, open_log(cluster.log_url, creates=True) as log:
        nodes = push_twice(cluster)
        eventually(lambda: len(cluster.lines()) == 3, "the public messages")
        eventually(lambda: len(records(log, "raw")) == 2, "both raw messages")
        decoded = decode_all(log, tmp_path / "decoder")
        stored = b"".join(file.read_bytes() for file in cluster.folder.glob("log.db*") if file.is_file())
        everything = shown(cluster) + json.dumps(decoded) + repr(rejects(log))
    assert [each["changesetID"] for each in decoded] == nodes
    assert [each["normalized_country_code"] for each in decoded] == ["??", "DE"]
    assert [each["metadata"].get("user_agent", {}).get("browser") for each in decoded] == ["Mercurial", None]
    for planted in PLANTED:
        assert planted.encode() in stored  # else nothing was planted
        assert planted not in everything
        assert not holders(cluster, planted)
