# SPDX-License-Identifier: GPL-2.0-or-later
"""Webhooks from notice to endpoint: retries, order, fairness, pauses, redelivery."""

import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY

from hgext.vcsreplicator.log import NOTICES, Log
from hgext.vcsreplicator.words.clock import DAY, SystemClock
from hgext.vcsreplicator.words.errors import Rejected, Unavailable
from hgext.vcsreplicator.words.event import Type
from notifier.delivery.window import Delivery
from notifier.destinations.webhook.deliveries import AttemptEnd, Deliveries, DeliveryState
from notifier.destinations.webhook.destination import FILTER_FAILED, WebhookSettings
from notifier.destinations.webhook.statements import LAST_ERROR
from notifier.destinations.webhook.subscription import Order, Subscription
from notifier.destinations.webhook.subscriptions import StoredSubscription, SubscriptionTable
from notifier.messages.message import messages
from notifier.publishing.condition import PartedDestination
from notifier.publishing.reading import describe_missing
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.builders.notifier.notices import a_notice, an_event, publish, publish_pushes
from testing.builders.notifier.notifying import FAST, PUBLIC, Notifier
from testing.builders.notifier.webhooks import open_webhooks
from testing.clock import HandClock
from testing.metrics import value_of
from testing.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def settings(tmp_path: Path) -> WebhookSettings:
    return WebhookSettings(
        database=str(tmp_path / "deliveries.db"),
        ladder=(0, 0.05, 0.1),
        jitter=0,
        allow=("127.0.0.0/8",),
        allow_http=True,
        patience=FAST,
    )


@pytest.fixture
def deliveries(settings: WebhookSettings) -> Iterator[Deliveries]:
    with closing(Deliveries(settings.database)) as deliveries:
        yield deliveries


def run_sql(database: str, statement: str) -> list[Any]:
    """Run a statement on the file, as an operator might."""
    with closing(sqlite3.connect(database, timeout=60)) as opened, opened:
        return opened.execute(statement).fetchall()


def to(endpoint: Endpoint, **more: Any) -> Subscription:
    return Subscription(url=endpoint.url, **{"timeout": PATIENCE, **more})


def states(deliveries: Deliveries) -> dict[str, int]:
    return deliveries.counts()


def failing(*times: int, status: int = 500) -> Callable[[Request], Reply]:
    """Fails the first `times` requests of each message."""
    seen: dict[str, int] = {}
    limit = times[0] if times else 10**9

    def reply(request: Request) -> Reply:
        name = request.headers["webhook-id"]
        seen[name] = seen.get(name, 0) + 1
        return Reply(status=status if seen[name] <= limit else 200)

    return reply


def test_each_subscription_gets_what_it_wants(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint() as all_of_it, Endpoint() as only_try:
        wanted = {"all": to(all_of_it), "try": to(only_try, filter="ends_with(data.repo_url, '/try')")}
        notifier.start(hooks=replace(settings, subscriptions=wanted))
        publish_pushes(log, "try", 1, 2)
        publish_pushes(log, "other", 1, 2)
        eventually(lambda: states(deliveries) == {"delivered": 6})
        assert sorted(all_of_it.told) == [("other", 1), ("other", 2), ("try", 1), ("try", 2)]
        assert only_try.told == [("try", 1), ("try", 2)]


def test_a_lost_machine_delivers_all_that_it_owed_on_another_one(
    log: Log, notifier: Notifier, settings: WebhookSettings
) -> None:
    with Endpoint(failing()) as endpoint:
        settings = replace(settings, ladder=(0, 0.05, 3600))
        with closing(Deliveries(settings.database)) as before:
            before.subscriptions.add("all", to(endpoint), origin="command", who="dana", now=1.0)
        notifier.start(hooks=settings)
        publish_pushes(log, "x", 1, 8)
        notifier.settled("hooks")
        notifier.stop()
        for file in Path(settings.database).parent.glob("deliveries.db*"):
            file.unlink()
        endpoint.reply = lambda request: Reply()
        endpoint.requests.clear()
        notifier.start(hooks=settings)
        publish_pushes(log, "y", 1, 1)  # its success makes all others due
        eventually(lambda: len(endpoint.told) >= 9, "all that was owed")
        assert sorted(endpoint.told) == [*(("x", number) for number in range(1, 9)), ("y", 1)]


@pytest.mark.parametrize("loses_position", [False, True], ids=["the log has the position", "the log lost it"])
def test_an_earlier_releases_database_that_vanished_is_not_made_anew(
    log: Log, notifier: Notifier, settings: WebhookSettings, monkeypatch: pytest.MonkeyPatch, loses_position: bool
) -> None:
    with Endpoint() as endpoint:
        settings = replace(settings, subscriptions={"all": to(endpoint)})
        log.acknowledge("notifier-hooks", NOTICES, {0: 1})
        notifier.state.record_condition("hooks", {"position": 1}, now=1.0)
        publish_pushes(log, "x", 1, 2)
        if loses_position:
            monkeypatch.setattr(type(log), "stored", lambda *_: {})
        notifier.start(hooks=settings)
        trouble = eventually(lambda: notifier.state.conditions()["hooks"].get("trouble") or "")
        assert "is missing, with the subscriptions" in trouble
        assert not Path(settings.database).exists()
        monkeypatch.undo()
        assert notifier.position("hooks") == 1
        subprocess.run(trouble.partition("begin without them: ")[2], shell=True, check=True)
        eventually(lambda: ("x", 2) in endpoint.told)


def test_the_advice_for_a_vanished_database_makes_it_for_the_owner(
    log: Log, settings: WebhookSettings, tmp_path: Path
) -> None:
    log.acknowledge("notifier-hooks", NOTICES, {0: 0})
    folder = tmp_path / "that's it"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, 4711, 4712)
    state = str(tmp_path / "notifier.db")
    advice = describe_missing("hooks", replace(settings, database=str(folder / "deliveries.db")), log, state)
    assert advice is not None
    subprocess.run(advice.partition("begin without them: ")[2], shell=True, check=True)
    made, of = (folder / "deliveries.db").stat(), folder.stat()
    assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (of.st_uid, of.st_gid, 0o640)


