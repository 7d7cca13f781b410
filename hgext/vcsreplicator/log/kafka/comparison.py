# SPDX-License-Identifier: GPL-2.0-or-later
"""The differences of Kafka's topics from the needed ones, and what removes them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kafka.admin import ConfigResource

from .. import EVENTS, SINGLE, UNUSED, Topic, TopicComparison, TopicDifference
from .broker import OWNERS, Broker, topic_settings

# Settings that may exceed the needed value; in settings of neither set any difference counts.
_AT_LEAST = frozenset({"max.message.bytes", "delete.retention.ms", "min.insync.replicas"})
# Settings that may fall below the needed value.
_AT_MOST = frozenset({"segment.bytes", "segment.ms", "min.cleanable.dirty.ratio"})
# Ignored on compacted topics: Kafka applies them only where `cleanup.policy` has `delete`.
_OF_DELETION = frozenset({"retention.ms", "retention.bytes"})

_FIXED = "# the number of partitions is fixed for life: begin with another topic-prefix"

# A topic as Kafka describes it.
_Described = Mapping[str, Any]


def compare_topics(broker: Broker, wanted: Sequence[Topic]) -> list[TopicComparison]:
    """Compare the topics with the needed ones; change nothing.

    With those of an installation, the topic of transactors is there too if it is missing.
    """
    described, needed = broker.describe(), [topic.name for topic in wanted]
    missing = [name for name in (*needed, *((OWNERS,) if EVENTS in needed else ())) if name not in described]
    hidden = broker.find_hidden(missing) if missing else set[str]()
    resources = [ConfigResource("TOPIC", broker.full(topic.name)) for topic in wanted if topic.name in described]
    settings = broker.ask(
        "settings of the topics", lambda admin: admin.describe_configs(resources, config_filter="all").get("topic", {})
    )
    found = []
    for topic in wanted:
        if topic.name not in described:
            found.append(TopicComparison(name=topic.name, is_shown=topic.name not in hidden))
            continue
        shown = {name: each["value"] for name, each in settings.get(broker.full(topic.name), {}).items()}
        found.append(_compare_one(broker, topic, described[topic.name], shown))
    if OWNERS in missing and OWNERS not in hidden:
        found.append(TopicComparison(name=OWNERS))
    return found


def _compare_one(broker: Broker, topic: Topic, described: _Described, shown: Mapping[str, str]) -> TopicComparison:
    """Compare a topic; if its settings are not shown, only partitions and replicas."""
    partitions = described["partitions"]
    replicas = min((len(partition["replica_nodes"]) for partition in partitions), default=0)
    needed = broker.options.replication or replicas
    policy = shown.get("cleanup.policy")
    settings = list(_compare_settings(topic, shown, broker.options.in_sync)) if policy else []
    differences, remedies = list(settings), []
    if not topic.is_made_with(len(partitions)):
        counts = {"found": str(len(partitions)), "needed": str(topic.partitions)}
        is_must = topic.name not in SINGLE
        differences.append(TopicDifference(setting="partitions", is_must=is_must, **counts))
        remedies.append(_FIXED if is_must else f"# {described['name']}: {UNUSED}")
    if replicas < needed:
        counts = {"found": str(replicas), "needed": str(needed)}
        differences.append(TopicDifference(setting="replicas", is_must=True, **counts))
        cluster = broker.ask("list the brokers", lambda admin: admin.describe_cluster())
        brokers = sorted(each["broker_id"] for each in cluster["brokers"])
        remedies.append(_write_reassignment(broker, described, needed, brokers))
    if settings:
        changes = ",".join(f"{each.setting}={each.needed}" for each in settings)
        name = broker.full(topic.name)
        remedies.append(
            f"{_write_tool(broker, 'kafka-configs.sh')} --alter --entity-type topics --entity-name {name} --add-config {changes}"
        )
    kept = _parse_number(shown.get("retention.ms", "-1"))
    present = Topic(
        name=topic.name,
        partitions=len(partitions),
        compacted="compact" in policy if policy else topic.compacted,
        retention=None if "delete" not in (policy or "") or kept in (None, float("inf")) else kept / 1000,
    )
    return TopicComparison(
        name=topic.name,
        found=present,
        replicas=replicas,
        differences=tuple(differences),
        remedies=tuple(remedies),
        is_shown=policy is not None,
    )


def _compare_settings(topic: Topic, shown: Mapping[str, str], in_sync: int | None) -> Iterator[TopicDifference]:
    for setting, needed in topic_settings(topic, in_sync).items():
        found = shown.get(setting, "nothing")
        if found == needed or (topic.compacted and setting in _OF_DELETION):
            continue
        numbers = _parse_number(found), _parse_number(needed)
        less = None if numbers[0] is None or numbers[1] is None else numbers[0] < numbers[1]
        if (setting in _AT_LEAST and less is False) or (setting in _AT_MOST and less is True):
            continue
        is_must = setting not in _AT_MOST and not (setting == "retention.ms" and less is False)
        yield TopicDifference(setting=setting, found=found, needed=needed, is_must=is_must)


def _parse_number(text: str | None) -> float | None:
    """Return the number, infinity for -1 (no limit), None for another text."""
    try:
        return float("inf") if text == "-1" else float(text or "")
    except ValueError:
        return None


def _write_tool(broker: Broker, name: str) -> str:
    servers = ",".join(broker.options.servers)
    secured = broker.options.properties.get("security_protocol", "PLAINTEXT") != "PLAINTEXT"
    return f"{name} --bootstrap-server {servers}{' --command-config client.properties' if secured else ''}"


def _write_reassignment(broker: Broker, described: _Described, needed: int, brokers: Sequence[int]) -> str:
    """Return the command that gives each partition the needed replicas.

    The new ones are on brokers that have none of that partition. If there are too few brokers, it is a comment that says so.
    """
    if len(brokers) < needed:
        return f"# {needed} replicas need {needed} brokers, this cluster has {len(brokers)}: add brokers first"
    moves = []
    for partition in described["partitions"]:
        number, present = partition["partition_index"], list(partition["replica_nodes"])
        others = [brokers[(number + step) % len(brokers)] for step in range(len(brokers))]
        more = [each for each in others if each not in present]
        replicas = (present + more)[: max(needed, len(present))]
        moves.append({"topic": described["name"], "partition": number, "replicas": replicas})
    plan, file = json.dumps({"version": 1, "partitions": moves}), f"{described['name']}.json"
    tool = _write_tool(broker, "kafka-reassign-partitions.sh")
    return f"echo '{plan}' > {file} && {tool} --reassignment-json-file {file} --execute"
