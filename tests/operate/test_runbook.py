# SPDX-License-Identifier: GPL-2.0-or-later
"""Each entry of the runbook is provoked on real services, and repaired by its commands as they stand on the page."""

import os
import random
from collections.abc import Iterator

import pytest

from hgext.vcsreplicator.demo.ports import free_port
from testing.builders.cluster import Cluster
from testing.builders.notifier.endpoint import Endpoint
from testing.builders.notifier.notifying import HOOKS, SUBSCRIPTION

from .page import OnCall
from .provocations import PROVOCATIONS

pytestmark = pytest.mark.processes

# How many of them `make test` provokes.
SAMPLE = 1
LATE = """
[notifier.late]
type = "jsonlines"
file = "{folder}/late/notices.jsonl"
"""


@pytest.fixture(scope="module")
def on_call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCall]:
    folder = tmp_path_factory.mktemp("runbook")
    with Endpoint() as endpoint:
        cluster = Cluster(folder)
        (folder / "late").mkdir()
        text = cluster.config.read_text()
        text = text.replace("[relay]\n", "[relay]\nscan = 1\n").replace("[aggregator]\n", "[aggregator]\nsilence = 5\n")
        relay, notifier = free_port(), free_port()
        text = text.replace("[listen]\n", f'[listen]\nrelay = "127.0.0.1:{relay}"\nnotifier = "127.0.0.1:{notifier}"\n')
        destinations = (LATE + HOOKS + "ladder = [0, 0.2]\n" + SUBSCRIPTION).format(folder=folder, url=endpoint.url)
        cluster.config.write_text(text.replace("[listen]\n", f"{destinations}\n[listen]\n"))
        # Pushes leave sending to the relay.
        hgrc = folder / "master.hgrc"
        hgrc.write_text("\n".join(line for line in hgrc.read_text().splitlines() if not line.startswith("log =")))
        with cluster:
            on_call = OnCall(cluster, endpoint)
            with on_call.opened:
                yield on_call


def provoke(on_call: OnCall, name: str) -> None:
    with on_call.entry(name) as entry:
        try:
            PROVOCATIONS[name](on_call, entry)
        except BaseException as error:
            error.add_note(f"entry {name}\n{on_call.cluster.account()}")
            on_call.recover()
            raise


def test_a_few_entries_repair_what_they_describe(on_call: OnCall) -> None:
    chosen = random.Random(os.environ.get("VCSREPLICATOR_TEST_SEED")).sample(sorted(PROVOCATIONS), SAMPLE)
    for name in chosen:
        provoke(on_call, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVOCATIONS)
def test_an_entry_repairs_what_it_describes(on_call: OnCall, name: str) -> None:
    provoke(on_call, name)


@pytest.mark.slow
def test_an_administrator_reads_that_a_transaction_is_rolled_back(on_call: OnCall) -> None:
    name = on_call.repository()
    on_call.cluster.stop("relay")  # which would do it itself
    folder = on_call.cluster.repository(name)
    on_call.cluster.hg(
        "-R", folder, "bookmark", "half", "--config", "hooks.pretxnclose=kill -9 $PPID", on_master=True, check=False
    )
    assert (folder / ".hg/store/journal").exists()
    said = on_call.cluster.hg("-R", folder, "bookmark", "whole", on_master=True)
    assert "rolling back interrupted transaction" in said
    assert "half" not in on_call.cluster.hg("-R", folder, "bookmarks", on_master=True)
    on_call.push(name)
    on_call.cluster.start("relay")
    on_call.wait_announced(name)
