# SPDX-License-Identifier: GPL-2.0-or-later
"""What webhooks owe, in the log: folders that are lost at any step, on a log in memory and a clock moved by hand."""

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import NOTICES, NOTIFIER, NewRecord, Record
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, Unavailable
from hgext.vcsreplicator.words.records import DESTINATION_GROUP
from hgext.vcsreplicator.words.shape import to_json
from notifier.clients.database import NOWHERE
from notifier.clients.secret import Secret
from notifier.destinations.webhook.deliveries import AttemptEnd, Deliveries, DeliveryState
from notifier.destinations.webhook.fairness import WaitingDelivery
from notifier.destinations.webhook.records import BATCH, BATCH_BYTES, SETTLES_WITHIN, DatabaseRecord, WebhookRecords
from notifier.destinations.webhook.signing import read_keys
from notifier.destinations.webhook.subscription import Subscription
from notifier.destinations.webhook.subscriptions import SubscriptionRecord, SubscriptionTable
from notifier.messages.message import Message, messages
from notifier.publishing.position import StoredPosition
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import a_notice, an_event, with_topics
from testing.builders.notifier.notifying import PUBLIC
from testing.clock import HandClock
from testing.seeds import seeds

GROUP = f"{DESTINATION_GROUP}hooks"
Delivered = tuple[str, str]


class Hooks:
    """The destination `hooks`, without threads and endpoints: each step is a call."""

    def __init__(self) -> None:
        self.log, self.clock = MemoryLog(), HandClock(1_000_000.0)
        with_topics(self.log)
        self.appends = Counter[str]()
        self.delivered = Counter[Delivered]()
        self.deliveries = Deliveries(NOWHERE)
        self.notices: list[Message] = []
        self.start()

    @property
    def stored(self) -> int:
        return self.log.stored(GROUP, NOTICES).get(0, 0)

    def start(self) -> None:
        """Start as the notifier does, and read on from the stored position."""
        position = StoredPosition("hooks", self.log, self.clock)

        def write(records: Sequence[NewRecord]) -> None:
            self.appends[records[0].topic] += 1
            position.write(records)

        self.records = WebhookRecords("hooks", self.log, self.deliveries, self.clock)
        self.records.restore(write)
        self.read_to = self.stored

    def lose_folder(self) -> None:
        self.deliveries.close()
        self.deliveries = Deliveries(NOWHERE)
        self.start()

    def subscribe(self, name: str) -> None:
        wanted = Subscription(url="https://ci.example/")
        self.deliveries.subscriptions.add(name, wanted, origin="command", who="dana", now=self.clock.now())
        self.store()

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            number = len(self.notices)
            [message] = messages(a_notice(an_event("x", number + 1)), number, PUBLIC)
            self.notices.append(message)

    def read(self) -> None:
        """Accept the notices that were not read yet."""
        new, self.read_to = self.notices[self.read_to :], len(self.notices)
        wanting = self.deliveries.subscriptions.all()
        self.deliveries.enqueue([(message, wanting) for message in new], self.clock.now())

    def store(self) -> None:
        position = max(self.stored, self.records.secure(self.read_to))
        self.log.acknowledge(GROUP, NOTICES, {0: position})

    def end(self, item: WaitingDelivery, state: DeliveryState) -> None:
        if state is DeliveryState.DELIVERED:
            self.delivered[self.name(item)] += 1
        attempt = item.attempt + 1
        ended = AttemptEnd(begun=item, state=state, attempt=attempt, mature_at=9.9, status=None, error="refused")
        self.deliveries.record([ended], self.clock.now())

    def name(self, item: WaitingDelivery) -> Delivered:
        row = self.deliveries.show(item.id)
        assert row is not None
        return row["message"], row["subscription"]

    def deliver_all(self) -> None:
        self.read()
        for item in self.deliveries.queued():
            self.end(item, DeliveryState.DELIVERED)
        self.clock.advance(2 * SETTLES_WITHIN)
        self.store()

    def in_log(self, kind: str) -> list[Record]:
        return [each for each in self.log.records(NOTIFIER) if str(each.key).startswith(f"{kind}/") and each.value]


