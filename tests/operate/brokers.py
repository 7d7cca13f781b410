# SPDX-License-Identifier: GPL-2.0-or-later
"""What provokes the entries about RabbitMQ and the services around it, and what shows that their words repaired it."""

import json
import re
import secrets
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import kombu

from hgext.vcsreplicator.demo.layout import PROGRAM
from hgext.vcsreplicator.demo.ports import free_port
from testing.builders.master.pushhost import PushHost
from testing.builders.notifier.mailbox import Mailbox
from testing.builders.notifier.working import HgHost, HgQueueSender, recorded
from testing.waiting import eventually

from .page import Entry, OnCall, read_metric
from .provoking import provokes

_kombu: Any = kombu  # has no types


def commands_of(broker: Any) -> Mapping[str, str]:
    """The environment in which RabbitMQ's own commands find the broker."""
    found = {**broker.environment(), "PATH": "/usr/lib/rabbitmq/bin:/usr/bin:/bin"}
    for name in ("RABBITMQ_SCRIPTS_DIR", "RABBITMQ_PLUGINS_DIR"):  # the node's own have no commands
        del found[name]
    return found


def vhost_of(url: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path.removeprefix("/")) or "/"


@contextmanager
def section(on_call: OnCall, text: str, *, restarts: str | None = None) -> Iterator[None]:
    """Add sections to the services' file during the block, and restart a service that reads them."""
    cluster = on_call.cluster
    before = cluster.config.read_text()
    cluster.config.write_text(before.replace("\n[listen]\n", f"\n{text}\n[listen]\n"))
    try:
        if restarts:
            cluster.stop(restarts)
            cluster.start(restarts)
        yield
    finally:
        cluster.config.write_text(before)
        if restarts:
            cluster.stop(restarts)
            cluster.start(restarts)


def logged(on_call: OnCall, text: str) -> str:
    """Return a service's section with the log before it."""
    return f'log = "{on_call.cluster.log_url}"\n{text}'


@contextmanager
def service(on_call: OnCall, role: str, text: str, *words: str) -> Iterator[tuple[Path, str]]:
    """Run one more service with a file of its own during the block; the file, and the address of its metrics."""
    cluster = on_call.cluster
    port = free_port()
    config = cluster.folder / f"{role}.toml"
    config.write_text(f'{text}\n[listen]\n{role} = "127.0.0.1:{port}"\n')
    argv = [*PROGRAM, role, *words, "--config", str(config)]
    cluster.about["services"][role] = {"argv": argv, "env": cluster.about["services"]["notifier"]["env"]}
    try:
        cluster.start(role)
        yield config, f"127.0.0.1:{port}"
    finally:
        if cluster.running(role):
            cluster.stop(role)
        del cluster.about["services"][role]


def restart_with(on_call: OnCall, role: str, config: Path, wrong: str, right: str) -> None:
    """Mend the file, and restart the service."""
    text = config.read_text()
    assert wrong in text
    config.write_text(text.replace(wrong, right))
    on_call.cluster.stop(role)
    on_call.cluster.start(role)


PULSE = """
[notifier.pulse]
type = "pulse"
url = "{url}"
exchange = "{exchange}"
mandatory = {mandatory}
start-at = "end"
"""


@provokes("VcsreplicatorBrokerBlocked")
def broker_blocked(on_call: OnCall, entry: Entry) -> None:
    broker, name = on_call.broker, on_call.repository()
    entry.environment = commands_of(broker)
    exchange = f"exchange/guest/{secrets.token_hex(4)}"
    pulse = PULSE.format(url=broker.vhost(), exchange=exchange, mandatory="false")
    with section(on_call, pulse, restarts="notifier"):
        broker.block_publishers()
        try:
            on_call.push(name)
            eventually(lambda: entry.metric("notifier", "vcsreplicator_notifier_blocked_flag") == 1)
            assert "Memory alarm" in entry.do("rabbitmqctl status")
            entry.do("rabbitmqctl list_queues --vhost VHOST name messages", VHOST="/")
        finally:
            broker.unblock_publishers()
        eventually(lambda: entry.metric("notifier", "vcsreplicator_notifier_blocked_flag") == 0)
        on_call.wait_announced(name)


