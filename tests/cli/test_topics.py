# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator topics check` names each difference with the command that fixes it, on the real logs."""

import json
import re
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.kafka.broker import Broker
from hgext.vcsreplicator.log.kafka.comparison import _write_reassignment
from hgext.vcsreplicator.log.kafka.options import parse
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.clock import DAY
from notifier.messages.raw import raw_topic
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@dataclass
class Checked:
    """A log with its topics, and what the verb says of it."""

    config: Path
    url: str

    def topics(self, *words: str) -> Result:
        return CliRunner().invoke(program, ["topics", *words, "--config", str(self.config)], catch_exceptions=False)

    def differences(self, *words: str) -> dict[str, list[str]]:
        """Settings that differ, by topic."""
        found = json.loads(self.topics("check", "--json", *words).output)["topics"]
        named = {each["name"]: [one["setting"] for one in each["differences"]] for each in found}
        return {name: settings for name, settings in named.items() if settings}

    def remedies(self) -> list[str]:
        return list(json.loads(self.topics("check", "--json").output)["remedies"])


def a_log(folder: Path, url: str) -> Checked:
    (folder / "x.toml").write_text(f'log = "{url}"\n')
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=3))
    return Checked(folder / "x.toml", url)


@pytest.fixture
def embedded(tmp_path: Path) -> Checked:
    return a_log(tmp_path, f"sqlite://{tmp_path}/log.db")


@pytest.fixture
def on_kafka(kafka: Kafka, unique_name: str, tmp_path: Path) -> Checked:
    return a_log(tmp_path, f"{kafka.url}?topic-prefix={unique_name}.&min-insync-replicas=1")


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.services)])
def checked(request: pytest.FixtureRequest) -> Checked:
    made: Checked = request.getfixturevalue("embedded" if request.param == "sqlite" else "on_kafka")
    return made


def test_topics_as_they_were_created_are_as_needed(checked: Checked) -> None:
    done = checked.topics("check")
    assert done.exit_code == 0, done.output
    assert [line.split()[-1] for line in done.output.splitlines()[1:]] == ["no"] * len(topics())


def test_topics_of_edge_and_decoder_are_listed_once_they_are_made(embedded: Checked) -> None:
    with embedded.config.open("a") as file:
        file.write(
            '[edge]\nlisten = "127.0.0.1:8081"\n[decode]\noutputs = { "a.b" = "log:other", "c.d" = "file:/x" }\n'
        )

    def listed() -> set[str]:
        return {row["topic"] for row in json.loads(embedded.topics("list", "--json").output)}

    assert listed() == {topic.name for topic in topics()}
    assert embedded.topics("check").exit_code == 0
    with open_log(embedded.url, creates=True) as log:
        log.create([raw_topic("raw"), replace(raw_topic("other"), retention=DAY)])
    assert listed() == {*(topic.name for topic in topics()), "raw", "other"}
    assert embedded.differences() == {"other": ["retention"]}