def test_what_must_exist_is_what_the_settings_say(log: Log) -> None:
    log.acknowledge("notifier-own", NOTICES, {0: 0})
    assert describe_missing("own", SimpleNamespace(database="/nowhere/at/all.db"), log, "/nowhere.db") is None


def test_failed_delivery_climbs_the_ladder_with_the_same_id(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(failing(2)) as endpoint:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint)}))
        publish_pushes(log, "x", 1, 1)
        eventually(lambda: states(deliveries) == {"delivered": 1})
        assert len({request.headers["webhook-id"] for request in endpoint.requests}) == 1
        assert [request.headers["vcsreplicator-attempt"] for request in endpoint.requests] == ["1", "2", "3"]


@pytest.mark.parametrize("origin", ["command", "file"])
def test_a_subscription_with_http_is_paused_where_http_is_refused(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries, origin: str
) -> None:
    with Endpoint() as endpoint:
        settings = replace(settings, subscriptions={"a": to(endpoint)} if origin == "file" else {})
        if origin == "command":
            deliveries.subscriptions.add("a", to(endpoint), origin="command", who="dana", now=0)
        notifier.start(hooks=replace(settings, allow_http=False))
        publish_pushes(log, "x", 1, 1)
        eventually(lambda: deliveries.subscriptions.all()[0].paused_reason)
        assert (deliveries.subscriptions.all()[0].paused_reason or "").startswith("http is not allowed; ")
        assert states(deliveries) == {"queued": 1}
        notifier.stop()
        notifier.start(hooks=settings)
        deliveries.subscriptions.pause("a", None, who="dana", now=0)
        eventually(lambda: states(deliveries) == {"delivered": 1})


def test_a_delivery_at_the_end_of_the_ladder_can_be_redelivered(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(failing()) as endpoint:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint)}))
        publish_pushes(log, "x", 1, 1)
        eventually(lambda: states(deliveries) == {"exhausted": 1})
        [kept] = deliveries.newest(state="exhausted")
        assert (kept["attempt"], kept["status"], kept["error"]) == (3, 500, "status 500")
        endpoint.reply = lambda request: Reply()
        assert deliveries.redeliver([kept["id"]], who="dana", now=time.time()) == [kept["id"]]
        eventually(lambda: states(deliveries) == {"delivered": 1})
        assert (deliveries.subscriptions.history(1)[0][2:]) == ("redelivered", "dana")


def test_delivery_that_is_given_up_is_named_in_the_log_with_its_event(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    notice = a_notice(an_event("x", 1))
    with Endpoint(failing(status=422)) as endpoint, structlog.testing.capture_logs() as lines:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint)}))
        publish(log, notice)
        eventually(lambda: states(deliveries) == {"exhausted": 1})
        line = eventually(lambda: next((line for line in lines if line["event"] == "delivery given up"), None))
    assert line == {
        **{
            "event": "delivery given up",
            "log_level": "error",
            "subscription": "a",
            "reason": "422: another attempt would get the same answer",
        },
        **{"delivery": 1, "message": f"{notice.event.id}.changegroup.1", "repository": notice.event.repository},
        **{"sequence": 1, "event_id": notice.event.id},
    }