@provokes("VcsreplicatorMessagesNotRouted")
def messages_not_routed(on_call: OnCall, entry: Entry) -> None:
    broker, name = on_call.broker, on_call.repository()
    entry.environment, url = commands_of(broker), broker.vhost()
    exchange = f"exchange/guest/{secrets.token_hex(4)}"
    with section(on_call, PULSE.format(url=url, exchange=exchange, mandatory="true"), restarts="notifier"):
        on_call.push(name)
        eventually(lambda: on_call.metric("notifier", "vcsreplicator_notifier_unroutable_messages_total") >= 1)
        assert exchange not in entry.do("rabbitmqctl list_bindings --vhost VHOST", VHOST=vhost_of(url))
        assert "no queue is bound" in entry.until("vcsreplicator errors list", "pulse")
        assert "pulse" in entry.do("vcsreplicator destination list")
        with closing(_kombu.Connection(url)) as connection:
            queue = _kombu.Queue("queue/guest/q", _kombu.Exchange(exchange, type="topic"), routing_key="#")
            queue(connection.default_channel).declare()
            said = entry.do(
                "vcsreplicator replay --repository PATH --since PUSHID --to DESTINATION",
                PATH=name,
                PUSHID=2,
                DESTINATION="pulse",
            )
            assert "1" in said
            message = eventually(lambda: queue(connection.default_channel).get(no_ack=True))
            assert message.payload["payload"]["data"]["repo_url"].endswith(f"/{name}")


WORK = """
[work]
url = "{url}"
repositories = ["{root}"]
clones = "{folder}/clones"
database-url = "sqlite:///{folder}/work.db"
migrate = "at-start"
max-hg-retries = 1
retry = {{ first = 0.02, longest = 0.1 }}
"""


@provokes("VcsreplicatorDeadLetters")
def dead_letters(on_call: OnCall, entry: Entry) -> None:
    broker, folder = on_call.broker, on_call.cluster.folder / "hghost"
    entry.environment, url = commands_of(broker), broker.vhost()
    with HgHost(folder) as host, closing(HgQueueSender(url)) as sender:
        nodes = host.add("late", 1)
        (folder / "late").rename(folder.with_name("late-away"))
        text = WORK.format(url=url, root=host.root, folder=on_call.cluster.folder)
        with service(on_call, "work", text) as (_, metrics):
            sender.send(1, host.url("late"), {1: nodes})
            eventually(lambda: read_metric(metrics, "vcsreplicator_work_dead_messages_total") == 1, "it gives up")
            assert "hg.dead\t1" in entry.do("rabbitmqctl list_queues --vhost VHOST name messages", VHOST=vhost_of(url))
            folder.with_name("late-away").rename(folder / "late")
            entry.do("rabbitmq-plugins enable rabbitmq_shovel")
            [command] = [each for each in entry.commands if "set_parameter" in each]
            entry.do(command, **{"VHOST": vhost_of(url)})
            eventually(lambda: recorded(f"sqlite:///{on_call.cluster.folder}/work.db"), "the push is recorded")
            assert sender.waiting("hg.dead") == 0


GUARDIAN = """
[guardian]
management-url = "{management}"
broker-url = "{url}"
password = {{ file = "{folder}/guardian.password" }}
smtp-url = "{smtp}"
sender = "guardian@pulse.example"
operator = "operator@pulse.example"
state = "{folder}/guardian.db"
every = 1
warn-at = 2
limit = 4
"""


def guardian(on_call: OnCall, url: str, smtp: str) -> str:
    """The guardian's section for a virtual host of the broker."""
    folder, password = on_call.cluster.folder, on_call.cluster.folder / "guardian.password"
    password.write_text("guest")
    password.chmod(0o600)
    plain = url.replace("guest:guest@", "guest@")
    return GUARDIAN.format(management=on_call.broker.management_url(), url=plain, smtp=smtp, folder=folder)