@pytest.fixture
def hooks() -> Hooks:
    made = Hooks()
    made.subscribe("ci")
    return made


@pytest.mark.parametrize("seed", seeds(50))
def test_folders_lost_at_any_step_cost_no_delivery_and_repeat_only_what_was_open(hooks: Hooks, seed: int) -> None:
    chance, may_repeat = random.Random(seed), set[Delivered]()
    hooks.subscribe("bot")

    def attempt(state: DeliveryState) -> Callable[[], None]:
        def act() -> None:
            if queued := hooks.deliveries.queued():
                hooks.end(chance.choice(queued), state)

        return act

    def lose() -> None:
        behind = {message.id for message in hooks.notices[hooks.stored :]}
        open_in_log = {str(each.key) for each in hooks.in_log("owed")}
        for row in hooks.deliveries.newest(limit=1000):
            if row["message"] in behind or f"owed/hooks/{row['subscription']}/{row['message']}/" in open_in_log:
                may_repeat.add((row["message"], row["subscription"]))
        hooks.lose_folder()

    steps = [hooks.publish, hooks.read, hooks.store, lambda: hooks.clock.advance(chance.random()), hooks.start]
    steps += [attempt(DeliveryState.DELIVERED), attempt(DeliveryState.QUEUED), lose]
    steps += [lambda: hooks.clock.set_back(chance.uniform(-9, 9))]
    for _ in range(60):
        chance.choice(steps)()
    hooks.deliver_all()
    wanted = {(message.id, name) for message in hooks.notices for name in ("ci", "bot")}
    assert set(hooks.delivered) == wanted
    assert {each for each, times in hooks.delivered.items() if times > 1} <= may_repeat
    assert hooks.stored == len(hooks.notices)
    assert hooks.in_log("owed") == []


def test_a_clock_behind_that_of_a_subscription_costs_no_delivery(hooks: Hooks) -> None:
    """It was set back, or it is that of another machine, which took over."""
    hooks.clock.set_back(3600.0)
    hooks.publish()
    hooks.read()
    hooks.store()
    hooks.clock.advance(2 * SETTLES_WITHIN)
    hooks.store()
    assert hooks.stored == 1
    hooks.lose_folder()
    hooks.deliver_all()
    assert sum(hooks.delivered.values()) == 1


def test_deliveries_confirmed_at_once_cost_no_record(hooks: Hooks) -> None:
    hooks.appends.clear()
    for _ in range(10):
        hooks.publish(100)
        hooks.deliver_all()
    assert (sum(hooks.delivered.values()), hooks.stored) == (1000, 1000)
    assert hooks.appends[NOTIFIER] == 0


