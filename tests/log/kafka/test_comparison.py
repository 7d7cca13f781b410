# SPDX-License-Identifier: GPL-2.0-or-later
"""Commands that fix topics on Kafka."""

import json

from hgext.vcsreplicator.log.kafka.broker import Broker
from hgext.vcsreplicator.log.kafka.comparison import _write_reassignment
from hgext.vcsreplicator.log.kafka.options import parse


def test_new_replicas_take_none_from_a_partition_that_has_more() -> None:
    partitions = [{"partition_index": 0, "replica_nodes": [1, 2, 3]}, {"partition_index": 1, "replica_nodes": [1]}]
    broker = Broker(parse("kafka://127.0.0.1:9092"))
    command = _write_reassignment(broker, {"name": "events", "partitions": partitions}, 2, [1, 2, 3])
    moves = json.loads(command.split("'")[1])["partitions"]
    assert [len(move["replicas"]) for move in moves] == [3, 2]
