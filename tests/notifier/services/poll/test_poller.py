# SPDX-License-Identifier: GPL-2.0-or-later
"""The poller between a host and a real RabbitMQ, and a simulated day of very many repositories."""

import asyncio
import gzip
import json
import os
import random
import selectors
import signal
import subprocess
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kombu
import pytest
import structlog

from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.owned import CHECK_EVERY
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.clients.amqp.channel import BLOCKED
from notifier.delivery.destination import DOWN
from notifier.messages.pushes import LARGEST, QueuedPush, read_answer
from notifier.services.poll import asking, poller
from notifier.services.poll.asking import AnswerTooLarge, Asked, Asker, HostUnavailable
from notifier.services.poll.following import Followed
from notifier.services.poll.outgoing import PushSender
from notifier.services.poll.poller import Poller
from notifier.services.poll.settings import OnReplaced, PollSettings, StartAt
from notifier.services.poll.state import open_state
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.pushhost import HostReply, PushHost
from testing.builders.notifier.notices import with_topics
from testing.clock import HandClock
from testing.metrics import value_of
from testing.services.rabbitmq import AUTHORIZATION, RabbitMQ
from testing.waiting import eventually
from testing.warm import CLI, PROGRAM, warm_starts

pytestmark = pytest.mark.processes

# What distinguishes a process of another machine.
ELSEWHERE = "00000000-0000-0000-0000-000000000000/4026531836/17/9"


@pytest.fixture
def host() -> Iterator[PushHost]:
    with PushHost() as running:
        yield running


class HgQueue:
    """The queue `hg`, and what came through it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.messages: list[dict[str, Any]] = []
        self.headers: list[dict[str, Any]] = []
        self.listen()

    def listen(self) -> None:
        self._connection = kombu.Connection(self.url)
        kombu.Consumer(self._connection, [kombu.Queue("hg", durable=True)], callbacks=[self._take]).consume()

    def _take(self, body: Any, message: Any) -> None:
        self.messages.append(body)
        self.headers.append(message.headers)
        message.ack()

    def pushes(self) -> dict[str, list[int]]:
        """The ids that came, by the last part of the repository's URL."""
        try:
            while True:
                self._connection.drain_events(timeout=0.02)
        except TimeoutError:
            pass
        found = defaultdict(list)
        for body, headers in zip(self.messages, self.headers, strict=True):
            found[headers["repository"].rsplit("/", 1)[-1]] += [push["id"] for push in body["pushes"]]
        return dict(found)

    def close(self) -> None:
        self._connection.release()


@pytest.fixture
def queue(rabbitmq: Any) -> Iterator[HgQueue]:
    made = HgQueue(rabbitmq.vhost())
    yield made
    made.close()


class Polling:
    """A poller at work in this process; `stop` ends it, and it may be started again. Its block ends it in any case."""

    def __init__(self, queue_url: str, host: PushHost, folder: Path) -> None:
        self._url, self._host, self._folder = queue_url, host, folder
        self.log = with_topics(MemoryLog())
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Polling":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def settings(self, *names: str, **more: Any) -> PollSettings:
        urls = tuple(name if "://" in name else self._host.url(name) for name in names)
        return PollSettings(
            url=self._url, repositories=urls, state=str(self._folder / "poll.db"), **{"interval": 0.1, **more}
        )

    def start(self, *names: str, instance: str | None = None, **more: Any) -> None:
        self._stop, ready = threading.Event(), threading.Event()
        settings = self.settings(*names, **more)

        def work() -> None:
            try:
                poller.run(settings, self.log, stop=self._stop, ready=ready.set, instance=instance)
            except BaseException as error:
                self.error = error
            finally:
                ready.set()

        self._thread = threading.Thread(target=work)
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        self.__exit__()
        if self.error is not None:
            raise self.error


@pytest.fixture
def polling(queue: HgQueue, host: PushHost, tmp_path: Path) -> Iterator[Polling]:
    with Polling(queue.url, host, tmp_path) as made:
        yield made
        made.stop()