def test_another_retention_is_as_needed_if_it_is_asked_for(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/log.db"
    (tmp_path / "x.toml").write_text(f'log = "{url}"\n')
    checked = Checked(tmp_path / "x.toml", url)
    assert checked.topics("create", "--retention", "7").exit_code == 0
    assert checked.topics("check", "--retention", "7").exit_code == 0
    assert checked.topics("check", "--retention", "6").exit_code == 1
    assert checked.topics("check", "--retention", "8").exit_code == 2


def test_missing_topics_are_created_by_the_command_that_is_shown(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/log.db"
    checked = a_log(tmp_path, url)
    with closing(sqlite3.connect(tmp_path / "log.db")) as database, database:
        database.execute("DELETE FROM streams WHERE topic = (SELECT id FROM topics WHERE name = 'services')")
        database.execute("DELETE FROM topics WHERE name = 'services'")
    done = checked.topics("check")
    assert done.exit_code == 2
    assert "missing" in done.output
    command = done.output.splitlines()[-1]
    assert command == "vcsreplicator topics create --partitions 3 --retention 30"
    assert checked.topics(*command.split()[2:]).exit_code == 0
    assert checked.topics("check").exit_code == 0


def test_another_number_of_partitions_is_named_and_has_no_command(checked: Checked) -> None:
    assert checked.differences("--partitions", "4") == {"events": ["partitions"]}
    done = checked.topics("check", "--partitions", "4")
    assert done.exit_code == 2
    assert "fixed for life" in done.output.splitlines()[-1]


def test_a_retention_in_the_embedded_log_is_mended_as_shown(embedded: Checked) -> None:
    with closing(sqlite3.connect(embedded.config.with_name("log.db"))) as database, database:
        database.execute("UPDATE topics SET retention = 60 WHERE name IN ('events', 'state')")
    assert embedded.topics("check").exit_code == 2
    assert embedded.differences() == {"events": ["retention"], "state": ["retention"]}
    for command in embedded.remedies():
        subprocess.run(command, shell=True, check=True)
    assert embedded.topics("check").exit_code == 0


def test_a_topic_of_the_embedded_log_that_is_not_kept_by_key_is_named(embedded: Checked) -> None:
    with closing(sqlite3.connect(embedded.config.with_name("log.db"))) as database, database:
        database.execute("UPDATE topics SET compacted = 0 WHERE name = 'state'")
    assert embedded.topics("check").exit_code == 2
    assert embedded.differences() == {"state": ["compacted"]}
    assert "compacted is fixed for life" in embedded.remedies()[0]


@pytest.fixture
def alter(on_kafka: Checked, kafka: Kafka) -> Callable[[str, dict[str, str]], None]:
    """Changes settings of a topic, as Kafka's tool does."""
    return lambda name, settings: kafka.alter(parse(on_kafka.url).prefix + name, settings)


@pytest.mark.sample(2)
@pytest.mark.services
@pytest.mark.parametrize(
    ("name", "changed", "code"),
    [
        ("state", {"cleanup.policy": "delete"}, 2),
        ("events", {"retention.ms": "60000"}, 2),
        ("events", {"retention.ms": "-1"}, 1),
        ("events", {"retention.bytes": "1000000"}, 2),
        ("notices", {"max.message.bytes": "1000"}, 2),
        ("notices", {"max.message.bytes": "99000000"}, 0),
        ("acks", {"segment.bytes": "1073741824"}, 1),
        ("acks", {"segment.bytes": "1048576"}, 0),
        ("acks", {"retention.ms": "60000"}, 0),
        ("events", {"unclean.leader.election.enable": "true"}, 2),
        ("events", {"message.timestamp.type": "CreateTime", "compression.type": "producer"}, 2),
    ],
)
def test_a_setting_on_kafka_is_judged_and_mended_as_shown(
    on_kafka: Checked, alter: Callable[[str, dict[str, str]], None], name: str, changed: dict[str, str], code: int
) -> None:
    alter(name, changed)
    done = on_kafka.topics("check")
    assert done.exit_code == code, done.output
    assert sorted(on_kafka.differences().get(name, [])) == (sorted(changed) if code else [])
    for command in on_kafka.remedies():
        words = command.split()
        assert words[:3] == ["kafka-configs.sh", "--bootstrap-server", ",".join(parse(on_kafka.url).servers)]
        assert words[words.index("--entity-name") + 1] == parse(on_kafka.url).prefix + name
        alter(name, dict(pair.split("=") for pair in words[-1].split(",")))
    assert on_kafka.topics("check").exit_code == 0


@pytest.mark.services
def test_check_names_at_once_what_endangers_the_log(
    on_kafka: Checked, alter: Callable[[str, dict[str, str]], None]
) -> None:
    options = parse(on_kafka.url)

    def say() -> str:
        return CliRunner().invoke(program, ["check", "--config", str(on_kafka.config)]).output

    assert "topic" not in say()
    alter("roster", {"cleanup.policy": "delete", "retention.ms": "1000"})
    admin = KafkaAdminClient(bootstrap_servers=list(options.servers))
    admin.delete_topics([options.prefix + "events"])
    admin.create_partitions({options.prefix + "acks": 2})
    admin.close()
    eventually(lambda: "the log lacks the topic events; run (with the --partitions of its first" in say())
    assert "topic roster: cleanup.policy is delete, must be compact" in (said := say())
    assert f"--entity-name {options.prefix}roster --add-config cleanup.policy=compact" in said
    alter("notices", {"retention.ms": "1000"})
    eventually(lambda: "topic notices: keeps records for 1 s" in (said := say()) and "retention.ms=2592000000" in said)
    eventually(lambda: "note: more than one partition in topic acks: only partition 0 is used" in say())


@pytest.mark.services
def test_fewer_replicas_than_the_url_asks_for_are_named(on_kafka: Checked) -> None:
    text = on_kafka.config.read_text()
    on_kafka.config.write_text(text.replace("&min", "&replication-factor=3&min"))
    done = on_kafka.topics("check")
    assert done.exit_code == 2
    assert "replicas is 1, must be 3" in done.output
    assert "3 replicas need 3 brokers, this cluster has 1: add brokers first" in done.output


def test_new_replicas_are_spread_over_brokers_that_have_none() -> None:
    partitions = [{"partition_index": number, "replica_nodes": [1 + number % 2]} for number in range(3)]
    broker = Broker(parse("kafka://127.0.0.1:9092?topic-prefix=hg."))
    command = _write_reassignment(broker, {"name": "hg.events", "partitions": partitions}, 2, [1, 2, 3])
    plan: dict[str, Any] = json.loads(command.partition("'")[2].rpartition("'")[0])
    assert [each["replicas"] for each in plan["partitions"]] == [[1, 2], [2, 3], [1, 3]]
    assert command.endswith("--bootstrap-server 127.0.0.1:9092 --reassignment-json-file hg.events.json --execute")


@pytest.mark.services
def test_topics_of_others_are_not_looked_at(on_kafka: Checked, unique_name: str) -> None:
    options = parse(on_kafka.url)
    admin = KafkaAdminClient(bootstrap_servers=list(options.servers))
    admin.create_topics([NewTopic(f"other-{unique_name}", 7, 1)])
    admin.close()
    assert on_kafka.topics("check").exit_code == 0


@pytest.mark.parametrize("verb", ["create", "check"])
def test_the_help_names_every_topic_that_retention_applies_to(verb: str) -> None:
    done = CliRunner().invoke(program, ["topics", verb, "--help"])
    assert done.exit_code == 0
    text = done.output.partition("--retention")[2].partition("--")[0]
    assert set(re.findall(r"`([a-z-]+)`", " ".join(text.split()))) == {
        topic.name for topic in topics() if not topic.compacted
    }