def test_an_attempt_whose_delivery_is_gone_keeps_no_other_from_its_end(
    deliveries: Deliveries,
) -> None:
    assert deliveries.names(17) == {}


def test_answer_that_would_not_change_is_not_asked_for_again(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(failing(status=422)) as endpoint:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint)}))
        publish_pushes(log, "x", 1, 1)
        eventually(lambda: states(deliveries) == {"exhausted": 1})
        assert len(endpoint.requests) == 1


def test_retry_after_is_waited_for(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(lambda request: Reply(status=503, headers=(("retry-after", "3600"),))) as endpoint:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint)}))
        publish_pushes(log, "x", 1, 1)
        [row] = eventually(lambda: [row for row in deliveries.newest() if row["attempt"] == 1])
        assert row["mature_at"] >= row["created_at"] + 3600


def test_slow_endpoint_is_repeated_and_gets_the_message_twice(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    hang = threading.Event()
    with Endpoint(
        lambda request: Reply(hang=None if request.headers["vcsreplicator-attempt"] > "1" else hang)
    ) as endpoint:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint, timeout=1.0)}))
        publish_pushes(log, "x", 1, 1)
        eventually(lambda: states(deliveries) == {"delivered": 1})
        assert endpoint.told == [("x", 1), ("x", 1)]


def test_strict_order_holds_over_failures(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(failing(1)) as endpoint:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint)}))
        publish_pushes(log, "x", 1, 5)
        eventually(lambda: states(deliveries) == {"delivered": 5})
        assert [seq for _, seq in endpoint.told] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_speed_does_not_wait_for_a_failed_delivery(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(
        lambda request: Reply(status=500 if request.headers["vcsreplicator-sequence"] == "1" else 200)
    ) as endpoint:
        slow = replace(settings, ladder=(0, 3600), subscriptions={"a": to(endpoint, order=Order.SPEED)})
        notifier.start(hooks=slow)
        publish_pushes(log, "x", 1, 5)
        eventually(lambda: states(deliveries) == {"delivered": 4, "queued": 1})


def test_an_endpoint_that_is_gone_pauses_its_subscription(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(failing(status=410)) as endpoint, Endpoint() as other:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint), "b": to(other)}))
        publish_pushes(log, "x", 1, 3)
        eventually(lambda: states(deliveries) == {"delivered": 3, "queued": 3})
        reasons = {"a": "410: the endpoint is gone", "b": None}
        eventually(lambda: {each.name: each.paused_reason for each in deliveries.subscriptions.all()} == reasons)
        assert deliveries.subscriptions.history(1)[0][1:] == ("a", "paused: 410: the endpoint is gone", "vcsreplicator")
        endpoint.reply = lambda request: Reply()
        deliveries.subscriptions.pause("a", None, who="dana", now=time.time())
        eventually(lambda: states(deliveries) == {"delivered": 6})
        assert [seq for _, seq in endpoint.told] == [1, 1, 2, 3]
        assert {each.headers["vcsreplicator-attempt"] for each in endpoint.requests} == {
            "1"
        }  # being gone is no attempt