@provokes("VcsreplicatorGuardianLate")
def guardian_late(on_call: OnCall, entry: Entry) -> None:
    broker = on_call.broker
    with Mailbox() as mailbox:
        text = guardian(on_call, broker.vhost(), mailbox.url)
        with service(on_call, "guardian", logged(on_call, text), "watch") as (_, metrics), section(on_call, text):
            stamp = "vcsreplicator_guardian_last_round_timestamp_seconds"
            eventually(lambda: entry.metric(metrics, stamp) > 0, "the first round")
            broker.stop_app()
            try:
                eventually(lambda: "round not complete" in on_call.cluster.output("guardian"))
                last = entry.metric(metrics, stamp)
                answer = entry.type("vcsreplicator guardian check")
                assert answer.code not in (0, 1)
                assert "127.0.0.1" in answer.text
            finally:
                broker.start_app()
            eventually(lambda: entry.metric(metrics, stamp) > last, "rounds are complete again")
            assert entry.type("vcsreplicator guardian check").code in (0, 1)


def fill(channel: Any, queue: str) -> None:
    """Put three messages into the queue."""
    for _ in range(3):
        channel.basic_publish(channel.prepare_message("{}", content_encoding="utf-8"), "", queue)


@provokes("VcsreplicatorGuardianMails")
def guardian_mails(on_call: OnCall, entry: Entry) -> None:
    url, waiting = on_call.broker.vhost(), "vcsreplicator_guardian_waiting_reports"
    closed = free_port()
    with Mailbox() as mailbox:
        text = guardian(on_call, url, f"smtp://127.0.0.1:{closed}")
        with owned_queue(on_call, text, url) as (_, channel, queue):
            fill(channel, queue)
            with service(on_call, "guardian", logged(on_call, text), "watch") as (config, metrics):
                eventually(lambda: entry.metric(metrics, waiting) == 1, "no server takes the mail")
                assert '"mail not sent"' in on_call.cluster.output("guardian")
                restart_with(on_call, "guardian", config, f"smtp://127.0.0.1:{closed}", mailbox.url)
                eventually(lambda: entry.metric(metrics, waiting) == 0, "all that waited is sent")
                assert mailbox.to("wrong@owners.example")


@provokes("VcsreplicatorGuardianMailsRefused")
def guardian_mails_refused(on_call: OnCall, entry: Entry) -> None:
    url = on_call.broker.vhost()
    with Mailbox() as mailbox:
        mailbox.replies["wrong@owners.example"] = "550 no such user"
        text = guardian(on_call, url, mailbox.url)
        with owned_queue(on_call, text, url) as (client, channel, queue):
            fill(channel, queue)
            with service(on_call, "guardian", logged(on_call, text), "watch") as (_, metrics):
                eventually(lambda: mailbox.to("operator@pulse.example"), "the operator got it")
                assert '"mail refused"' in on_call.cluster.output("guardian")
                assert "wrong@owners.example" in entry.do("vcsreplicator guardian user list")
                entry.do("vcsreplicator guardian user owner CLIENT MAIL", CLIENT=client, MAIL="alice@owners.example")
                channel.queue_purge(queue)
                eventually(
                    lambda: read_metric(metrics, 'vcsreplicator_guardian_queues{state="near"}') == 0,
                    "a round has seen the empty queue",
                )
                fill(channel, queue)
                eventually(lambda: mailbox.to("alice@owners.example"), "the mail arrives")