def test_a_thousand_failed_deliveries_are_recorded_in_few_appends(hooks: Hooks) -> None:
    hooks.appends.clear()
    hooks.publish(1000)
    hooks.read()
    for item in hooks.deliveries.queued():
        hooks.end(item, DeliveryState.QUEUED)
    hooks.store()
    assert (hooks.stored, len(hooks.in_log("owed"))) == (1000, 1000)
    assert hooks.appends[NOTIFIER] == 1000 // BATCH
    hooks.deliver_all()
    assert hooks.appends[NOTIFIER] == 2 * (1000 // BATCH)
    assert hooks.in_log("owed") == []


def test_the_position_waits_a_moment_for_a_new_delivery_and_then_records_it(hooks: Hooks) -> None:
    hooks.publish()
    hooks.read()
    hooks.store()
    assert (hooks.stored, hooks.in_log("owed")) == (0, [])
    hooks.clock.advance(2 * SETTLES_WITHIN)
    hooks.store()
    assert (hooks.stored, len(hooks.in_log("owed"))) == (1, 1)


def test_a_position_is_not_stored_before_the_log_has_what_is_owed(hooks: Hooks) -> None:
    hooks.publish()
    hooks.read()
    hooks.clock.advance(2 * SETTLES_WITHIN)
    hooks.log.leaderless.add((NOTIFIER, 0))
    with pytest.raises(Unavailable):
        hooks.store()
    assert hooks.stored == 0
    hooks.log.leaderless.clear()
    hooks.store()
    assert hooks.stored == 1


def test_attempts_pauses_and_what_was_given_up_survive_a_lost_folder(hooks: Hooks) -> None:
    hooks.publish(3)
    hooks.read()
    first, second, _ = hooks.deliveries.queued()
    hooks.end(first, DeliveryState.QUEUED)
    hooks.end(replace(first, attempt=1, mature_at=9.9), DeliveryState.QUEUED)
    hooks.end(second, DeliveryState.EXHAUSTED)
    hooks.deliveries.subscriptions.pause("ci", "by an operator", who="dana", now=1.0)
    hooks.clock.advance(2 * SETTLES_WITHIN)
    hooks.store()
    former = hooks.deliveries.newest()
    hooks.lose_folder()
    assert hooks.deliveries.newest() == former
    assert [row["attempt"] for row in former] == [0, 1, 2]
    [subscription] = hooks.deliveries.subscriptions.all()
    assert subscription.paused_reason == "by an operator"
    assert hooks.deliveries.redeliver([second.id], who="dana", now=1.0) == [second.id]


def test_subscriptions_are_read_again_only_once_one_has_changed(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The position is looked at twice a second, and reading a thousand subscriptions takes 5 ms."""
    hooks.subscribe("ci")
    table, read, reads = hooks.deliveries.subscriptions, SubscriptionTable.records, list[int]()

    def count(read_by: SubscriptionTable) -> dict[str, SubscriptionRecord]:
        reads.append(1)
        return read(read_by)

    monkeypatch.setattr(SubscriptionTable, "records", count)
    for _ in range(3):
        hooks.records.secure(0)
    assert reads == []
    [one] = table.all()
    changes = [
        lambda: table.failing(one.id, 5.0),
        lambda: table.failing(one.id, 6.0),
        lambda: table.failing(one.id, None),
        lambda: table.pause("ci", "not now", who="dana", now=7.0),
        lambda: table.remove("ci", who="dana", now=8.0),
    ]
    for change in changes:
        change()
        hooks.records.secure(0)
        newest = hooks.log.records(NOTIFIER)[-1].value
        assert newest == next((to_json(each) for each in read(table).values()), None)
    assert len(reads) == len(changes)


def test_a_replays_deliveries_need_no_position_to_be_recorded(hooks: Hooks) -> None:
    hooks.publish()
    message = replace(hooks.notices[0], replay="dana #1")
    hooks.deliveries.enqueue([(message, hooks.deliveries.subscriptions.all())], hooks.clock.now())
    hooks.records.record_deliveries()
    hooks.lose_folder()
    assert [row["replay"] for row in hooks.deliveries.newest()] == ["dana #1"]


def test_the_first_start_with_an_earlier_releases_database_records_all_of_it(tmp_path: Path) -> None:
    hooks, file = Hooks(), str(tmp_path / "deliveries.db")
    hooks.log, hooks.deliveries = with_topics(MemoryLog()), Deliveries(file)  # type: ignore[assignment]
    hooks.publish()
    wanted = Subscription(url="https://ci.example/")
    hooks.deliveries.subscriptions.add("ci", wanted, origin="command", who="dana", now=1.0)
    hooks.read_to = 0
    hooks.read()
    with closing(sqlite3.connect(file, timeout=60)) as opened, opened:
        opened.execute("UPDATE deliveries SET notice = NULL")
    hooks.log.acknowledge(GROUP, NOTICES, {0: 1})
    hooks.start()
    hooks.lose_folder()
    assert [(row["subscription"], row["state"]) for row in hooks.deliveries.newest()] == [("ci", "queued")]


def test_a_database_that_another_machine_has_overtaken_is_filled_again(hooks: Hooks) -> None:
    hooks.publish()
    hooks.read()
    stale = hooks.deliveries
    hooks.deliveries = Deliveries(NOWHERE)
    hooks.start()
    hooks.deliver_all()
    hooks.deliveries.close()
    hooks.deliveries = stale
    hooks.start()
    assert hooks.deliveries.counts() == {}
    assert list(hooks.delivered.values()) == [1]
    assert [each.name for each in hooks.deliveries.subscriptions.all()] == ["ci"]


def test_a_fenced_notifier_records_nothing_of_what_it_owes(hooks: Hooks) -> None:
    hooks.publish(2)
    hooks.deliver_all()
    hooks.publish(2)
    hooks.read()
    former, hooks.deliveries = hooks.records, Deliveries(NOWHERE)
    hooks.start()
    hooks.publish(2)
    hooks.read()
    hooks.clock.advance(2 * SETTLES_WITHIN)
    hooks.store()
    owed = hooks.log.records(NOTIFIER)
    with pytest.raises(Fenced):
        former.record_deliveries()
    assert hooks.log.records(NOTIFIER) == owed
    hooks.lose_folder()
    assert sorted(row["sequence"] for row in hooks.deliveries.newest()) == [3, 4, 5, 6]


def test_a_removed_subscription_stays_removed_with_what_waited_for_it(hooks: Hooks) -> None:
    hooks.publish()
    hooks.read()
    hooks.clock.advance(2 * SETTLES_WITHIN)
    hooks.store()
    hooks.deliveries.subscriptions.remove("ci", who="dana", now=1.0)
    hooks.store()
    hooks.subscribe("ci")
    hooks.lose_folder()
    assert (hooks.in_log("owed"), hooks.deliveries.counts()) == ([], {})


OWED = (
    b'{"attempt":0,"body":"{}","created_at":1e6,"mature_at":1,"message":"m","number":2,"replay":"","repo_url":"u",'
    b'"repository":"r","sequence":1,"state":"queued","subscription":"ci","type":"t"}'
)


def test_deliveries_of_one_number_are_both_restored(hooks: Hooks) -> None:
    for message in ("m", "n"):
        value = OWED.replace(b'"m"', f'"{message}"'.encode())
        hooks.log.append([NewRecord(topic=NOTIFIER, key=f"owed/hooks/ci/{message}/", value=value)])
    hooks.lose_folder()
    assert [(row["id"], row["message"]) for row in hooks.deliveries.newest()] == [(3, "n"), (2, "m")]
    hooks.start()
    hooks.deliver_all()
    assert (hooks.in_log("owed"), sorted(hooks.delivered.values())) == ([], [1, 1])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("owed/hooks/1", OWED.replace(b'"{}"', b'"["')),
        ("owed/hooks/1", OWED.replace(b'"queued"', b'"delivered"')),
        ("owed/hooks/1", OWED.replace(b'"u"', b'"\\ud800"')),
        ("owed/hooks/1", OWED.replace(b'"{}"', b'"{\\"a\\":NaN}"')),
        ("owed/hooks/1", b"{"),
        ("owed/hooks/1", OWED.replace(b'"attempt":0', b'"attempt":9223372036854775807')),
        ("owed/hooks/1", OWED.replace(b'"number":2', b'"number":9223372036854775807')),
        ("owed/hooks/1", OWED.replace(b'"number":2', b'"number":0')),
        ("owed/other/1", OWED.replace(b'"m"', b'"n"')),
        ("owed/hooks/1", OWED.replace(b'"ci"', b'"gone"')),
        ("subscription/hooks/bot", b"[]"),
        ("subscription/hooks/\udcff", b'{"content":"{}","created_at":1,"origin":"command"}'),
    ],
)
def test_a_record_that_cannot_be_right_stops_no_other(hooks: Hooks, key: str, value: bytes) -> None:
    hooks.log.append([NewRecord(topic=NOTIFIER, key="owed/hooks/ci/m/", value=OWED)])
    hooks.log.append([NewRecord(topic=NOTIFIER, key=key, value=value)])
    hooks.lose_folder()
    assert [(row["id"], row["message"]) for row in hooks.deliveries.newest()] == [(2, "m")]
    assert [each.name for each in hooks.deliveries.subscriptions.all()] == ["ci"]


@pytest.mark.parametrize("origin", ["command", "file"])
def test_a_subscription_in_the_log_runs_no_command(hooks: Hooks, origin: str, tmp_path: Path) -> None:
    """Else each writer of the topic could run programs as the notifier."""
    ran = tmp_path / "ran"
    wanted = Subscription(url="https://ci.example/", secrets=(Secret(command=("touch", str(ran))),))
    record = SubscriptionRecord(origin=origin, content=to_json(wanted).decode(), created_at=1.0)
    hooks.log.append(
        [
            NewRecord(topic=NOTIFIER, key="subscription/hooks/bot", value=to_json(record)),
            NewRecord(topic=NOTIFIER, key="database/hooks", value=to_json(DatabaseRecord(id="other"))),
        ]
    )
    hooks.start()
    hooks.deliveries.subscriptions.follow_file({}, now=1.0)  # as each start does
    for each in hooks.deliveries.subscriptions.all():
        with suppress(BadConfig):
            read_keys(each.subscription.secrets)
    assert not ran.exists()


def test_a_subscription_in_the_log_signs_with_no_variable(hooks: Hooks) -> None:
    """Else a writer of the topic could compare guesses of a password with signatures."""
    wanted = Subscription(url="https://ci.example/", secrets=(Secret(env="PULSE_PASSWORD"),))
    record = SubscriptionRecord(origin="command", content=to_json(wanted).decode(), created_at=1.0)
    hooks.log.append(
        [
            NewRecord(topic=NOTIFIER, key="subscription/hooks/bot", value=to_json(record)),
            NewRecord(topic=NOTIFIER, key="database/hooks", value=to_json(DatabaseRecord(id="other"))),
        ]
    )
    hooks.start()
    assert "bot" not in [each.name for each in hooks.deliveries.subscriptions.all()]


def test_a_subscription_of_the_configuration_keeps_its_command_and_what_it_is_owed(hooks: Hooks) -> None:
    wanted = Subscription(url="https://ci.example/", secrets=(Secret(command=("pass", "show", "ci")),))
    hooks.deliveries.subscriptions.follow_file({"bot": wanted}, now=1.0)
    hooks.publish()
    hooks.read()
    hooks.clock.advance(SETTLES_WITHIN + 1)
    hooks.store()
    hooks.lose_folder()
    hooks.deliveries.subscriptions.follow_file({"bot": wanted}, now=1.0)
    assert wanted in [each.subscription for each in hooks.deliveries.subscriptions.all()]
    assert [row["subscription"] for row in hooks.deliveries.newest()].count("bot") == 1


def test_large_deliveries_are_recorded_in_several_commits(hooks: Hooks) -> None:
    """One commit of all of them would take longer than Kafka waits, each time it is tried."""
    hooks.publish(6)
    hooks.notices = [replace(message, signed="x" * (BATCH_BYTES // 3)) for message in hooks.notices]
    hooks.read()
    hooks.clock.advance(2 * SETTLES_WITHIN)
    hooks.appends.clear()
    hooks.store()
    assert (hooks.stored, len(hooks.in_log("owed")), hooks.appends[NOTIFIER]) == (6, 6, 3)
