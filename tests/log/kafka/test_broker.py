# SPDX-License-Identifier: GPL-2.0-or-later
"""The topics of brokers that an administrator has changed; no broker answers here."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from hgext.vcsreplicator.log import ACKS, EVENTS, OPEN, TOPIC_NAMES, NewRecord, topics
from hgext.vcsreplicator.log.kafka.broker import OWNERS, Broker, topic_settings
from hgext.vcsreplicator.log.kafka.comparison import compare_topics
from hgext.vcsreplicator.log.kafka.options import parse


class ToldBroker(Broker):
    """Answers by its members: topic → partitions, and settings that differ from the needed ones."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__(parse("kafka://127.0.0.1:9092?topic-prefix=hg."))
        self.counts, self.hidden, self.changed = counts, set[str](), dict[str, str | None]()

    def find_hidden(self, names: Sequence[str]) -> set[str]:
        return set(names) & self.hidden

    def ask(self, doing: str, question: Callable[[Any], Any]) -> Any:
        settings = {self.full(topic.name): topic_settings(topic, None) | self.changed for topic in topics()}
        return question(
            Mock(
                describe_topics=lambda: [
                    {
                        "name": self.full(name),
                        "error_code": 0,
                        "partitions": [{"partition_index": number, "replica_nodes": [1]} for number in range(count)],
                    }
                    for name, count in self.counts.items()
                ],
                describe_configs=lambda resources, config_filter: {
                    "topic": {
                        each.name: {key: {"value": value} for key, value in settings[each.name].items()}
                        for each in resources
                    }
                },
                describe_cluster=lambda: {"brokers": [{"broker_id": 1}]},
            )
        )


def test_a_topic_of_another_program_without_a_leader_stops_no_transactor() -> None:
    """Its broker may stay away for good; where ours have no leader, nothing is known."""
    broker, asked = Broker(parse("kafka://127.0.0.1:9092")), list[set[str]]()
    counts = [*make_counts().items(), ("another", 2)]
    told = Mock(
        describe_topics=lambda: [
            {
                "name": name,
                "error_code": 0,
                "partitions": [{"partition_index": number, "leader_id": -1 + number} for number in range(count)],
            }
            for name, count in counts
        ]
    )

    def answer(_: object, partitions: Any, *question: object) -> Any:
        asked.append({f"{each.topic} {each.partition}" for each in partitions})
        return {partition: Mock(offset=7) for partition in partitions}

    told._manager.run = answer
    broker.ask = lambda doing, question: question(told)  # type: ignore[method-assign]
    assert broker.find_open(1) == []
    ours = {f"{name} 0" for name in (*TOPIC_NAMES, OWNERS) if name not in {EVENTS, *OPEN}}
    assert asked == [{*ours, "another 1"}] * 2


def make_counts(**changed: int) -> dict[str, int]:
    return {**{topic.name: topic.partitions for topic in topics()}, OWNERS: 1, **changed}


def test_only_partition_0_of_other_topics_is_used_though_more_exist() -> None:
    broker = ToldBroker({name: count + 4 for name, count in make_counts().items()})
    for topic in (*topics(partitions=20), OWNERS):
        name = topic if isinstance(topic, str) else topic.name
        assert broker.partitions(name) == (20 if name == EVENTS else 1)
    assert {broker.plan(NewRecord(topic=ACKS, key=key, value=b"x"))["partition"] for key in "abcdef"} == {0}
    assert broker.create(topics(partitions=20)) == []


def test_partitions_that_are_not_used_are_no_danger_to_records() -> None:
    compared = compare_topics(ToldBroker(make_counts(acks=2, events=20)), topics())
    [events, acks] = [each for each in compared if each.differences]
    assert [(each.setting, each.is_must) for each in events.differences] == [("partitions", True)]
    assert [(each.setting, each.is_must) for each in acks.differences] == [("partitions", False)]
    assert acks.remedies == ("# hg.acks: only partition 0 is used, so the others do no harm; Kafka cannot remove them",)


def test_a_missing_topic_is_told_from_a_hidden_one() -> None:
    broker = ToldBroker({name: count for name, count in make_counts().items() if name not in (ACKS, OWNERS)})
    compared = {each.name: each for each in compare_topics(broker, topics()) if each.found is None}
    assert {name: each.is_shown for name, each in compared.items()} == {ACKS: True, OWNERS: True}
    broker.hidden = {ACKS, OWNERS}
    compared = {each.name: each for each in compare_topics(broker, topics()) if each.found is None}
    assert {name: each.is_shown for name, each in compared.items()} == {ACKS: False}


@pytest.mark.parametrize("value", ["many", "\u00b2", "", None])
def test_a_setting_of_kafka_that_is_no_number_is_a_difference(value: str | None) -> None:
    broker = ToldBroker(make_counts())
    broker.changed = dict.fromkeys(("max.message.bytes", "retention.ms"), value)
    [events] = [each for each in compare_topics(broker, topics()) if each.name == EVENTS]
    assert {each.setting: each.found for each in events.differences} == broker.changed
    assert broker.largest(EVENTS) is None