def test_endpoint_that_fails_for_long_is_paused(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(failing()) as endpoint:
        impatient = replace(settings, pause_after=0.1, ladder=(0, *[0.05] * 100), subscriptions={"a": to(endpoint)})
        notifier.start(hooks=impatient)
        publish_pushes(log, "x", 1, 1)
        eventually(lambda: deliveries.subscriptions.all()[0].paused_reason)
        assert "failing for" in (deliveries.subscriptions.all()[0].paused_reason or "")
        assert states(deliveries) == {"queued": 1}


def test_stopped_in_the_middle_it_goes_on_after_the_restart(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(failing()) as endpoint:
        patient = replace(settings, ladder=(0, *[0.05] * 1000), subscriptions={"a": to(endpoint)})
        notifier.start(hooks=patient)
        publish_pushes(log, "x", 1, 3)
        eventually(lambda: endpoint.requests)
        notifier.stop()
        endpoint.reply = lambda request: Reply()
        notifier.start(hooks=patient)
        eventually(lambda: states(deliveries) == {"delivered": 3})


def test_subscription_taken_from_the_file_cancels_what_waits_for_it(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(failing()) as endpoint:
        notifier.start(hooks=replace(settings, ladder=(0, 3600), subscriptions={"a": to(endpoint)}))
        publish_pushes(log, "x", 1, 2)
        eventually(lambda: states(deliveries) == {"queued": 2})
        notifier.stop()
        notifier.start(hooks=replace(settings, subscriptions={}))
        assert states(deliveries) == {"cancelled": 2}


def test_nothing_is_queued_for_a_subscription_that_was_removed(deliveries: Deliveries) -> None:
    deliveries.subscriptions.add("ci", Subscription(url="https://ci.example/"), origin="command", who="dana", now=1.0)
    wanting = deliveries.subscriptions.all()
    first, second = (messages(a_notice(an_event("x", seq)), seq, PUBLIC)[0] for seq in (1, 2))
    assert len(deliveries.enqueue([(first, wanting)], 2.0)) == 1
    deliveries.subscriptions.remove("ci", who="dana", now=3.0)
    assert deliveries.enqueue([(second, wanting)], 4.0) == []
    assert deliveries.redeliver([1], who="dana", now=5.0) == []
    assert states(deliveries) == {"cancelled": 1}


def test_messages_go_with_their_deliveries_though_an_older_one_waits(
    settings: WebhookSettings, deliveries: Deliveries
) -> None:
    for name in ("paused", "ci"):
        deliveries.subscriptions.add(name, Subscription(url="https://x/"), origin="command", who="dana", now=1.0)
    paused, ci = deliveries.subscriptions.all()
    each = [messages(a_notice(an_event("x", seq)), seq, PUBLIC, "signed")[0] for seq in range(1, 5)]
    deliveries.enqueue([(message, [ci if number else paused]) for number, message in enumerate(each)], 2.0)
    deliveries.subscriptions.remove("ci", who="dana", now=3.0)
    deliveries.purge(delivered_before=9.0, failed_before=9.0)
    assert run_sql(
        settings.database, "SELECT sequence, signed FROM messages JOIN signed_notices ON number = message"
    ) == [(1, "signed")]
    deliveries.subscriptions.remove("paused", who="dana", now=4.0)
    deliveries.purge(delivered_before=9.0, failed_before=9.0)
    assert run_sql(settings.database, "SELECT sequence FROM messages") == []
    assert run_sql(settings.database, "SELECT * FROM signed_notices") == []


def test_metric_of_a_paused_subscription_ends_when_it_is_removed(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    def paused() -> float | None:
        labels = {"destination": "hooks", "subscription": "gone"}
        return REGISTRY.get_sample_value("vcsreplicator_notifier_subscription_paused_flag", labels)

    with Endpoint(lambda request: Reply(status=410)) as endpoint:
        deliveries.subscriptions.add("gone", to(endpoint), origin="command", who="dana", now=1.0)
        notifier.start(hooks=settings)
        publish_pushes(log, "x", 1, 1)
        eventually(lambda: paused() == 1)
        deliveries.subscriptions.remove("gone", who="dana", now=2.0)
        publish_pushes(log, "x", 2, 2)
        eventually(lambda: paused() is None)


def test_subscription_added_by_a_command_works_at_once(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint() as endpoint:
        notifier.start(hooks=settings)
        publish_pushes(log, "x", 1, 1)
        notifier.settled("hooks")
        assert deliveries.subscriptions.add("late", to(endpoint), origin="command", who="dana", now=time.time())
        publish_pushes(log, "x", 2, 2)
        eventually(lambda: endpoint.told == [("x", 2)])


def test_same_message_twice_is_one_delivery(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint() as endpoint:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint)}))
        publish(log, a_notice(an_event("x", 1)), a_notice(an_event("x", 1)))
        publish_pushes(log, "x", 2, 2)
        eventually(lambda: states(deliveries) == {"delivered": 2})
        assert endpoint.told == [("x", 1), ("x", 2)]


def test_filter_that_cannot_be_applied_to_a_message_does_not_want_it(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint() as endpoint:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint, filter="length(data.heads) > `0`")}))
        publish(log, a_notice(an_event("x", 1, type=Type.CREATED)), a_notice(an_event("x", 2)))
        eventually(lambda: states(deliveries) == {"delivered": 1})
        assert endpoint.told == [("x", 2)]


