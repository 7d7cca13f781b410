# SPDX-License-Identifier: GPL-2.0-or-later
"""One machine after the other is lost under pushes, on three brokers: nothing recorded is lost, and consumers see no gap.

Lost are the machines of the aggregator and of the notifier that work, a broker, a mirror, and then the master. Each aggregator and
notifier is alone in namespaces of its own, so that no other process sees it end. VCSREPLICATOR_TEST_PUSHES=1000 pushes as often, at
5 a second over 20 repositories.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import STATE, Log
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.installation import PATIENCE, Installation, kill_all
from testing.builders.load import create
from testing.checks import agreement, checker
from testing.checks.lines import announced, told_in_order
from testing.services.guard import descendants
from testing.services.kafka.cluster import KafkaCluster
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PUSHES = int(os.environ.get("VCSREPLICATOR_TEST_PUSHES", "60"))
REPOSITORIES, PER_SECOND = (20, 5.0) if PUSHES >= 1000 else (3, 1.0)
LOSSES = 6

# Seconds without notices that the loss of a service may cost: `takeover-after`, and what the other one needs to begin.
TAKEOVER = 15.0


@pytest.mark.timeout(1800)
def test_whatever_machine_is_lost_each_recorded_push_is_told_in_order(
    tmp_path: Path, told: Callable[[object], None]
) -> None:
    with KafkaCluster() as kafka, open_log(kafka.url, creates=True) as log:
        log.create(checker.remembering_topics())
        here = Installation(kafka, tmp_path, pushes=PUSHES, repositories=REPOSITORIES, per_second=PER_SECOND)
        with here.cluster as cluster:
            gaps = lose_each(here, log)
            agreement.settle(cluster, log, here.names, timeout=PATIENCE)
            recorded = [each for each in here.load.accepted if each.is_recorded]
            eventually(lambda: not announced(cluster.lines(), recorded), "all is told", timeout=PATIENCE)
            cluster.kill("aggregator-2", "notifier-2")  # as a request to stop does not reach them
            report = checker.check(checker.history(log))
            problems, repeats = told_in_order(cluster.lines())
            everywhere = [("-R", cluster.repository(name), "log", "--hidden", "-T", "{node} ") for name in here.names]
            present = {node for words in everywhere for node in cluster.hg(*words, on_master=True).split()}
            with agreement.Examiner(cluster) as examiner:
                problems += [each for name in here.names for each in examiner.disagreements(name)]
    told(f"{len(here.load.accepted)} pushes, {len(recorded)} recorded, {report.events} events, {repeats} lines again")
    told("; ".join(f"{what}: {seconds:.1f} s" for what, seconds in gaps.items()))
    assert report.violations + problems == []
    assert {each.head for each in recorded} <= present
    assert len(recorded) > len(here.load.accepted) / 2
    assert max(gaps["aggregator"], gaps["notifier"]) < TAKEOVER


def lose_each(here: Installation, log: Log) -> dict[str, float]:
    """Lose each machine under pushes; the seconds without messages of each loss."""
    cluster, gap = here.cluster, here.consumer.gap
    create(cluster, [*here.names, "deleted-2"])
    gaps = {}
    cluster.start(*here.prepare(2))
    with here.pushing():
        here.wait_for_pushes(1 / LOSSES)
        for part, role in enumerate(("aggregator", "notifier"), 2):
            gaps[role] = gap(here.lose(f"{role}-1", folder=cluster.folder / f"machines/{role}-1"))
            here.wait_for_pushes(part / LOSSES)
        here.act()
        broker, since = here.kafka.brokers[here.kafka.leader(STATE)], time.monotonic()
        broker.kill()
        gaps["broker"] = gap(since)
        broker.start()
        here.wait_for_pushes(4 / LOSSES)
        since = here.lose("mirror-beta", "web-beta", folder=cluster.folder / "repos/beta")
        here.run("roster", "deactivate", "beta", "--yes")
        gaps["mirror"] = gap(since)
        here.fill_again("beta", log)
        here.wait_for_pushes(5 / LOSSES)
        since = here.lose("relay", "web-master", folder=cluster.master_root)
        for pusher in here.pushers:
            kill_all(descendants(pusher.developer.pid) if pusher.developer.pid else [])
        begun = here.promote(log)
        gaps["master"] = gap(since)
        gaps["master, from the command"] = gaps["master"] - (begun - since)
    return gaps
