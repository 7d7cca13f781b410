# SPDX-License-Identifier: GPL-2.0-or-later
"""What is struck: a whole installation with two of each service that may be two, its brokers and its receivers.

Kafka is one broker behind a proxy, or three; aggregators and notifiers have machines of their own, the services' clocks can be
set, and mirror beta, the master and each of
three brokers have disks of their own where this user may mount.
"""

import os
import random
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from hgext.vcsreplicator.log.opening import open_log
from testing.builders.cluster import Cluster
from testing.builders.installation import on_a_machine
from testing.builders.load import Load, Pusher
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.builders.operator import Operator
from testing.checks import checker
from testing.faults.campaign.cloud import answer, message_of
from testing.faults.campaign.history import History
from testing.faults.delay import BehindProxy, DelayingProxy
from testing.faults.real_disk import RealDisk
from testing.faults.wrong_clock import clocked
from testing.services.aws import Aws
from testing.services.guard import descendants
from testing.services.kafka.cluster import KafkaCluster
from testing.services.rabbitmq import RabbitMQ
from testing.warm import is_stem

# The webhook whose endpoint gets into trouble, and the other one; the services that SNS consists of.
CI, STEADY, SNS, S3 = "webhook ci", "webhook steady", "SNS", "S3"
LINES, PULSE = "JSON lines", "Pulse"
PATHS = {"/ci": CI, "/steady": STEADY}
DISK, BROKERS_DISK = 96 << 20, 1 << 30
# An answer of a webhook's endpoint after which the notifier gives a message up: the receiver had it, and refused it for good.
FINAL = 302
# What ends a service is not an error of it: our SIGKILL, our request, or a log that does not answer at its start.
EXPECTED_EXITS = (None, 0, -signal.SIGKILL, -signal.SIGTERM)