@pytest.mark.parametrize(("template", "walks"), [("data.repo_url == 'https://hg.example/{}'", 1), (None, 0)])
def test_message_is_walked_once_for_all_filters(settings: WebhookSettings, template: str | None, walks: int) -> None:
    walked = []

    class WalkedDict(dict[str, Any]):
        def values(self) -> Any:
            walked.append(self)
            return super().values()

    wanted = {
        f"s{number}": Subscription(url="http://127.0.0.1:9/", filter=template and template.format(number))
        for number in range(100)
    }
    [message] = messages(a_notice(), 0, PUBLIC)
    hooks = open_webhooks(replace(settings, subscriptions=wanted), HandClock())
    with closing(hooks):
        hooks.submit(Delivery(number=1, message=replace(message, data=WalkedDict(message.data)), attempt=1))
        assert [each.error for each in hooks.outcomes(0)] == [None]
    assert len(walked) == walks


@pytest.mark.parametrize("broken", ["contains(data.repo_url, `1`)", "|".join(["[@, @]"] * 60)])
def test_a_filter_that_breaks_hurts_its_subscription_alone(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries, broken: str
) -> None:
    with Endpoint() as endpoint:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint, filter=broken), "b": to(endpoint)}))
        publish_pushes(log, "x", 1, 3)
        eventually(lambda: states(deliveries) == {"delivered": 3})
        told = [
            (name, what[:13])
            for _, name, what, _ in deliveries.subscriptions.history(10)
            if not what.startswith("added")
        ]
        assert told == [("a", "filter failed")]
        assert value_of(FILTER_FAILED.labels("hooks", "a")) >= 3


def test_a_filter_that_breaks_is_named_in_the_log_with_the_reason(
    log: Log, notifier: Notifier, settings: WebhookSettings
) -> None:
    notice = a_notice(an_event("x", 1))
    with Endpoint() as endpoint, structlog.testing.capture_logs() as lines:
        broken = to(endpoint, filter="contains(data.repo_url, `1`)")
        notifier.start(hooks=replace(settings, subscriptions={"a": broken}))
        publish(log, notice)
        line = eventually(lambda: next((line for line in lines if line["event"] == "filter failed"), None))
    assert {name: line[name] for name in ("log_level", "subscription", "repository", "seq", "event_id")} == {
        **{"log_level": "warning", "subscription": "a"},
        **{"repository": notice.event.repository, "seq": 1, "event_id": notice.event.id},
    }
    assert line["reason"].startswith("TypeError: ")


