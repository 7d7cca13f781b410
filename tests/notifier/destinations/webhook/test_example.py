# SPDX-License-Identifier: GPL-2.0-or-later
"""The test of a subscription: an example that its endpoint gets at once, and what an operator reads of the answer."""

import base64
import hashlib
import hmac
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from hgext.vcsreplicator.log.requests import OperatorRequest
from notifier.clients.secret import Secret
from notifier.destinations.state import Kind
from notifier.destinations.webhook.destination import Webhooks, WebhookSettings
from notifier.destinations.webhook.example import EXAMPLE_URL
from notifier.destinations.webhook.subscription import Subscription
from testing.builders.notifier.endpoint import Endpoint, Reply
from testing.builders.notifier.webhooks import open_webhooks
from testing.clock import HandClock
from testing.waiting import eventually

pytestmark = pytest.mark.processes

KEY = "a key of thirty-two bytes or more"


@dataclass(frozen=True, slots=True)
class ExampleBench:
    """The destination `hooks`, whose subscription `ci` signs with KEY and wants nothing that there is."""

    endpoint: Endpoint
    webhooks: Webhooks

    def ask(self, number: int = 1, name: str = "ci") -> str | None:
        """Ask once; None while the test goes on."""
        asked = OperatorRequest(number, "hooks", Kind.TEST_SUBSCRIPTION, {"name": name}, "dana", 1.0, None, None)
        return self.webhooks.carry_out(asked)

    def wait_for_answer(self, number: int = 1) -> str:
        answers: list[str] = []
        eventually(lambda: answers.extend(filter(None, [self.ask(number)])) or answers)
        return answers[0]


@pytest.fixture
def tested(tmp_path: Path) -> Iterator[ExampleBench]:
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    with Endpoint() as endpoint:
        ci = Subscription(url=endpoint.url, filter="`false`", secrets=(Secret(file=str(tmp_path / "key")),))
        settings = WebhookSettings(
            database=str(tmp_path / "deliveries.db"),
            subscriptions={"ci": ci},
            allow=("127.0.0.0/8",),
            allow_http=True,
        )
        with closing(open_webhooks(settings, HandClock(time.time()))) as webhooks:
            yield ExampleBench(endpoint, webhooks)


def test_an_example_is_signed_and_names_no_repository_that_can_exist(tested: ExampleBench) -> None:
    assert tested.wait_for_answer() == "status 200 after 0.000 s"
    [request] = tested.endpoint.requests
    content = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.{request.text}"
    digest = hmac.new(KEY.encode(), content.encode(), hashlib.sha256).digest()
    assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert (request.body["type"], request.body["data"]["repo_url"]) == ("changegroup.1", EXAMPLE_URL)


def test_each_example_has_an_id_of_its_own(tested: ExampleBench) -> None:
    """A receiver drops an id that it has seen."""
    for number in (1, 2):
        tested.wait_for_answer(number)
    assert len({request.headers["webhook-id"] for request in tested.endpoint.requests}) == 2


def test_an_answer_is_shown_in_one_harmless_line_and_bounded(tested: ExampleBench) -> None:
    tested.endpoint.reply = lambda request: Reply(status=500, body=b"no\n\x1b[2J\xff" + b"x" * 9000)
    answer = tested.wait_for_answer()
    assert answer.startswith(r"failed: status 500 after 0.000 s: no\n\x1b[2J" + "\N{REPLACEMENT CHARACTER}xx")
    assert answer.count("x") == 4096 - len(b"no\n\x1b[2J\xff") + 1


def test_a_test_sends_once_and_touches_no_delivery_and_no_health(tested: ExampleBench) -> None:
    tested.endpoint.reply = lambda request: Reply(status=410)
    assert tested.wait_for_answer() == tested.wait_for_answer() == "failed: status 410 after 0.000 s"
    assert len(tested.endpoint.requests) == 1
    assert tested.webhooks.find_troubles() == []


def test_a_slow_endpoint_holds_nothing_and_few_tests_run_at_once(tested: ExampleBench) -> None:
    go_on = threading.Event()
    tested.endpoint.reply = lambda request: Reply(hang=go_on)
    assert [tested.ask(number) for number in (1, 2, 3, 4)] == [None] * 4
    assert tested.ask(5, name="no") is None, "not looked at yet"
    go_on.set()
    assert {tested.wait_for_answer(number) for number in (1, 2, 3, 4)} == {"status 200 after 0.000 s"}
    assert tested.ask(5, name="no") == "nothing sent: there is no subscription 'no'"


def test_a_subscription_that_does_not_exist_is_not_tested(tested: ExampleBench) -> None:
    assert tested.ask(name="no") == "nothing sent: there is no subscription 'no'"
