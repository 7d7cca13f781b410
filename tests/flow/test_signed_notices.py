# SPDX-License-Identifier: GPL-2.0-or-later
"""An installation that signs its notices: what a receiver gets from a file and from a broker verifies, also after kills."""

from pathlib import Path
from typing import Any

import kombu
import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli.verbs import program
from testing.builders.cluster import Cluster
from testing.waiting import eventually
from tests.flow.test_rogue import announced, give_key, pushed, run

pytestmark = [pytest.mark.processes, pytest.mark.services]

_kombu: Any = kombu  # has no types


class Listener:
    """A queue that is bound to an exchange, and the header `signed` of each message that it got."""

    def __init__(self, url: str, exchange: str) -> None:
        self._connection = _kombu.Connection(url)
        bound = _kombu.Queue("", _kombu.Exchange(exchange, type="topic", passive=True), routing_key="#", exclusive=True)
        self._consumer = _kombu.Consumer(self._connection, [bound], callbacks=[self._take], no_ack=True)
        self._consumer.consume()
        self.signed: list[str] = []

    def _take(self, body: Any, message: Any) -> None:
        self.signed.append(message.headers["signed"])

    def listen(self) -> list[str]:
        try:
            while True:
                self._connection.drain_events(timeout=0.05)
        except TimeoutError:
            return self.signed

    def close(self) -> None:
        self._connection.release()


def verify(text: str, *keys: str) -> Result:
    words = [word for key in keys for word in ("--key", key)]
    return CliRunner().invoke(program, ["verify-notice", *words], input=text)


def test_every_way_brings_notices_that_verify_and_others_do_not(rabbitmq: Any, tmp_path: Path) -> None:
    broker = rabbitmq.vhost()
    prepared = Cluster(tmp_path, "--pulse", broker)
    signing = f'[aggregator]\nkey = "{tmp_path}/aggregator.key"\nsign = true\n'
    prepared.config.write_text(prepared.config.read_text().replace("[aggregator]\n", signing))
    with prepared as cluster:
        for name in ("alpha", "beta"):
            give_key(cluster, name)
        keys = [run(cluster, "key", "aggregator", "--signing")]
        keys += [f"{name}={run(cluster, 'key', name, '--signing')}" for name in ("alpha", "beta")]
        listener = Listener(broker, cluster.about["pulse"]["exchange_v2"])
        clone = cluster.create("x")
        for number in range(4):
            node = pushed(cluster, clone, f"push {number}")
            if number % 2:  # most notices are written between two kills
                cluster.kill("aggregator")
                cluster.start("aggregator")
        eventually(lambda: node in announced(cluster), "everything is announced")
        lines = [line for line in cluster.lines() if line["type"] == "changegroup.1"]
        eventually(lambda: len(set(listener.listen())) == len(cluster.lines()), "the broker has the same messages")
        listener.close()
        file = cluster.notices.read_text()
    assert sorted({line["sequence"] for line in lines}) == [2, 3, 4, 5]
    assert {line["signed"] for line in lines} <= set(listener.signed)
    done = verify(file, *keys)
    assert done.exit_code == 0, done.output
    assert done.output.count("served it by") == done.output.count(", signed by") - file.count("\n") > 0
    assert verify("\n".join(listener.signed), *keys).exit_code == 0
    changed = verify(file.replace(node, "0" * 40), *keys)
    assert changed.exit_code == 2
    assert "SHA-256 of the heads of the message" in changed.output
    assert "not signed by a key that was given" in verify(file, keys[1].partition("=")[2]).output