def test_every_push_arrives_once_in_order_with_the_documented_body(
    host: PushHost, queue: HgQueue, polling: Polling
) -> None:
    for number in range(250):
        host.push("x", id=2 * number + 1, changesets=number % 3 + 1)
    host.push("y")
    polling.start("x", "y", page=100)
    eventually(lambda: queue.pushes() == {"x": list(range(1, 500, 2)), "y": [1]}, "all pushes")
    host.push("x")
    eventually(lambda: queue.pushes()["x"][-1] == 500, "the new push")
    first = next(
        body for body, head in zip(queue.messages, queue.headers, strict=True) if head["repository"].endswith("x")
    )
    numbers = {
        head["repository"][-1]: body["repository_id"] for body, head in zip(queue.messages, queue.headers, strict=True)
    }
    assert first["type"] == "hg-push"
    assert first["pushes"][0] == {"id": 1, "date": 1456826401, "user": "dana", "changesets": host.repositories["x"][1]}
    assert numbers["x"] != numbers["y"]
    assert {head["source"] for head in queue.headers} == {"poll"}


def test_restart_continues_behind_the_last_push_that_was_confirmed(
    host: PushHost, queue: HgQueue, polling: Polling
) -> None:
    host.push("x")
    polling.start("x")
    eventually(lambda: queue.pushes() == {"x": [1]})
    polling.stop()
    host.push("x")
    polling.start("x")
    eventually(lambda: queue.pushes() == {"x": [1, 2]}, "the second push alone")
    assert len({body["repository_id"] for body in queue.messages}) == 1


def test_unchanged_repository_costs_a_304(host: PushHost, queue: HgQueue, polling: Polling) -> None:
    host.push("x")
    polling.start("x")
    eventually(lambda: host.statuses[-3:] == [304, 304, 304], "answers without a body")
    host.push("x")
    eventually(lambda: queue.pushes() == {"x": [1, 2]}, "the push behind them")


@pytest.mark.parametrize("gives_link", [True, False])
def test_limited_answers_are_read_to_their_end(
    host: PushHost, queue: HgQueue, polling: Polling, gives_link: bool
) -> None:
    host.limit, host.gives_link = 7, gives_link
    for _ in range(100):
        host.push("x")
    polling.start("x", page=50)
    eventually(lambda: queue.pushes() == {"x": list(range(1, 101))}, "all pushes")
    assert any("endID" not in target for target in host.targets) == gives_link


def test_link_to_another_page_is_not_followed(host: PushHost, queue: HgQueue, polling: Polling) -> None:
    body = json.dumps({"lastpushid": 1, "pushes": {"1": {"changesets": ["a" * 40], "date": 1, "user": "u"}}}).encode()
    headers = {"Link": '</admin/json-pushes?x>; rel="next"'}
    host.instead = lambda target: HostReply(headers=headers, body=body) if "/x/" in target else None
    polling.start("x")
    eventually(lambda: queue.pushes() == {"x": [1]})
    eventually(lambda: len(host.targets) > 3)
    assert not any("admin" in target for target in host.targets)


def test_host_that_asks_for_a_very_long_rest_gets_an_hour() -> None:
    async def ask_after_trouble() -> float:
        host = asking.Host(1, lambda: 0.5)
        with pytest.raises(HostUnavailable):
            async with host.slot():
                raise HostUnavailable("busy", 1e9)
        return host._rests_until - asyncio.get_running_loop().time()

    assert asking.LONGEST - 60 < asyncio.run(ask_after_trouble()) <= asking.LONGEST


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": '"\xe9"'},
        {"Link": '</x/json-pushes?\x01>; rel="next"'},
        {"Link": "</x/json-pushes?" + "x" * 70_000 + '>; rel="next"'},
    ],
    ids=["no ASCII", "control in a link", "long link"],
)
def test_headers_that_no_request_can_repeat_are_passed_over(
    host: PushHost, queue: HgQueue, polling: Polling, headers: dict[str, str]
) -> None:
    host.push("x")
    host.instead = lambda target: None
    plain = host.reply
    failed = value_of(poller.QUESTIONS.labels("failed"))

    def reply(target: str, etag: str | None) -> HostReply:
        found = plain(target, None)
        found.headers.update(headers)
        return found

    host.reply = reply  # type: ignore[method-assign]
    polling.start("x")
    eventually(lambda: queue.pushes() == {"x": [1]})
    eventually(lambda: len(host.targets) > 3)
    host.push("x")
    eventually(lambda: queue.pushes() == {"x": [1, 2]})
    assert value_of(poller.QUESTIONS.labels("failed")) == failed