def test_a_subscription_that_cannot_be_read_is_left_out_alone(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    assert deliveries.subscriptions.add("bad", Subscription(url="https://x/"), origin="command", who="dana", now=1.0)
    run_sql(settings.database, "UPDATE subscriptions SET content = '{}'")
    with Endpoint() as endpoint:
        notifier.start(hooks=replace(settings, subscriptions={"a": to(endpoint)}))
        publish_pushes(log, "x", 1, 1)
        eventually(lambda: endpoint.requests)
    [bad] = deliveries.subscriptions.list_unreadable()
    assert "'url' is missing" in bad.reason
    assert deliveries.subscriptions.remove("bad", who="dana", now=2.0)
    assert deliveries.subscriptions.list_unreadable() == []


def test_the_file_replaces_what_cannot_be_read_of_it(settings: WebhookSettings, deliveries: Deliveries) -> None:
    wanted = Subscription(url="https://x/")
    deliveries.subscriptions.follow_file({"a": wanted, "gone": wanted}, now=1.0)
    run_sql(settings.database, "UPDATE subscriptions SET content = '{}'")
    deliveries.subscriptions.follow_file({"a": wanted}, now=2.0)
    assert [(each.id, each.subscription) for each in deliveries.subscriptions.all()] == [(1, wanted)]
    assert deliveries.subscriptions.list_unreadable() == []


def test_a_stop_ends_hanging_attempts_and_the_next_start_repeats_them(
    log: Log,
    notifier: Notifier,
    settings: WebhookSettings,
    deliveries: Deliveries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("notifier.destinations.webhook.dispatcher.CLOSE_PATIENCE", 0.1)
    hang = threading.Event()
    with Endpoint(lambda request: Reply(hang=hang)) as endpoint:
        started = replace(settings, subscriptions={"a": to(endpoint, timeout=120)})
        notifier.start(hooks=started)
        publish_pushes(log, "x", 1, 1)
        eventually(lambda: endpoint.requests)
        notifier.stop()
        eventually(lambda: not any(each.name.startswith("webhook") for each in threading.enumerate()))
        assert states(deliveries) == {"queued": 1}
        hang.set()
        notifier.start(hooks=started)
        eventually(lambda: states(deliveries) == {"delivered": 1})


def test_hanging_endpoint_does_not_delay_the_others(
    log: Log, notifier: Notifier, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    hang = threading.Event()
    with Endpoint(lambda request: Reply(hang=hang)) as stuck, Endpoint() as fine:
        wanted = {"stuck": to(stuck, timeout=60), "fine": to(fine)}
        notifier.start(hooks=replace(settings, workers=8, subscriptions=wanted))
        for repository in range(20):
            publish_pushes(log, f"r{repository}", 1, 5)
        eventually(lambda: states(deliveries).get("delivered") == 100)
        hang.set()


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"url": "ftp://x"}, "url: expected https"),
        ({"url": "https://user:pw@x/"}, "url: expected https"),
        ({"url": "https://x/a b"}, "url: expected ASCII"),
        ({"method": "GET"}, "method: expected POST or PUT"),
        ({"filter": "[[["}, "filter: not a JMESPath"),
        ({"headers": {"Host": "x"}}, "headers.Host: not allowed"),
        ({"headers": {"a": "b\r\nc: d"}}, "headers.a: expected printable ASCII"),
        ({"headers": {"Content-Type": "text/html"}}, r"headers.Content-Type: not allowed"),
        ({"headers": {"a": "é"}}, "headers.a: expected printable ASCII"),
        ({"url": "https://@x/"}, "url: expected https"),
        ({"url": "https://x:99999/"}, "url: expected https"),
        ({"url": "https://[::1/"}, "url: expected https"),
        ({"types": ("push",)}, "types: expected some of .*, got push"),
        ({"types": ()}, r"types: expected some of .*, got none"),
        ({"timeout": float("nan")}, "timeout: expected a number of seconds from 0.001 to 120, got nan"),
        ({"concurrency": 0}, "concurrency: expected a number from 1 to 64, got 0"),
    ],
)
def test_subscription_is_checked_whole(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Subscription(**{"url": "https://example.org/", **wrong})


def test_an_endpoint_that_fails_for_an_hour_gets_everything_in_order(
    log: Log, tmp_path: Path, settings: WebhookSettings, deliveries: Deliveries
) -> None:
    clock = HandClock(time.time())
    with Endpoint(failing()) as endpoint:
        ladder = replace(settings, ladder=(0, 10, 60, 300, 1800, 7200), subscriptions={"a": to(endpoint)})
        webhooks = open_webhooks(ladder, clock)
        try:
            for seq in (1, 2, 3):
                [message] = messages(a_notice(an_event("x", seq)), seq, PUBLIC)
                webhooks.submit(Delivery(number=seq, message=message, attempt=1))
            assert [outcome.error for outcome in webhooks.outcomes(0)] == [None] * 3
            for attempt, minutes in enumerate((0.2, 1, 5, 30), 1):
                eventually(lambda attempt=attempt: deliveries.newest()[-1]["attempt"] == attempt)
                clock.advance(minutes * 60)
            eventually(lambda: deliveries.newest()[-1]["attempt"] == 5)
            endpoint.reply = lambda request: Reply()
            clock.advance(7200)
            eventually(lambda: states(deliveries) == {"delivered": 3})
        finally:
            webhooks.close()
        assert [seq for _, seq in endpoint.told] == [1] * 6 + [2, 3]


@pytest.mark.parametrize("while_running", [True, False], ids=["while it runs", "between two runs"])
def test_a_clock_that_is_set_back_delays_no_repeat_by_as_much(
    settings: WebhookSettings, deliveries: Deliveries, while_running: bool
) -> None:
    clock = HandClock(time.time())
    with Endpoint(failing(1)) as endpoint:
        given = replace(settings, ladder=(0, 60), subscriptions={"a": to(endpoint)})
        webhooks = open_webhooks(given, clock)
        try:
            webhooks.submit(a_delivery(1))
            webhooks.outcomes(0)
            eventually(lambda: [each["attempt"] for each in deliveries.newest()] == [1])
            if while_running:
                clock.set_back(30 * DAY)
                eventually(lambda: deliveries.newest()[0]["mature_at"] == pytest.approx(clock.now() + 60, abs=1))
                clock.advance(60)
            else:
                webhooks.close()
                clock.set_back(30 * DAY)
                webhooks = open_webhooks(given, clock)
                eventually(lambda: deliveries.newest()[0]["mature_at"] == pytest.approx(clock.now() + DAY, abs=1))
                clock.advance(DAY)  # an endpoint may have asked for as much
            eventually(lambda: states(deliveries) == {"delivered": 1})
        finally:
            webhooks.close()


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_clock_that_is_set_forward_pauses_no_subscription(
    settings: WebhookSettings, deliveries: Deliveries, is_under_way: bool
) -> None:
    clock = HandClock(time.time())

    def reply(request: Request) -> Reply:
        count = len(endpoint.requests)
        if is_under_way and count == 2:
            clock.set_back(-30 * DAY)
        return Reply(status=500 if count <= 2 else 200)

    with Endpoint(reply) as endpoint:
        given = replace(settings, ladder=(0, 60, 60), subscriptions={"a": to(endpoint)})
        webhooks = open_webhooks(given, clock)
        try:
            webhooks.submit(a_delivery(1))
            webhooks.outcomes(0)
            eventually(lambda: [each["attempt"] for each in deliveries.newest()] == [1])
            if is_under_way:
                clock.advance(60)
            else:
                clock.set_back(-30 * DAY)
            eventually(lambda: [each["attempt"] for each in deliveries.newest()] == [2])
            assert [each.paused_reason for each in deliveries.subscriptions.all()] == [None]
            clock.advance(120)
            eventually(lambda: states(deliveries) == {"delivered": 1})
        finally:
            webhooks.close()


def test_results_are_kept_if_the_database_fails_beside_the_clock(
    settings: WebhookSettings, deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, failures = HandClock(time.time()), list[float]()

    def reply(request: Request) -> Reply:
        if len(endpoint.requests) == 1:
            clock.set_back(-30 * DAY)
        return Reply(status=500 if len(endpoint.requests) == 1 else 200)

    def follow_clock(self: Deliveries, seconds: float, now: float) -> None:
        if not failures:
            failures.append(seconds)
            raise Unavailable("its disk is away")
        followed(self, seconds, now)

    followed = Deliveries.follow_clock
    monkeypatch.setattr(Deliveries, "follow_clock", follow_clock)
    with Endpoint(reply) as endpoint:
        webhooks = open_webhooks(replace(settings, ladder=(0, 60), subscriptions={"a": to(endpoint)}), clock)
        try:
            webhooks.submit(a_delivery(1))
            webhooks.outcomes(0)
            eventually(lambda: [each["attempt"] for each in deliveries.newest()] == [1])
            clock.advance(120)
            eventually(lambda: states(deliveries) == {"delivered": 1})
        finally:
            webhooks.close()
    assert failures == [pytest.approx(30 * DAY, abs=1)]


def test_a_dispatcher_that_fails_is_reported_until_it_works_again(
    settings: WebhookSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_broken, last_change = threading.Event(), SubscriptionTable.last_change

    def fail(table: SubscriptionTable) -> int:
        if is_broken.is_set():
            raise RuntimeError("a defect")
        return last_change(table)

    monkeypatch.setattr(SubscriptionTable, "last_change", fail)
    clock = HandClock()
    hooks = open_webhooks(settings, clock)
    assert isinstance(hooks, PartedDestination)
    try:
        assert hooks.find_troubles() == []
        is_broken.set()
        [trouble] = eventually(hooks.find_troubles)
        assert (trouble.text, trouble.since) == (
            "destination hooks delivers nothing: a defect; see: journalctl -u vcsreplicator-notifier",
            clock.now(),
        )
        is_broken.clear()
        eventually(lambda: hooks.find_troubles() == [])
    finally:
        hooks.close()


def test_what_comes_after_a_pause_is_not_attempted_during_loading(
    settings: WebhookSettings, deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_all, has_read, may_go_on = SubscriptionTable.all, threading.Event(), threading.Event()

    def read_slowly(table: SubscriptionTable) -> list[StoredSubscription]:
        found = read_all(table)
        if threading.current_thread().name == "webhook-hooks" and not has_read.is_set():
            has_read.set()
            assert may_go_on.wait(PATIENCE)
        return found

    monkeypatch.setattr(SubscriptionTable, "all", read_slowly)
    with Endpoint() as paused, Endpoint() as other:
        hooks = open_webhooks(replace(settings, subscriptions={"a": to(paused)}), SystemClock())
        try:
            assert has_read.wait(PATIENCE)
            deliveries.subscriptions.pause("a", "not now", who="dana", now=0.0)
            hooks.submit(a_delivery(1))
            assert [each.error for each in hooks.outcomes(0)] == [None]
            may_go_on.set()
            deliveries.subscriptions.add("b", to(other), origin="command", who="dana", now=0.0)
            hooks.submit(a_delivery(2))
            assert [each.error for each in hooks.outcomes(0)] == [None]
            eventually(lambda: other.told == [("x", 2)] and states(deliveries).get("delivered"))
            assert (paused.told, states(deliveries)) == ([], {"queued": 2, "delivered": 1})
        finally:
            may_go_on.set()
            hooks.close()


def a_delivery(seq: int) -> Delivery:
    [message] = messages(a_notice(an_event("x", seq)), seq, PUBLIC)
    return Delivery(number=seq, message=message, attempt=1)


def test_message_counts_only_once_its_rows_are_committed(settings: WebhookSettings, deliveries: Deliveries) -> None:
    with Endpoint() as endpoint:
        stopped = to(endpoint)
        hooks = open_webhooks(replace(settings, subscriptions={"a": stopped}), SystemClock())
        deliveries.subscriptions.pause("a", "not now", who="dana", now=0.0)
        blocker = sqlite3.connect(settings.database, isolation_level=None)
        blocker.execute(
            "CREATE TRIGGER full AFTER INSERT ON deliveries WHEN NEW.id > 1 BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        for seq in (1, 2):
            hooks.submit(a_delivery(seq))
        assert [type(each.error) for each in hooks.outcomes(0)] == [Unavailable, Unavailable]
        assert deliveries.counts() == {}  # all or none
        blocker.execute("DROP TRIGGER full")
        blocker.close()
        for seq in (1, 2):
            hooks.submit(a_delivery(seq))
        assert [each.error for each in hooks.outcomes(0)] == [None, None]
        assert deliveries.counts() == {"queued": 2}
        hooks.close()


def test_rows_are_read_in_the_order_of_their_arrival(settings: WebhookSettings, deliveries: Deliveries) -> None:
    deliveries.subscriptions.add("a", Subscription(url="https://ci.example/"), origin="command", who="dana", now=0.0)
    [stored] = deliveries.subscriptions.all()
    items = deliveries.enqueue([(a_delivery(seq).message, [stored]) for seq in (1, 2, 3)], 5.0)
    later = AttemptEnd(
        begun=items[0], state=DeliveryState.QUEUED, attempt=1, mature_at=99.0, status=500, error="status 500"
    )
    deliveries.record([later], 6.0)
    with closing(Deliveries(settings.database)) as again:
        found = [(item.id, item.mature_at) for item in again.queued()]
    assert found == [(items[0].id, 99.0), (items[1].id, 5.0), (items[2].id, 5.0)]


def test_hostile_text_of_one_message_costs_no_other_of_its_batch(settings: WebhookSettings) -> None:
    with Endpoint() as endpoint:
        hooks = open_webhooks(replace(settings, subscriptions={"a": to(endpoint)}), SystemClock())
        for seq in (1, 2, 3):
            found = a_delivery(seq)
            hooks.submit(replace(found, message=replace(found.message, replay="\ud800" if seq == 2 else None)))
        outcomes = {each.number: each.error for each in hooks.outcomes(0)}
        hooks.close()
    assert (outcomes[1], outcomes[3]) == (None, None)
    assert isinstance(outcomes[2], Rejected)
    assert "unexpected UnicodeEncodeError" in str(outcomes[2])


def test_why_a_subscription_fails_is_found_without_others_deliveries(
    settings: WebhookSettings, deliveries: Deliveries
) -> None:
    assert deliveries.last_error(1) is None
    with closing(sqlite3.connect(settings.database)) as database:
        [(*_, plan)] = database.execute(f"EXPLAIN QUERY PLAN {LAST_ERROR}", (1,))
    assert "USING INDEX deliveries_failed (subscription=?)" in plan


def test_a_subscription_that_an_operator_paused_is_reported_as_meant(
    settings: WebhookSettings, deliveries: Deliveries
) -> None:
    with Endpoint(lambda request: Reply()) as endpoint:
        hooks = open_webhooks(replace(settings, subscriptions={"a": to(endpoint)}), SystemClock())
        assert isinstance(hooks, PartedDestination)
        try:
            assert hooks.find_troubles() == []
            paused = time.time() + 3600
            deliveries.subscriptions.pause("a", "by an operator", who="dana", now=paused)
            deliveries.subscriptions.add_history("a", "redelivered", now=paused + 60)
            [trouble] = hooks.find_troubles()
            assert trouble.since == paused
            told = (
                "subscription a of hooks is paused: by an operator; to resume it: vcsreplicator subscription resume a"
            )
            assert (trouble.text, trouble.is_meant, trouble.is_urgent) == (told, True, False)
            deliveries.subscriptions.pause("a", None, who="dana", now=time.time())
            assert hooks.find_troubles() == []
        finally:
            hooks.close()
