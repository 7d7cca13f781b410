# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tools say of an installation in which one thing after another is broken: real services, the embedded log."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.words.errors import ReplicationError
from testing.builders.cluster import Cluster
from testing.builders.notifier.endpoint import Endpoint, Reply
from testing.builders.notifier.notifying import HOOKS, SUBSCRIPTION
from testing.waiting import eventually

pytestmark = pytest.mark.processes

SECRET = """
[notifier.secret]
type = "pulse"
url = "amqp://guest@127.0.0.1:1/"
password = {{ file = "{folder}/absent" }}
exchange = "exchange/a/b"
stream = "v2"
"""


def say(config: Path, *words: str) -> tuple[int, str]:
    """Exit code and output of a verb, or what it refuses."""
    result = CliRunner().invoke(program, [*words, "--config", str(config)])
    refusal = str(result.exception) if isinstance(result.exception, ReplicationError) else ""
    return result.exit_code, result.output + refusal


def found(config: Path, *words: str) -> str:
    """All findings of `check`, one a line."""
    code, output = say(config, "check", "--json", "--patience", "1", *words)
    assert code in (0, 1, 2), output
    findings = json.loads(output)["findings"]
    assert code == max((finding["level"] for finding in findings), default=0)
    return "\n".join(finding["text"] for finding in findings)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def prepare(folder: Path, url: str) -> Cluster:
    """A cluster that sees trouble soon, and whose pushes leave sending to the relay."""
    cluster = Cluster(folder)
    text = cluster.config.read_text()
    text = text.replace("[relay]\n", "[relay]\nscan = 1\n").replace("[aggregator]\n", "[aggregator]\nsilence = 8\n")
    cluster.config.write_text(text + (HOOKS + SUBSCRIPTION + SECRET).format(folder=folder, url=url))
    hgrc = folder / "master.hgrc"
    hgrc.write_text("\n".join(line for line in hgrc.read_text().splitlines() if not line.startswith("log =")))
    return cluster


def elsewhere(cluster: Cluster) -> Path:
    """The services' file on a machine that has none of the repositories."""
    file = cluster.folder / "elsewhere.toml"
    file.write_text(cluster.config.read_text().replace(str(cluster.master_root), "/nowhere"))
    return file


def test_whatever_is_broken_is_named_with_the_time_and_the_next_step(tmp_path: Path, endpoint: Endpoint) -> None:
    endpoint.reply = lambda request: Reply(status=500)
    with prepare(tmp_path, endpoint.url) as cluster:
        monitor = elsewhere(cluster)
        for name in ("red", "gone"):
            cluster.create(name)
            commit_and_push(cluster, name, "one")
        assert_that_failing_destinations_are_named(cluster, monitor)
        assert_that_a_removed_repository_is_named_until_it_is_forgotten(cluster, monitor)
        assert_that_held_notices_are_named(cluster, monitor)
        assert_that_a_silent_relay_is_named_until_it_starts(cluster, monitor)


def commit_and_push(cluster: Cluster, name: str, text: str) -> str:
    """What the pusher reads."""
    clone = cluster.folder / "work" / name
    cluster.commit(clone, text)
    return cluster.push(clone)


def assert_that_failing_destinations_are_named(cluster: Cluster, monitor: Path) -> None:
    hook = eventually(lambda: (text := found(monitor)) and "subscription ci of hooks is failing" in text and text)
    assert "last: status 500" in hook
    assert "UTC)" in hook
    assert "destination secret is failing" in found(monitor)
    assert "absent" in found(monitor)
    queued = "hooks: 1 queued: vcsreplicator deliveries list --destination hooks\n"
    assert queued in say(cluster.config, "trace", "red", "--push", "1")[1]
    listed = say(cluster.config, "destination", "list")[1]
    assert "failing since 2" in listed
    assert "subscription ci of hooks is failing" in listed
    rows = say(monitor, "status")[1]
    assert "relay hg://master.example" in rows
    assert "subscription ci" in rows


def assert_that_a_removed_repository_is_named_until_it_is_forgotten(cluster: Cluster, monitor: Path) -> None:
    config, red = cluster.config, cluster.repository("red")
    shutil.rmtree(cluster.repository("gone"))
    text = eventually(
        lambda: (text := found(monitor)) and "repository gone is not on the master any more" in text and text
    )
    assert "vcsreplicator forget gone --yes" in text
    assert "run this on the master's machine" in say(monitor, "forget", "gone", "--yes")[1]
    assert "there is" in say(config, "forget", "red", "--yes")[1]
    assert "would be deleted on all mirrors" in say(config, "forget", "gone")[1]
    aside = red.rename(cluster.folder / "red")
    code, text = say(config, "forget", "gone", "--yes")
    assert code
    assert f"{red.parent}: is empty, 2 repositories were there: is its file system mounted?" in text
    assert "would be deleted on all mirrors" in say(config, "forget", "gone", "--mounted")[1]
    aside.rename(red)
    assert say(config, "forget", "gone", "--yes")[0] == 0
    eventually(lambda: not (cluster.folder / "repos/beta/gone").exists())
    eventually(lambda: "repository gone" not in found(monitor))


def assert_that_held_notices_are_named(cluster: Cluster, monitor: Path) -> None:
    """A mirror waits for a lock, and the notices with it."""
    lock = cluster.folder / "repos/beta/red/.hg/store/lock"
    os.symlink(f"{os.uname().nodename}:{os.getpid()}", lock)
    commit_and_push(cluster, "red", "two")
    held = eventually(lambda: (text := found(monitor)) and "notices held" in text and text)
    assert "1 of red wait, for beta" in held
    assert "vcsreplicator trace red" in held
    lock.unlink()


def assert_that_a_silent_relay_is_named_until_it_starts(cluster: Cluster, monitor: Path) -> None:
    """The relay is stopped; a push waits for it in the outbox."""
    cluster.stop("relay")
    assert "relay not reachable" in commit_and_push(cluster, "red", "three")
    silent = "the relay hg://master.example has sent no heartbeat for "
    text = eventually(lambda: (text := found(monitor)) and silent in text and text)
    assert "systemctl start vcsreplicator-relay" in text
    assert "waits in the outbox" in say(cluster.config, "trace", "red")[1]
    code, missing = say(monitor, "trace", "red", "--push", "3")
    assert code
    assert "waits in the outbox on the master: run this there" in missing
    cluster.start("relay")
    eventually(lambda: silent not in found(monitor))