class Site:
    """An installation that runs while it is entered. Without `is_whole` it has only its services, warm, on the embedded log.

    With three `brokers` it has `several` in place of `kafka` and `proxy`.
    """

    def __init__(self, folder: Path, history: History, *, is_whole: bool, brokers: int = 1) -> None:
        self.folder, self.history, self.is_whole, self._brokers = folder, history, is_whole, brokers
        self.load, self.pushers = Load(), list[Pusher]()
        self.operator: Operator
        self.random = random.Random(0)
        # The mirrors that a fault has taken away now, and how an endpoint in trouble answers.
        self.spared, self.moods = set[str](), dict[str, Callable[[Request], Reply]]()
        self.disks = dict[str, RealDisk]()
        self._opened, self._ended = ExitStack(), set[int]()

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self.cluster.start(*self.cluster.roles)
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.close()

    @property
    def destinations(self) -> list[str]:
        """Where every message should arrive."""
        return [LINES, PULSE, SNS, CI, STEADY] if self.is_whole else [LINES]

    @property
    def lines(self) -> list[Path]:
        """The files of JSON lines, one for each notifier."""
        return (
            [self.folder / f"{role}.jsonl" for role in self.roles("notifier")]
            if self.is_whole
            else [self.cluster.notices]
        )

    def roles(self, service: str) -> list[str]:
        """All services of a kind, such as both mirrors."""
        return [role for role in self.cluster.roles if role == service or role.startswith(f"{service}-")]

    def pick(self, service: str) -> str:
        return self.random.choice(self.roles(service))

    def processes(self, role: str) -> list[int]:
        """The service's main process, and all below."""
        pid = self.cluster.pid(role)
        return [pid, *(each for each in descendants(pid) if not is_stem(each))]

    def signal(self, role: str, number: int) -> None:
        for process in self.processes(role):
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def root(self, mirror: str) -> Path:
        return self.folder / "repos" / mirror

    def clock(self, role: str) -> Path:
        return self.folder / "clocks" / role

    def revive(self, *roles: str) -> None:
        """Start which of these, or of all, has ended, as systemd would; write down what no fault ended."""
        for role in roles or self.cluster.roles:
            if self.cluster.running(role):
                continue
            code, pid = self.cluster.exit_code(role), self.cluster.pid(role)
            if code not in EXPECTED_EXITS and pid not in self._ended:
                self._ended.add(pid)
                last = self.cluster.output(role).splitlines()[-1:]
                if code not in (1, 2) or not self.is_whole or "Traceback" in str(last):
                    self.history.add("trouble", role, text=f"ended with {code}: {last}")
            self.cluster.revive(role)

    def run(self, *arguments: str) -> None:
        """A command of an operator, repeated until it works, as after `the aggregator did not answer`."""
        end = time.monotonic() + 90
        while (done := self.cluster.cli(*arguments)).returncode:
            if time.monotonic() > end:
                raise AssertionError(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
            time.sleep(1)

    def _prepare(self) -> None:
        enter = self._opened.enter_context
        if not self.is_whole:
            self.cluster = Cluster(self.folder, "--log", self._open_log(f"sqlite:///{str(self.folder)[1:]}/log.db"))
            self._opened.callback(self.cluster.close)
            return
        if self._brokers == 1:
            self.proxy = enter(DelayingProxy(delay=0.0))
            self.kafka = enter(BehindProxy(self.proxy))
            url = self.kafka.url
        else:
            folders = {number: self.folder / "brokers" / str(number) for number in (1, 2, 3)}
            for number, folder in folders.items():
                self._mount(f"broker-{number}", folder, BROKERS_DISK)
            self.several = enter(KafkaCluster(folders))
            url = self.several.url
        self.rabbitmq = enter(RabbitMQ())
        self.hooks, self.cloud = enter(Endpoint(self._answer_hook)), enter(Endpoint(self._answer_cloud))
        self.amqp = self.rabbitmq.vhost()
        for name in ("master", "beta"):
            self._mount(name, self.folder / "repos" / name, DISK)
        self.cluster = Cluster(self.folder, "--log", self._open_log(url), "--pulse", self.amqp, warm=False)
        self._opened.callback(self.cluster.close)
        with self.cluster.config.open("a") as file:
            file.write(self._destinations())
        services = self.cluster.about["services"]
        alone = {role: services.pop(role) for role in ("aggregator", "notifier")}
        for number in (1, 2):
            for role, service in alone.items():
                services[f"{role}-{number}"] = self.on_a_machine(f"{role}-{number}", service)
        (self.folder / "clocks").mkdir()
        services = {role: clocked(service, self.clock(role)) for role, service in services.items()}
        if self.disks:
            self.boot("beta")
            services |= {role: self._booted(services[role], "beta") for role in ("mirror-beta", "web-beta")}
        self.cluster.about["services"] = services

    def _open_log(self, url: str) -> str:
        self.log = self._opened.enter_context(open_log(url, creates=True))
        self.log.create(checker.remembering_topics())
        return url

    def boot(self, machine: str) -> None:
        """Give the machine's services, from their next start on, the name of another boot."""
        (self.folder / f"{machine}.boot").write_text(f"{uuid.uuid4()}\n")

    def _booted(self, service: dict[str, Any], machine: str) -> dict[str, Any]:
        bound = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
        start = ["unshare", "--mount", "sh", "-c", bound, str(self.folder / f"{machine}.boot")]
        return {**service, "argv": [*start, *service["argv"]]}

    def on_a_machine(self, name: str, service: dict[str, Any]) -> dict[str, Any]:
        made = on_a_machine(self.cluster, name, {**service, "env": {**service["env"], **Aws.credentials}})
        config = self.folder / "machines" / name / "vcsreplicator.toml"
        text = config.read_text().replace(str(self.cluster.notices), str(self.folder / f"{name}.jsonl"))
        config.write_text(text.replace(f"{self.folder}/deliveries.db", f"{config.parent}/deliveries.db"))
        return made

    def _mount(self, name: str, root: Path, size: int) -> None:
        root.mkdir(parents=True)
        if os.geteuid() == 0:
            self.disks[name] = self._opened.enter_context(RealDisk(self.folder / "disks" / name, root, size=size))

    def _destinations(self) -> str:
        key = self.folder / "hook.key"
        key.write_text("k" * 32)
        key.chmod(0o600)
        cloud, hooks = f"http://127.0.0.1:{self.cloud.port}", f"http://127.0.0.1:{self.hooks.port}"
        return (
            '\n[notifier.sns]\ntype = "sns"\ntopic-arn = "arn:aws:sns:us-west-2:123456789012:hg"\nbucket = "hg"\n'
            f'region = "us-west-2"\nsns-endpoint-url = "{cloud}"\ns3-endpoint-url = "{cloud}"\n'
            f'\n[notifier.hooks]\ntype = "webhook"\ndatabase = "{self.folder}/deliveries.db"\n'
            'allow = ["127.0.0.0/8"]\nallow-http = true\n'
            + "".join(
                f'\n[notifier.hooks.subscriptions.{path[1:]}]\nurl = "{hooks}{path}"\nsecrets = [{{ file = "{key}" }}]\n'
                for path in PATHS
            )
        )

    def _answer_hook(self, request: Request) -> Reply:
        name = PATHS[request.path]
        reply = self.moods.get(name, answer)(request)
        if reply.status in (200, FINAL):
            headers = {word: request.headers.get(f"vcsreplicator-{word}") for word in ("id", "previous", "repository")}
            self.deliver(name, {**headers, **request.body, "sequence": request.headers["vcsreplicator-sequence"]})
        return reply

    def _answer_cloud(self, request: Request) -> Reply:
        service = S3 if request.method == "PUT" else SNS
        reply = self.moods.get(service, answer)(request)
        if service == SNS and reply.status == 200:
            self.deliver(SNS, message_of(request))
        return reply

    def deliver(self, destination: str, message: dict[str, Any]) -> None:
        """Write down a message that has arrived at a destination."""
        self.history.add(
            "delivered",
            destination,
            id=message["id"],
            previous=message.get("previous"),
            repository=message["repository"],
            sequence=int(message["sequence"]),
            type=message["type"],
            path=message["data"]["repo_url"].rpartition("/")[2],
            heads=message["data"].get("heads", []),
        )