def test_cookies_of_a_host_are_not_kept(host: PushHost, polling: Polling) -> None:
    host.push("x")
    host.instead = lambda target: HostReply(
        headers={"Set-Cookie": f"c{len(host.targets)}={'x' * 3000}; Path=/"}, body=b'{"lastpushid": 0, "pushes": {}}'
    )

    async def ask() -> None:
        asker = Asker(polling.settings("x"), SystemClock())
        for _ in range(3):
            await asker.ask(f"{host.url('x')}/json-pushes?version=2", None)
        await asker.close()

    asyncio.run(ask())
    assert len(host.asked_headers) == 3
    assert not any("cookie" in headers for headers in host.asked_headers)


def test_host_has_few_questions_at_a_time(host: PushHost, queue: HgQueue, polling: Polling) -> None:
    names = [f"r{number}" for number in range(30)]
    for name in names:
        host.push(name)
    host.delay = 0.01
    polling.start(*names, per_host=3)
    eventually(lambda: len(queue.pushes()) == 30)
    assert host.most_at_once == 3


def test_host_that_asks_for_it_is_left_alone(host: PushHost, queue: HgQueue, polling: Polling) -> None:
    for name in "xy":
        host.push(name)
    host.instead = lambda target: HostReply(status=503, headers={"Retry-After": "3600"})
    with PushHost() as other:
        other.push("z")
        polling.start("x", "y", other.url("z"), per_host=1)
        eventually(lambda: host.targets)
        host.instead = lambda target: None
        asked = len(other.targets)
        eventually(lambda: len(other.targets) > asked + 10, "as many intervals")
        assert len(host.targets) == 1
        assert queue.pushes() == {"z": [1]}
        polling.stop()


def test_an_answer_in_an_encoding_not_asked_for_is_refused(host: PushHost) -> None:
    packed = gzip.compress(b'{"lastpushid": 0, "pushes": {}}')
    host.instead = lambda target: HostReply(headers={"Content-Encoding": "gzip"}, body=packed)

    async def ask() -> Asked:
        asker = Asker(PollSettings(url="amqp://guest@127.0.0.1//", repositories=(host.url("x"),)), SystemClock())
        try:
            return await asker.ask(host.url("x"), None)
        finally:
            await asker.close()

    with pytest.raises(Unavailable, match="an answer in 'gzip', although 'identity' was asked for"):
        asyncio.run(ask())
    host.instead = lambda target: HostReply(headers={"Content-Encoding": "Identity"}, body=gzip.decompress(packed))
    assert asyncio.run(ask()).answer is not None


def test_broken_repository_holds_up_no_other(host: PushHost, queue: HgQueue, polling: Polling) -> None:
    host.push("good")
    nonsense = {"html": b"<html>", "huge": b"[" * 17_000_000, "deep": b"[" * 100_000}
    host.instead = lambda target: next(
        (HostReply(body=body) for name, body in nonsense.items() if f"/{name}/" in target), None
    )
    polling.start("missing", *nonsense, "good")
    eventually(lambda: queue.pushes() == {"good": [1]}, "the good one")
    host.push("good")
    eventually(lambda: queue.pushes() == {"good": [1, 2]}, "the good one again")


