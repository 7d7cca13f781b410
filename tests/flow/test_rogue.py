# SPDX-License-Identifier: GPL-2.0-or-later
"""A program with one mirror's rights speaks for another one: an installation whose mirrors have keys believes nothing of it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import ACKS, Log, NewRecord
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.records import Ack
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.sealing import roster_of
from testing.builders.cluster import Cluster
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.services)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[Cluster]:
    """A running installation whose aggregator has a key."""
    options = []
    if request.param == "kafka":
        options = ["--log", f"{request.getfixturevalue('kafka').url}?topic-prefix={unique_name}."]
    prepared = Cluster(tmp_path, *options)
    text = prepared.config.read_text()
    prepared.config.write_text(text.replace("[aggregator]\n", f'[aggregator]\nkey = "{tmp_path}/aggregator.key"\n'))
    with prepared as running:
        yield running


def run(cluster: Cluster, *words: str) -> str:
    done = cluster.cli(*words)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout.strip()


def give_key(cluster: Cluster, name: str, *options: str) -> str:
    key = run(cluster, "key", name, *options)
    run(cluster, "roster", "add-key", name, key)
    return key


def announced(cluster: Cluster) -> set[str]:
    return {head for line in cluster.lines() for head in line["data"].get("heads", ())}


def pushed(cluster: Cluster, clone: Path, text: str) -> str:
    node = cluster.commit(clone, text)
    cluster.push(clone)
    return node


def findings(cluster: Cluster) -> str:
    return "\n".join(each["text"] for each in json.loads(cluster.cli("status", "--json").stdout)["findings"])


def levels(log: Log, mirror: str) -> dict[str, Ack]:
    found = {}
    for (_, key), record in read_table(log, ACKS).records.items():
        if key.startswith(f"{mirror}/"):
            found[key] = from_json(Ack, record.value or b"")
    return found


@pytest.mark.sample(1)
def test_a_rogue_mirror_announces_nothing_for_another_one_that_is_down(cluster: Cluster) -> None:
    clone = cluster.create("x")
    first = pushed(cluster, clone, "before any key")
    eventually(lambda: first in announced(cluster), "announced by mirrors without keys")
    notes = json.loads(cluster.cli("status", "--json").stdout)["notes"]
    assert any("acks of alpha, beta count without a seal" in note for note in notes)
    for name in ("alpha", "beta"):
        give_key(cluster, name)
    run(cluster, "roster", "require-keys", "yes", "--yes")
    second = pushed(cluster, clone, "with keys")
    eventually(lambda: second in announced(cluster), "announced by mirrors with keys")
    assert "OK" in run(cluster, "check")
    cluster.stop("mirror-beta")
    third = pushed(cluster, clone, "while beta is down")
    with open_log(cluster.log_url) as log:
        eventually(lambda: max(ack.applied for ack in levels(log, "alpha").values()) == 4, "alpha has applied it")
        (theirs,) = levels(log, "alpha").values()
        forged = to_json(replace(theirs, mirror="beta", serving=theirs.applied))
        log.append([NewRecord(topic=ACKS, key=f"beta/{theirs.repository}", value=forged)])
        eventually(lambda: "foreign acks beta: another program wrote records" in findings(cluster), "check names it")
        assert "not sealed by a key" in run(cluster, "errors", "list")
        assert third not in announced(cluster)
        cluster.stop("aggregator")
        cluster.start("aggregator")
        eventually(lambda: "foreign acks beta" in findings(cluster), "also after a restart")
        assert third not in announced(cluster)
        cluster.start("mirror-beta")
        eventually(lambda: third in announced(cluster), "beta itself has applied it")
        assert roster_of(log).requires_keys


@pytest.mark.sample(1, keep=("sqlite",))
def test_keys_are_changed_while_pushes_go_on(cluster: Cluster) -> None:
    clone = cluster.create("x")
    old = {name: give_key(cluster, name) for name in ("alpha", "beta")}
    for name, key in old.items():
        new = give_key(cluster, name, "--new")
        node = pushed(cluster, clone, f"two keys of {name}")
        eventually(lambda node=node: node in announced(cluster), "announced with two keys")  # type: ignore[misc]
        refused = cluster.cli("roster", "remove-key", name, key)
        assert refused.returncode == 2
        assert f"what {name} sealed with this key only would not count any more; add --yes" in refused.stderr
        run(cluster, "roster", "remove-key", name, key, "--yes")
        node = pushed(cluster, clone, f"new key of {name}")
        eventually(lambda node=node: node in announced(cluster), "announced with the new key")  # type: ignore[misc]
        assert run(cluster, "key", name) == new
    run(cluster, "key", "aggregator", "--new")
    cluster.stop("aggregator")
    cluster.start("aggregator")
    node = pushed(cluster, clone, "new key of the aggregator")
    eventually(lambda: node in announced(cluster), "announced with the aggregator's new key")
    assert not findings(cluster)
    with open_log(cluster.log_url) as log:
        assert len(roster_of(log).aggregator_keys or ()) == 2
