# SPDX-License-Identifier: GPL-2.0-or-later
"""kill -9 under load: what was answered with 200 is in the log, or on disk and reaches it after the next start."""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log.opening import open_log
from testing.builders.notifier.submitting import EdgeProcess, Load, body_of, log_away
from testing.faults import SEED, told_with_seed
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.hunt]

KILLS, ALL_KILLS = 3, 200
SIZE = 1000
# Seconds between the submissions of a connection while Kafka starts, which takes seconds under any load.
PAUSE = 0.01


class History:
    """What was answered over several lives of an edge, held against what its log has at the end."""

    def __init__(self, edge: EdgeProcess) -> None:
        self.edge = edge
        self.loads: list[Load] = []

    @contextlib.contextmanager
    def load(self, connections: int, pause: float = 0.0) -> Iterator[Load]:
        """A load in the background, which ends when the edge does."""
        first = self.loads[-1].sent if self.loads else 0
        load = Load(self.edge.port, first=first, connections=connections, size=SIZE, pause=pause)
        self.loads.append(load)
        thread = threading.Thread(target=load.run)
        thread.start()
        try:
            yield load
        finally:
            self.edge.kill()
            thread.join()

    def check(self) -> str:
        """Drain the queue, and hold the log against the answers."""
        self.edge.start()
        eventually(lambda: not list((self.edge.folder / "queue").glob("*.log")), "the queue is drained")
        assert self.edge.stop() == 0
        in_log = []
        for message in self.edge.taken():
            number = int(message.attributes["uri"].split("/")[-1][:8], 16)
            assert message.payload == body_of(number, b"x" * SIZE)
            in_log.append(number)
        answered = {number for load in self.loads for number in load.answered}
        lost = answered - set(in_log)
        assert not lost, f"{len(lost)} of {len(answered)} answered with 200 are lost, the first is {min(lost)}"
        assert {status for load in self.loads for status in load.others} <= {507}
        ends = [load.sent for load in self.loads]
        lives = [next(life for life, end in enumerate(ends) if number < end) for number in dict.fromkeys(in_log)]
        assert lives == sorted(lives)
        return f"{len(answered)} answered, {len(in_log)} in the log, {len(in_log) - len(set(in_log))} of them repeats"


def reach(load: Load, count: int) -> None:
    eventually(lambda: len(load.answered) >= count, f"{count} answers", every=0.001)


def kill_often(folder: Path, kills: int) -> str:
    chance = random.Random(f"{SEED}-edge")
    edge = EdgeProcess(folder, log_timeout=0.1, max_queue_bytes=16 * 1024 * 1024)
    open_log(edge.url, creates=True).close()
    history = History(edge)
    for _ in range(kills):
        edge.start()
        with history.load(connections=chance.choice((1, 4, 32))) as load, contextlib.ExitStack() as outage:
            outcome = chance.choice(("present", "away", "returns"))
            reach(load, chance.randrange(50))
            if outcome != "present":
                outage.enter_context(log_away(folder))
                reach(load, len(load.answered) + chance.randrange(400))
            if outcome == "returns":
                outage.close()
            reach(load, len(load.answered) + chance.randrange(200))
            threading.Event().wait(chance.random() * 0.05)
            edge.kill()
    return history.check()


def test_a_few_kills_lose_nothing_that_was_answered(tmp_path: Path, told: Callable[[object], None]) -> None:
    with told_with_seed("kills of the edge"):
        told(f"edge, {KILLS} kills: {kill_often(tmp_path, KILLS)}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_kills_lose_nothing_that_was_answered(tmp_path: Path, told: Callable[[object], None]) -> None:
    with told_with_seed("kills of the edge"):
        told(f"edge, {ALL_KILLS} kills: {kill_often(tmp_path, ALL_KILLS)}")


def test_an_outage_of_kafka_loses_nothing_over_a_kill(
    tmp_path: Path, own_service: Callable[[type[Kafka]], Kafka], told: Callable[[object], None]
) -> None:
    kafka = own_service(Kafka)
    edge = EdgeProcess(tmp_path, kafka.url, log_timeout=2)
    history = History(edge)
    edge.start()
    with history.load(connections=2, pause=PAUSE) as load:
        reach(load, 150)
        kafka.kill()
        reach(load, len(load.answered) + 150)
    edge.start()
    with history.load(connections=2, pause=PAUSE) as load:
        reach(load, 150)
        kafka.start()
        eventually(lambda: not list((tmp_path / "queue").glob("*.log")), "the queue is drained under load")
        reach(load, len(load.answered) + 150)
    told(f"edge, Kafka killed: {history.check()}")