def test_push_that_fits_into_no_message_holds_up_no_other(host: PushHost, queue: HgQueue, polling: Polling) -> None:
    nodes = [f"{number:040x}" for number in range(1, (LARGEST - 4000) // 43)]
    push = {"changesets": nodes, "date": 1, "user": "\N{EURO SIGN}" * 1000}  # longer in a message, which is in ASCII
    text = json.dumps({"lastpushid": 1, "pushes": {"1": push}}, separators=(",", ":"), ensure_ascii=False)
    host.instead = lambda target: HostReply(body=text.encode()) if "/huge/" in target else None
    with structlog.testing.capture_logs() as lines:
        polling.start("huge")
        eventually(lambda: [line for line in lines if line["event"] == "repository not followed"], "the line")
        polling.stop()
    assert [line["reason"][:22] for line in lines if line["event"] == "repository not followed"] == [
        "push 1: a message of 1"
    ]
    host.push("good")
    polling.start("huge", "good")
    eventually(lambda: queue.pushes() == {"good": [1]}, "the good one")


def test_shrunk_repository_is_named_once_and_waits_until_it_is_as_it_was(
    host: PushHost, queue: HgQueue, polling: Polling
) -> None:
    for _ in range(5):
        host.push("x")
    with structlog.testing.capture_logs() as lines:
        polling.start("x")
        eventually(lambda: len(queue.pushes().get("x", [])) == 5)
        lost = {number: host.repositories["x"].pop(number) for number in (4, 5)}
        eventually(lambda: [line for line in lines if line["event"] == "repository replaced"], "the line")
        host.targets.clear()
        eventually(lambda: len(host.targets) > 5, "more questions")
        assert queue.pushes() == {"x": [1, 2, 3, 4, 5]}
        host.repositories["x"].update(lost)
        host.push("x")
        eventually(lambda: queue.pushes() == {"x": [1, 2, 3, 4, 5, 6]}, "the push after the return")
    [line] = [line for line in lines if line["event"] == "repository replaced"]
    assert line["reason"] == "its last push is 3, push 5 was sent already"
    assert "on-replaced" in line["next_step"]


def test_replaced_repository_is_followed_as_a_new_one_if_that_is_set(
    host: PushHost, queue: HgQueue, polling: Polling
) -> None:
    for _ in range(3):
        host.push("x")
    polling.start("x", on_replaced=OnReplaced.FOLLOW)
    eventually(lambda: queue.pushes() == {"x": [1, 2, 3]})
    host.repositories["x"] = {number: ["b" * 40] for number in range(1, 5)}
    eventually(lambda: queue.pushes() == {"x": [1, 2, 3, 1, 2, 3, 4]}, "the new repository")
    assert len({body["repository_id"] for body in queue.messages}) == 2


def test_a_repository_followed_from_its_end_skips_no_push_during_a_stop(
    host: PushHost, queue: HgQueue, polling: Polling
) -> None:
    for _ in range(3):
        host.push("x")
    polling.start("x", start_at=StartAt.END)
    eventually(lambda: 304 in host.statuses, "the end to be known")
    polling.stop()
    host.push("x")
    polling.start("x", start_at=StartAt.END)
    eventually(lambda: queue.pushes() == {"x": [4]}, "the push during the stop")


def test_broker_that_is_away_costs_no_push_and_no_questions(
    host: PushHost, own_service: Callable[[type[RabbitMQ]], RabbitMQ], tmp_path: Path
) -> None:
    broker = own_service(RabbitMQ)
    with (
        PushHost() as other,
        closing(HgQueue(broker.url)) as queue,
        Polling(broker.url, host, tmp_path) as polling,
    ):
        host.push("x")
        other.push("y")
        polling.start("x", other.url("y"), interval=0.02)
        eventually(lambda: queue.pushes() == {"x": [1], "y": [1]})
        queue.close()
        broker.kill()
        host.push("x")
        eventually(lambda: host.statuses[-1] == 200)
        asked, others = len(host.targets), len(other.targets)
        eventually(lambda: len(other.targets) > others + 10, "as many intervals")
        assert len(host.targets) <= asked + 2
        assert value_of(DOWN.labels("poll")) == 1
        broker.restart()
        queue.listen()
        eventually(
            lambda: list(dict.fromkeys(queue.pushes()["x"])) == [1, 2], "the push"
        )  # the first may be unconfirmed
        eventually(lambda: value_of(DOWN.labels("poll")) == 0, "the alert ends")
        polling.stop()


def ask_management(broker: Any, method: str, path: str, content: Any = None) -> Any:
    """Ask the broker's management API; {} for an empty answer."""
    address = f"{broker.management_url().replace('guest@', '')}/api/{path}"
    headers = {"Authorization": AUTHORIZATION, "Content-Type": "application/json"}
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(address, body, headers, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.loads(answer.read() or b"{}")


def test_push_that_the_queue_refuses_is_sent_again(
    host: PushHost, queue: HgQueue, polling: Polling, rabbitmq: Any
) -> None:
    vhost = queue.url.rpartition("/")[2]
    full = {"pattern": "^hg$", "definition": {"max-length": 0, "overflow": "reject-publish"}}
    ask_management(rabbitmq, "PUT", f"policies/{vhost}/full", full)
    eventually(lambda: ask_management(rabbitmq, "GET", f"queues/{vhost}/hg").get("policy") == "full", "the policy")
    host.push("x")
    with structlog.testing.capture_logs() as said:
        polling.start("x")
        eventually(lambda: any("nack" in str(line.get("reason")) for line in said), "the refusal")
        ask_management(rabbitmq, "DELETE", f"policies/{vhost}/full")
        eventually(lambda: queue.pushes() == {"x": [1]}, "the push")


def test_a_broker_that_blocks_publishers_gets_every_push(
    host: PushHost, own_service: Callable[[type[RabbitMQ]], RabbitMQ], tmp_path: Path
) -> None:
    broker = own_service(RabbitMQ)
    with closing(HgQueue(broker.url)) as queue, Polling(broker.url, host, tmp_path) as polling:
        host.push("x")
        host.push("y")
        polling.start("x", "y", confirm_timeout=0.5)
        eventually(lambda: queue.pushes() == {"x": [1], "y": [1]})
        broker.block_publishers()
        with structlog.testing.capture_logs() as said:
            host.push("x")
            eventually(lambda: value_of(BLOCKED.labels("poll")) == 1, "the metric to say so")
            host.push("y")
            eventually(lambda: "/y/" in host.targets[-1])
            broker.unblock_publishers()
            eventually(lambda: queue.pushes() == {"x": [1, 2], "y": [1, 2]}, "each push once")
            assert [line["event"] for line in said if line["log_level"] == "warning"] == ["broker blocks publishers"]
            broker.block_publishers()
            host.push("x")
            eventually(lambda: value_of(BLOCKED.labels("poll")) == 1, "the metric to say so again")
            polling.stop()
        broker.unblock_publishers()
        polling.start("x", "y")
        eventually(lambda: set(queue.pushes()["x"]) == {1, 2, 3}, "the last push")
        polling.stop()


def test_a_second_poller_stands_by_until_the_first_is_stopped(
    host: PushHost, queue: HgQueue, polling: Polling, tmp_path: Path
) -> None:
    host.push("x")
    polling.start("x", instance=f"{ELSEWHERE}1")
    eventually(lambda: queue.pushes() == {"x": [1]})
    with Polling(queue.url, host, tmp_path) as second:
        second.log = polling.log
        second.start("x", instance=f"{ELSEWHERE}2")
        assert value_of(poller.ACTIVE) == 1
        polling.stop()
        host.push("x")
        eventually(lambda: queue.pushes() == {"x": [1, 2]}, "the push after the takeover")
        second.stop()
    assert len({body["repository_id"] for body in queue.messages}) == 1


@pytest.mark.parametrize(("seconds", "doubled"), [(0.0, {"x": [1]}), (CHECK_EVERY, {})], ids=["at once", "later"])
def test_a_replaced_poller_doubles_at_most_one_message_of_a_repository(
    queue: HgQueue, seconds: float, doubled: dict[str, list[int]]
) -> None:
    log, clock = with_topics(MemoryLog()), HandClock()
    settings = PollSettings(url=queue.url, repositories=("http://h/x",))
    with closing(open_state(settings, log, clock)) as state:
        [followed] = state.add(settings.repositories, 0)
        sender = PushSender(settings, state, clock)

        async def deliver() -> None:
            [push] = read_answer(
                json.dumps(
                    {"lastpushid": 1, "pushes": {"1": {"changesets": ["a" * 40], "date": 1, "user": "u"}}}
                ).encode(),
                "x",
            ).pushes
            delivering = asyncio.create_task(sender.deliver(followed, [push]))
            while sender.is_alive() or not sender.fenced:
                await asyncio.sleep(0.01)
            assert not delivering.done()
            delivering.cancel()

        open_state(settings, log, clock).close()
        clock.advance(seconds)
        sender.start()
        asyncio.run(deliver())
    assert queue.pushes() == doubled


# -- the command


def write_file(folder: Path, text: str) -> Path:
    """A file with a log that it names."""
    file, url = folder / "v.toml", f"sqlite://{folder}/log.db"
    with open_log(url, creates=True) as log:
        with_topics(log)
    file.write_text(f'log = "{url}"\n{text}')
    return file


def command(file: Path) -> list[str]:
    return [*PROGRAM, CLI, "poll", "-c", str(file)]


# Kills in the slow suite.
KILLS = int(os.environ.get("VCSREPLICATOR_TEST_KILLS", "100"))
POLL = '[poll]\nurl = "amqp://guest:guest@127.0.0.1//"\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (POLL, "key 'repositories' is missing"),
        (POLL + "repositories = []", "poll.repositories: expected at least one URL"),
        (POLL + 'repositories = ["ftp://h/x"]', "poll.repositories: expected http or https URLs"),
        (POLL + 'repositories = ["http://127.0.0.1/x", "http://127.0.0.1/x"]', "http://127.0.0.1/x is listed twice"),
        (
            POLL + 'repositories = ["http://hg.example/x"]',
            "poll.repositories: http:// to hg.example, expected https://",
        ),
        (
            POLL + 'repositories = []\non-replaced = "maybe"',
            "poll.on-replaced: expected one of stop, follow, got 'maybe'",
        ),
        (POLL + "repositories = []\nper_host = 1", "unknown key 'per_host', expected 'per-host'"),
        (POLL + 'repositories = []\nstate = "here.db"', "poll.state: expected an absolute path"),
    ],
)
def test_wrong_configuration_is_one_line_with_file_and_key_and_exit_78(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = write_file(tmp_path, text)
    with warm_starts():
        ended = subprocess.run(command(file), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 78
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"vcsreplicator: {file}: ")
    assert complaint in line


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_credentials_that_the_broker_refuses_are_one_line_and_exit_78(rabbitmq: Any, tmp_path: Path, mode: int) -> None:
    secret = tmp_path / "password"
    secret.write_text("Wr0ng!")
    secret.chmod(mode)
    url = rabbitmq.vhost().replace("guest:guest@", "guest@")
    keys = f'url = "{url}"\npassword = {{ file = "{secret}" }}\nstate = "{tmp_path}/poll.db"\n'
    file = write_file(tmp_path, f'[poll]\nrepositories = ["http://127.0.0.1:1/x"]\n{keys}')
    with warm_starts():
        ended = subprocess.run(command(file), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 78, ended.stderr
    [line] = ended.stderr.splitlines()
    said = json.loads(line)["reason"]
    if mode == 0o600:
        assert said.startswith(f"{file}: poll.url: ")
        assert "ACCESS_REFUSED" in said
        assert said.endswith("expected user and password that the broker accepts")
    else:
        assert said.startswith(f"{file}: poll.password: {secret} has mode 0644, expected 0600")
    assert "Wr0ng!" not in said


@pytest.mark.hunt
def test_killed_a_few_times_under_load_nothing_is_lost(host: PushHost, queue: HgQueue, tmp_path: Path) -> None:
    survive_kills(host, queue, tmp_path, kills=3)


@pytest.mark.hunt
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_very_often_under_load_nothing_is_lost(host: PushHost, queue: HgQueue, tmp_path: Path) -> None:
    survive_kills(host, queue, tmp_path, kills=KILLS)


def survive_kills(host: PushHost, queue: HgQueue, folder: Path, *, kills: int) -> None:
    """Pushes go on all the time; every first appearance is in order, and none is missing."""
    chance = random.Random(int(os.environ.get("VCSREPLICATOR_TEST_SEED", "0")) or None)
    names = [f"r{number}" for number in range(8)]
    urls = ", ".join(f'"{host.url(name)}"' for name in names)
    queue.pushes()
    file = write_file(
        folder,
        f'[poll]\nurl = "{queue.url}"\nrepositories = [{urls}]\nstate = "{folder}/poll.db"\ninterval = 0.05\npage = 5\n',
    )
    for name in names:
        host.push(name)
    for _ in range(kills):
        before = sum(map(len, queue.pushes().values()))
        with warm_starts():
            process = subprocess.Popen(command(file), stderr=subprocess.DEVNULL)
        try:
            for name in names:
                for _ in range(chance.randrange(1, 8)):
                    host.push(name, changesets=chance.randrange(1, 3))
            eventually(lambda before=before: sum(map(len, queue.pushes().values())) > before, "the poller at work")
            threading.Event().wait(chance.random() * 0.1)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    with warm_starts():
        process = subprocess.Popen(command(file), stderr=subprocess.DEVNULL)
    host.push(names[0])  # this process has something to do, so it has started when all is there
    expected = {name: sorted(host.repositories[name]) for name in names}
    try:
        eventually(lambda: {name: list(dict.fromkeys(ids)) for name, ids in queue.pushes().items()} == expected, "all")
    finally:
        process.terminate()
        assert process.wait(60) == 0


# -- a simulated day


class _Jump(selectors.DefaultSelector):
    """Waits for nothing, and counts the seconds that it would have waited."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self.passed += timeout
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes as fast as it can."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.passed


@dataclass
class SimulatedHosts:
    """Repositories that get pushes by chance while time passes, on hosts that fail now and then; and the queue, which remembers."""

    chance: random.Random
    pushes: dict[str, list[int]] = field(default_factory=dict)
    sent: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    asked: int = 0

    async def ask(self, url: str, etag: str | None) -> Asked:
        self.asked += 1
        await asyncio.sleep(0.02)
        name, _, query = url.partition("/json-pushes?version=2&startID=")
        known = self.pushes[name]
        luck = self.chance.random()
        if luck < 0.002:
            raise HostUnavailable(f"{url}: status 503", 5.0 if luck < 0.001 else 0.0)
        if luck < 0.004:
            raise AnswerTooLarge(url) if luck < 0.003 else Unavailable(url)
        if luck > 0.99:
            known.append((known[-1] if known else 0) + self.chance.choice((1, 1, 1, 2, 30)))
        tag = str(known[-1] if known else 0) + query
        if tag == etag:
            return Asked(answer=None, etag=etag)
        after, to = (int(part) for part in query.split("&endID="))
        found = {str(n): {"changesets": [f"{n:040x}"], "date": 1, "user": "u"} for n in known if after < n <= to}
        text = json.dumps({"lastpushid": known[-1] if known else 0, "pushes": found}).encode()
        return Asked(answer=read_answer(text, url), etag=tag)

    async def deliver(self, followed: Followed, pushes: Sequence[QueuedPush]) -> Followed:
        await asyncio.sleep(0.001)
        self.sent[followed.url] += [push.id for push in pushes]
        return followed.after(pushes[-1])

    async def begin_at(self, followed: Followed) -> Followed:
        return followed

    async def begin_anew(self, followed: Followed) -> Followed:
        raise AssertionError(f"{followed} was not replaced")


def simulate(
    repositories: int, seconds: float, monkeypatch: pytest.MonkeyPatch, *, interval: float = 60
) -> SimulatedHosts:
    monkeypatch.setattr(asking, "REST", asking.Backoff(first=0.2, longest=5.0))
    world = SimulatedHosts(random.Random(7))
    known = [Followed(number=number, url=f"http://h{number % 10}/r{number}") for number in range(repositories)]
    for followed in known:
        world.pushes[followed.url] = list(range(1, world.chance.randrange(1, 40)))
    settings = PollSettings(url="amqp://h", repositories=("http://h/x",), per_host=20, page=10, interval=interval)

    async def day() -> None:
        following = asyncio.create_task(Poller(settings, world, world, world.chance.random).follow(known))
        await asyncio.sleep(seconds)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(day())
    return world


def check_day(world: SimulatedHosts, least: int) -> None:
    """Nothing was sent twice or skipped; what is missing was pushed since the last question about it."""
    assert world.asked > least
    behind = 0
    for url, known in world.pushes.items():
        sent = world.sent[url]
        assert sent == known[: len(sent)]
        behind += len(known) - len(sent)
    assert behind < len(world.pushes) * 0.2


def test_simulated_hour_of_many_repositories_loses_and_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check_day(simulate(100, 3600, monkeypatch), 100 * 50)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_simulated_day_of_5000_repositories_loses_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, told: Callable[[object], None]
) -> None:
    world = simulate(5000, 86400, monkeypatch)
    told(f"{world.asked} questions, {sum(map(len, world.sent.values()))} pushes")
    check_day(world, 5000 * 1300)