@contextmanager
def owned_queue(on_call: OnCall, text: str, url: str) -> Iterator[tuple[str, Any, str]]:
    """Keep a queue whose owner's address is wrong during the block: the client, a channel, the queue."""
    cluster, client = on_call.cluster, f"alice{secrets.token_hex(3)}"
    with section(on_call, text), closing(_kombu.Connection(url)) as connection:
        assert cluster.cli("guardian", "user", "add", client, "--owner", "wrong@owners.example").returncode == 0
        queue = f"queue/{client}/q"
        channel = connection.default_channel
        channel.queue_declare(queue, durable=True, auto_delete=False)
        try:
            yield client, channel, queue
        finally:
            cluster.cli("guardian", "user", "remove", client, "--yes")


@provokes("VcsreplicatorMirrorNotCompared")
def mirror_not_compared(on_call: OnCall, entry: Entry) -> None:
    cluster, name = on_call.cluster, on_call.repository()
    unreachable = "vcsreplicator_verify_unreachable_repositories"
    compare, names = "vcsreplicator verify MIRROR --repository PATH", {"MIRROR": "alpha", "PATH": name}
    cluster.stop("web-master")
    try:
        with section(on_call, "[verify]\nrest = 0.2\npatience = 1"):
            text = re.sub(r"(?ms)^\[listen\]\n.*?(?=^\[|\Z)", "", cluster.config.read_text())
            with service(on_call, "verify", text, "alpha", "--continuous") as (_, metrics):
                eventually(lambda: entry.metric(metrics, unreachable) > 0, "a round without the master")
                answer = entry.type(compare, **names)
                assert answer.code != 0
                assert "unreachable" in answer.text
                cluster.start("web-master")
                eventually(lambda: entry.metric(metrics, unreachable) == 0, "a round with the master")
                entry.do(compare, **names)
    finally:
        if not cluster.running("web-master"):
            cluster.start("web-master")


POLL = """
[poll]
repositories = ["{repository}"]
url = "{url}"
state = "{folder}/poll.db"
interval = 0.2
"""


@contextmanager
def polled(on_call: OnCall, name: str) -> Iterator[tuple[PushHost, HgQueueSender, Path, str]]:
    """Poll a repository of another host during the block: the host, the queue, the file of the service, its metrics."""
    url = on_call.broker.vhost()
    with PushHost() as host, closing(HgQueueSender(url)) as queue:
        host.push("known")
        text = POLL.format(repository=host.url(name), url=url, folder=on_call.cluster.folder)
        with service(on_call, "poll", logged(on_call, text)) as (config, metrics):
            yield host, queue, config, metrics


def take_pushes(queue: HgQueueSender) -> list[int]:
    """The ids of the next message's pushes."""
    message = eventually(lambda: queue.take("hg"), "a message")
    return [push["id"] for push in json.loads(message.body)["pushes"]]


@provokes("VcsreplicatorPollFails")
def poll_fails(on_call: OnCall, entry: Entry) -> None:
    failing = "vcsreplicator_poll_failing_repositories"
    with polled(on_call, "mistyped") as (host, queue, config, metrics):
        eventually(lambda: entry.metric(metrics, failing) == 1, "it is not there")
        assert host.url("mistyped") in on_call.cluster.output("poll")
        restart_with(on_call, "poll", config, "/mistyped", "/known")
        assert take_pushes(queue) == [1]
        eventually(lambda: entry.metric(metrics, failing) == 0)


@provokes("VcsreplicatorPolledRepositoryReplaced")
def polled_replaced(on_call: OnCall, entry: Entry) -> None:
    replaced = "vcsreplicator_poll_replaced_repositories"
    with polled(on_call, "known") as (host, queue, config, metrics):
        assert take_pushes(queue) == [1]
        host.repositories["known"] = {1: ["b" * 40], 2: ["c" * 40]}
        eventually(lambda: entry.metric(metrics, replaced) == 1, "it shows another push 1")
        assert '"repository replaced"' in on_call.cluster.output("poll")
        restart_with(on_call, "poll", config, "interval = 0.2", 'interval = 0.2\non-replaced = "follow"')
        assert take_pushes(queue) == [1, 2]
        eventually(lambda: entry.metric(metrics, replaced) == 0)
