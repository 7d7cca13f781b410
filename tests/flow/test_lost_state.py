# SPDX-License-Identifier: GPL-2.0-or-later
"""Notifier and dashboard lose all their state again and again under pushes: receivers and operators see what they see without.

VCSREPLICATOR_TEST_LOSSES is how often.
"""

import http.client
import itertools
import os
import random
import re
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest

from hgext.vcsreplicator.dashboard.acts import ActJournal, ActOutcome
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.cluster import Cluster
from testing.builders.load import Load, Pusher, create
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.builders.notifier.notifying import HOOKS, SUBSCRIPTION
from testing.checks import agreement
from testing.checks.lines import announced, told_in_order
from testing.waiting import eventually
from tests.dashboard.conftest import AS_OPERATOR, users_file
from tests.dashboard.test_carrying_out import DASHBOARD

pytestmark = [pytest.mark.processes, pytest.mark.slow]

LOSSES = int(os.environ.get("VCSREPLICATOR_TEST_LOSSES", "50"))
REPOSITORIES, PUSHERS = 6, 2
PATIENCE = 120.0
# What notifier and dashboard keep beside the log.
STATE = ("notifier.db*", "deliveries.db*", "acts.db*")


class Operator(threading.Thread):
    """Pauses and resumes the lines by the dashboard's forms; `answered` has the number of each act, by its reason."""

    def __init__(self, config: Path) -> None:
        super().__init__()
        self.answered: dict[str, int] = {}
        self.over = threading.Event()
        self._address = tomllib.loads(config.read_text())["dashboard"]["listen"]

    def run(self) -> None:
        for turn in itertools.count():
            if self.over.wait(0.1):
                return
            with suppress(OSError, http.client.HTTPException):  # the dashboard is away
                self._act(f"turn {turn}")

    def _act(self, reason: str) -> None:
        page = self._ask("GET", "/deliveries").read().decode()
        for form in re.findall(r"<form method=\"post\".*?</form>", page, re.DOTALL):
            fields = dict(re.findall(r'name="(kind|target|token)" value="([^"]+)"', form))
            if fields["target"] == "lines" and fields["kind"] in ("pause", "resume"):
                self._send({**fields, "reason": reason, "confirm": "yes"})
                return

    def _send(self, fields: dict[str, str]) -> None:
        answer = self._ask("POST", "/acts", urlencode(fields))
        if answer.status == 303:
            self.answered[fields["reason"]] = int(answer.getheader("location", "").removeprefix("/acts#act-"))

    def _ask(self, method: str, path: str, body: str | None = None) -> http.client.HTTPResponse:
        headers = {**AS_OPERATOR, "sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}
        connection = http.client.HTTPConnection(self._address, timeout=60)
        connection.request(method, path, body, headers)
        return connection.getresponse()


@contextmanager
def installed(folder: Path, hooks: Endpoint) -> Iterator[Cluster]:
    """A cluster with webhooks and a dashboard."""
    cluster = Cluster(folder)
    users_file(folder)
    more = (f"{HOOKS}ladder = {[0, *[1.5] * 20]}" + SUBSCRIPTION + DASHBOARD).format(
        folder=folder, url=hooks.url, port=free_port()
    )
    with cluster.config.open("a") as config:
        config.write(more)
    services = cluster.about["services"]
    argv = ["dashboard" if word == "notifier" else word for word in services["notifier"]["argv"]]
    services["dashboard"] = {**services["notifier"], "argv": argv}
    with cluster:
        yield cluster


@contextmanager
def pushing(cluster: Cluster, names: list[str], load: Load) -> Iterator[None]:
    stop = threading.Event()
    pushers = [Pusher(cluster, names[number::PUSHERS], load, stop, f"state-{number}") for number in range(PUSHERS)]
    for pusher in pushers:
        pusher.start()
    try:
        yield
    finally:
        stop.set()
        for pusher in pushers:
            pusher.join()


def lose_state(cluster: Cluster) -> None:
    """Kill both services, remove all that they keep, and start them again."""
    cluster.kill("notifier", "dashboard")
    for pattern in STATE:
        for file in cluster.folder.glob(pattern):
            file.unlink()
    cluster.start("notifier", "dashboard")


@pytest.mark.timeout(3600)
def test_services_that_lose_their_state_do_as_they_would_with_it(
    tmp_path: Path, told: Callable[[object], None]
) -> None:
    chance, load = random.Random(51), Load()
    names = [f"repository-{number}" for number in range(REPOSITORIES)]

    def reply(request: Request) -> Reply:
        return Reply(status=500 if chance.random() < 0.3 else 200)

    with Endpoint(reply) as hooks, installed(tmp_path, hooks) as cluster, open_log(cluster.log_url) as log:
        added = cluster.cli("subscription", "add", "bot", f"{hooks.url}/bot", "--unsigned")
        assert added.returncode == 0, added.stdout + added.stderr
        create(cluster, names)
        operator = Operator(cluster.config)
        operator.start()
        with pushing(cluster, names, load):
            for _ in range(LOSSES):
                time.sleep(chance.uniform(0.0, 6.0))
                lose_state(cluster)
        operator.over.set()
        operator.join()
        agreement.settle(cluster, log, names, timeout=PATIENCE)
        resumed = cluster.cli("destination", "resume", "lines")
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        eventually(lambda: not announced(cluster.lines(), load.accepted), "all is told", timeout=PATIENCE)
        problems, repeats = told_in_order(cluster.lines())
        pushes = {line["id"] for line in cluster.lines() if line["type"] == "changegroup.1"}
        for path, wanted in (("/hook", pushes), ("/hook/bot", {line["id"] for line in cluster.lines()})):
            eventually(lambda: wanted <= set(list_received(hooks, path)), f"{path} got all", timeout=PATIENCE)  # noqa: B023
            assert set(list_received(hooks, path)) == wanted
            problems += list_misordered(hooks, path)
        cluster.kill("notifier", "dashboard")
        acts = {each.act.reason: each for each in ActJournal(str(tmp_path / "anew.db"), log).list_newest(10**6)}
    told(f"{LOSSES} losses, {len(load.accepted)} pushes, {repeats} lines again")
    told(f"{len(hooks.requests)} deliveries tried, {len(operator.answered)} of {len(acts)} acts answered")
    assert problems + load.failed == []
    assert operator.answered.items() <= {reason: each.number for reason, each in acts.items()}.items()
    assert not [reason for reason in operator.answered if acts[reason].outcome is ActOutcome.BEGUN]
    assert len({each.number for each in acts.values()}) == len(acts)


def list_received(hooks: Endpoint, path: str) -> list[str]:
    return [each.headers["vcsreplicator-id"] for each in list(hooks.requests) if each.path == path]


def list_misordered(hooks: Endpoint, path: str) -> list[str]:
    """First attempts for a repository that came behind those of a later message."""
    found, newest, seen = [], dict[str, int](), set[str]()
    for each in list(hooks.requests):
        name, sequence = each.body["data"]["repo_url"], int(each.headers["vcsreplicator-sequence"])
        if each.path != path or each.headers["vcsreplicator-id"] in seen:
            continue
        seen.add(each.headers["vcsreplicator-id"])
        if sequence < newest.get(name, 0):
            found.append(f"{path}: {sequence} of {name} after {newest[name]}")
        newest[name] = max(sequence, newest.get(name, 0))
    return found
