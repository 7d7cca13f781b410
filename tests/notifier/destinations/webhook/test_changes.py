# SPDX-License-Identifier: GPL-2.0-or-later
"""What operators ask of subscriptions and deliveries: requests that a notifier reads from the log."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log import NOTIFIER, NewRecord
from hgext.vcsreplicator.log.requests import OperatorRequest
from hgext.vcsreplicator.words.errors import Rejected, Unavailable
from hgext.vcsreplicator.words.shape import plain, to_json
from notifier.clients.database import NOWHERE
from notifier.clients.secret import Secret
from notifier.destinations.state import Kind
from notifier.destinations.webhook.changes import (
    KeyRotation,
    carry_out,
    request_redelivery,
    request_rotation,
    request_subscription,
)
from notifier.destinations.webhook.deliveries import AttemptEnd, Deliveries, DeliveryState
from notifier.destinations.webhook.destination import Webhooks, WebhookSettings
from notifier.destinations.webhook.settings import DeliverySettings
from notifier.destinations.webhook.signing import make_key, signing_key
from notifier.destinations.webhook.subscription import MOST_FORMER, FormerKeys, Subscription
from notifier.destinations.webhook.subscriptions import SubscriptionRecord
from notifier.messages.message import messages
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import a_notice, an_event, with_topics
from testing.builders.notifier.notifying import PUBLIC
from testing.clock import HandClock

CI = Subscription(url="https://ci.example/", headers={"authorization": "secret"})
FORMER = (FormerKeys(until=9.0, secrets=(Secret(env="PASSWORD"),)),)


class Asked:
    """The database of a destination of which operators ask something."""

    def __init__(self, deliveries: Deliveries) -> None:
        self.deliveries = deliveries

    def ask(self, kind: str, *, now: float = 2.0, **argument: object) -> str:
        request = OperatorRequest(1, "hooks", kind, argument, "dana", 1.0, None, None)
        return carry_out(request, self.deliveries, DeliverySettings(database="/unused"), now=now)

    def rotate(self, key: str, overlap: float, now: float = 2.0) -> str:
        rotation = request_rotation("ci", KeyRotation(key=key, overlap=overlap))
        return self.ask(Kind.ROTATE_SUBSCRIPTION, now=now, **rotation)

    def read_keys(self, now: float) -> list[bytes]:
        """Return the keys that sign requests to the only subscription."""
        [stored] = self.deliveries.subscriptions.all()
        return stored.subscription.read_keys(now)

    def subscribe(self, name: str = "ci", wanted: Subscription = CI) -> str:
        return self.ask(Kind.SUBSCRIBE, **request_subscription(name, wanted))

    def give_up(self, *seqs: int) -> None:
        """Accept a message for each subscription, and give up all deliveries."""
        for seq in seqs:
            [message] = messages(a_notice(an_event("x", seq)), seq, PUBLIC)
            self.deliveries.enqueue([(message, self.deliveries.subscriptions.all())], 3.0)
        exhausted: dict[str, Any] = {"state": DeliveryState.EXHAUSTED, "attempt": 1, "mature_at": 0.0}
        ends = [AttemptEnd(begun=each, status=500, error="no", **exhausted) for each in self.deliveries.queued()]
        self.deliveries.record(ends, 4.0)


@pytest.fixture
def asked() -> Iterator[Asked]:
    with closing(Deliveries(NOWHERE)) as deliveries:
        yield Asked(deliveries)


def test_a_subscription_is_added_whole_and_twice_is_as_once(asked: Asked) -> None:
    assert [asked.subscribe(), asked.subscribe()] == ["ci added", "ci added"]
    [stored] = asked.deliveries.subscriptions.all()
    assert (stored.subscription, stored.origin) == (CI, "command")
    assert [line[1:] for line in asked.deliveries.subscriptions.history(9)] == [("ci", "added", "dana")]


def test_an_unsigned_subscription_of_a_command_is_named_as_meant(tmp_path: Path) -> None:
    settings = WebhookSettings(database=str(tmp_path / "deliveries.db"))
    with closing(Webhooks("hooks", settings, HandClock(), log := with_topics(MemoryLog()))) as webhooks:
        webhooks.restore(log.append)
        for name, wanted in (("signed", replace(CI, key=make_key())), ("ci", CI)):
            argument = request_subscription(name, wanted)
            webhooks.carry_out(OperatorRequest(1, "hooks", Kind.SUBSCRIBE, argument, "dana", 1.0, None, None))
        [trouble] = webhooks.find_troubles()
    assert trouble.is_meant
    assert trouble.text.startswith("subscription ci of hooks is unsigned")


def test_a_delivery_that_waits_while_others_succeed_is_named(tmp_path: Path) -> None:
    settings, clock = WebhookSettings(database=str(tmp_path / "deliveries.db")), HandClock()
    with closing(Webhooks("hooks", settings, clock, log := with_topics(MemoryLog()))) as webhooks:
        webhooks.restore(log.append)
        with closing(Deliveries(settings.database)) as deliveries:
            deliveries.subscriptions.add(
                "ci", replace(CI, key=make_key()), origin="command", who="dana", now=clock.now()
            )
            begin = clock.now()
            for number in (1, 2, 3):
                message = messages(a_notice(an_event("x", number)), number, PUBLIC)[0]
                deliveries.enqueue([(message, deliveries.subscriptions.all())], clock.now())
            clock.advance(41.0)
            assert webhooks.find_troubles() == []  # not tried yet: its endpoint is slow
            first, second, _ = deliveries.queued()
            failed = {"state": DeliveryState.QUEUED, "status": 500, "error": "status 500"}
            deliveries.record([AttemptEnd(begun=first, attempt=1, mature_at=begin + 60, **failed)], clock.now())
            deliveries.record([AttemptEnd(begun=second, attempt=2, mature_at=begin + 90, **failed)], clock.now())
            [trouble] = webhooks.find_troubles()
            late = (
                "subscription ci of hooks: a delivery waits, though others succeed, last: status 500;"
                " see: vcsreplicator deliveries show 1"
            )
            assert (trouble.text, trouble.since, trouble.is_urgent) == (late, begin, True)
            [stored] = deliveries.subscriptions.all()
            deliveries.subscriptions.failing(stored.id, clock.now())
            texts = [each.text for each in webhooks.find_troubles()]
            assert len(texts) == 2
            assert texts[1] == late
            clock.advance(61.0)
            [trouble] = webhooks.find_troubles()
            assert "is failing" in trouble.text  # as long as `check` by default waits for it
            deliveries.subscriptions.failing(stored.id, None)
            done = {"state": DeliveryState.DELIVERED, "status": 200, "error": None, "mature_at": 0.0}
            for each in deliveries.queued()[:2]:
                deliveries.record([AttemptEnd(begun=each, attempt=each.attempt + 1, **done)], clock.now())
            assert webhooks.find_troubles() == []


def test_no_name_of_a_subscription_in_the_log_adds_a_command_to_ours(tmp_path: Path) -> None:
    settings, log = WebhookSettings(database=str(tmp_path / "deliveries.db")), with_topics(MemoryLog())
    log.append([NewRecord(topic=NOTIFIER, key="database/hooks", value=b'{"id":"of another machine"}')])
    content = to_json(CI).decode()
    for name, reason in (("x;reboot", "by an operator"), ("y;reboot", None)):
        record = SubscriptionRecord(origin="command", content=content, created_at=1.0, paused_reason=reason)
        log.append([NewRecord(topic=NOTIFIER, key=f"subscription/hooks/{name}", value=to_json(record))])
    with closing(Webhooks("hooks", settings, HandClock(), log)) as webhooks:
        webhooks.restore(log.append)
        texts = "\n".join(trouble.text for trouble in webhooks.find_troubles())
    assert "subscription resume 'x;reboot'" in texts
    assert "subscription rotate 'y;reboot'" in texts


def test_a_subscription_in_the_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    settings, log = WebhookSettings(database=str(tmp_path / "deliveries.db")), with_topics(MemoryLog())
    record = SubscriptionRecord(origin="command", content="{}", created_at=1.0)
    log.append(
        [
            NewRecord(topic=NOTIFIER, key="database/hooks", value=b'{"id":"of another machine"}'),
            NewRecord(topic=NOTIFIER, key="subscription/hooks/x;y", value=to_json(record)),
        ]
    )
    with closing(Webhooks("hooks", settings, HandClock(), log)) as webhooks:
        webhooks.restore(log.append)
        [trouble] = webhooks.find_troubles()
    assert trouble.is_urgent
    assert trouble.text.startswith("subscription x;y of hooks cannot be read, and gets nothing: Subscription: ")
    assert "vcsreplicator subscription remove 'x;y' --yes" in trouble.text


def test_the_file_may_not_hold_a_key_and_no_key_is_quoted() -> None:
    key = make_key()
    with pytest.raises(ValueError, match=r"subscriptions\.ci\.key: expected none; .* in secrets") as refused:
        DeliverySettings(database="/unused", subscriptions={"ci": replace(CI, key=key)})
    assert key not in f"{refused.value}{replace(CI, key=key)!r}"


def test_a_made_key_that_is_none_is_refused_and_not_quoted(asked: Asked) -> None:
    answer = asked.ask(Kind.SUBSCRIBE, name="ci", subscription={**plain(CI), "key": "whsec_short"})
    assert answer.startswith("nothing added: ")
    assert "short" not in answer


def test_another_subscription_of_a_name_that_is_taken_is_not_added(asked: Asked) -> None:
    asked.subscribe()
    answer = asked.subscribe(wanted=replace(CI, url="https://other.example/"))
    assert answer == "nothing added: there is a subscription 'ci' already"
    assert [each.subscription.url for each in asked.deliveries.subscriptions.all()] == [CI.url]


@pytest.mark.parametrize(
    ("name", "wanted", "complaint"),
    [
        ("a b", plain(CI), "expected at most 61 letters"),
        ("ci", plain(replace(CI, secrets=(Secret(command=("rm", "x")),))), "expected each secret in a file"),
        ("ci", plain(replace(CI, secrets=(Secret(env="PASSWORD"),))), "expected each secret in a file"),
        ("ci", plain(replace(CI, former=FORMER)), "expected each secret in a file"),
        ("ci", {"url": "http://ci.example/"}, "url: expected https; to allow http"),
        ("ci", {"url": "ftp://x"}, "url: expected https"),
        ("ci", {"url": 7}, "url"),
        ("ci", None, "expected"),
    ],
)
def test_a_wrong_subscription_of_the_log_is_not_added(asked: Asked, name: str, wanted: object, complaint: str) -> None:
    answer = asked.ask(Kind.SUBSCRIBE, name=name, subscription=wanted)
    assert answer.startswith("nothing added: ")
    assert complaint in answer
    assert asked.deliveries.subscriptions.all() == []


def test_a_secret_file_that_holds_no_key_is_named_and_not_quoted(asked: Asked, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("whsec_short")
    key.chmod(0o600)
    answer = asked.subscribe(wanted=replace(CI, secrets=(Secret(file=str(key)),)))
    assert answer.startswith(f"nothing added: --secret-file.0: {key}: ")
    assert "whsec_short" not in answer


OLD, NEW, NEWER = KEYS = [make_key() for _ in range(3)]
OLD_KEY, NEW_KEY, NEWER_KEY = map(signing_key, KEYS)


def test_both_keys_sign_until_the_overlap_ends(asked: Asked) -> None:
    asked.subscribe(wanted=replace(CI, key=OLD))
    answers = [asked.rotate(NEW, 3600.0), asked.rotate(NEW, 3600.0, now=9.0)]  # the second time after a kill
    assert answers == ["ci rotated; the former key signs too until 1970-01-01 01:00:02 UTC"] * 2
    assert asked.read_keys(3601.9) == [NEW_KEY, OLD_KEY]
    assert asked.read_keys(3602.0) == [NEW_KEY]
    assert len(asked.deliveries.subscriptions.history(9)) == 2, "the repeat changed nothing"


def test_an_overlap_of_zero_ends_every_former_key_at_once(asked: Asked) -> None:
    asked.subscribe(wanted=replace(CI, key=OLD))
    asked.rotate(NEW, 3600.0)
    assert asked.rotate(NEWER, 7200.0, now=3.0).endswith("until 1970-01-01 02:00:03 UTC")
    assert [asked.read_keys(now) for now in (4.0, 3602.0)] == [[NEWER_KEY, NEW_KEY, OLD_KEY], [NEWER_KEY, NEW_KEY]]
    assert asked.rotate(OLD, 0.0, now=4.0) == "ci rotated; no former key signs"
    assert asked.read_keys(4.0) == [OLD_KEY]


def test_a_key_of_a_file_is_rotated_and_what_was_unsigned_is_signed(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(OLD)
    (tmp_path / "key").chmod(0o600)
    asked.subscribe(wanted=replace(CI, secrets=(Secret(file=str(tmp_path / "key")),)))
    asked.rotate(NEW, 3600.0)
    assert asked.read_keys(3.0) == [NEW_KEY, OLD_KEY]
    asked.ask(Kind.UNSUBSCRIBE, name="ci")
    asked.subscribe()
    assert asked.rotate(NEW, 3600.0) == "ci rotated; no former key signs"
    assert asked.read_keys(3.0) == [NEW_KEY]


def test_a_key_is_not_rotated_where_that_cannot_work(asked: Asked) -> None:
    assert asked.rotate(NEW, 1.0) == "nothing rotated: there is no subscription 'ci'"
    asked.deliveries.subscriptions.follow_file({"ci": CI}, now=1.0)
    assert asked.rotate(NEW, 1.0).startswith("nothing rotated: the keys of ci are in the configuration; add a second")
    asked.ask(Kind.UNSUBSCRIBE, name="ci")
    asked.subscribe()
    for key, overlap in (("whsec_short", 1.0), (NEW, -1.0), (NEW, 1e9)):
        answer = asked.rotate(key, overlap)
        assert answer.startswith("nothing rotated: ")
        assert key not in answer
    for _ in range(MOST_FORMER + 1):
        asked.rotate(make_key(), 3600.0)
    assert asked.rotate(NEW, 3600.0) == (
        f"nothing rotated: {MOST_FORMER} former keys sign; wait until one ends, or let them end with --overlap 0"
    )


def test_a_rotated_key_is_in_the_log_before_the_answer(tmp_path: Path) -> None:
    settings = WebhookSettings(database=str(tmp_path / "deliveries.db"))
    argument = request_rotation("ci", KeyRotation(key=NEW, overlap=3600.0))
    rotation = OperatorRequest(1, "hooks", Kind.ROTATE_SUBSCRIPTION, argument, "dana", 1.0, None, None)
    log, is_away = with_topics(MemoryLog()), False

    def write(records: Sequence[NewRecord]) -> None:
        if is_away:
            raise Unavailable("the log is away")
        log.append(records)

    with closing(Webhooks("hooks", settings, HandClock(), log)) as webhooks:
        webhooks.restore(write)
        subscribe = request_subscription("ci", replace(CI, key=OLD))
        webhooks.carry_out(OperatorRequest(1, "hooks", Kind.SUBSCRIBE, subscribe, "dana", 1.0, None, None))
        is_away = True
        with pytest.raises(Unavailable):
            webhooks.carry_out(rotation)
        is_away = False
        assert str(webhooks.carry_out(rotation)).startswith("ci rotated; the former key signs too until ")
    (tmp_path / "deliveries.db").unlink()  # the machine is lost, and another one takes over
    with closing(Webhooks("hooks", settings, HandClock(), log)) as webhooks:
        webhooks.restore(log.append)
    with closing(Deliveries(settings.database)) as deliveries:
        assert Asked(deliveries).read_keys(HandClock().now() + 1.0) == [NEW_KEY, OLD_KEY]


def test_a_former_key_may_stand_neither_in_the_file_nor_in_a_message(tmp_path: Path) -> None:
    wanted = replace(CI, former=(FormerKeys(until=9.0, key=OLD),))
    with pytest.raises(ValueError, match=r"subscriptions\.ci\.former: expected none") as refused:
        DeliverySettings(database="/unused", subscriptions={"ci": wanted})
    assert OLD not in f"{refused.value}{wanted!r}{KeyRotation(key=OLD, overlap=1.0)!r}"


def test_a_kind_of_request_that_is_not_known_changes_nothing(asked: Asked) -> None:
    asked.subscribe()
    asked.ask(Kind.PAUSE_SUBSCRIPTION, name="ci")
    with pytest.raises(Rejected, match="unknown kind of request"):
        asked.ask("archive-subscription", name="ci")
    assert [each.paused_reason for each in asked.deliveries.subscriptions.all()] == ["by an operator"]


def test_a_subscription_is_paused_resumed_and_removed(asked: Asked) -> None:
    asked.subscribe()
    answers = [
        asked.ask(kind, name="ci") for kind in (Kind.PAUSE_SUBSCRIPTION, Kind.RESUME_SUBSCRIPTION, Kind.UNSUBSCRIBE)
    ]
    assert answers == ["ci paused", "ci resumed", "ci removed"]
    assert asked.ask(Kind.PAUSE_SUBSCRIPTION, name="ci") == "nothing paused: there is no subscription 'ci'"
    assert asked.ask(Kind.UNSUBSCRIBE, name="ci") == "nothing removed: there is no subscription 'ci'"


def test_a_name_that_an_older_release_accepted_can_be_used(asked: Asked) -> None:
    name = "a b\n"
    asked.deliveries.subscriptions.add(name, CI, origin="command", who="dana", now=1.0)
    kinds = (Kind.PAUSE_SUBSCRIPTION, Kind.RESUME_SUBSCRIPTION, Kind.UNSUBSCRIBE)
    assert [asked.ask(kind, name=name) for kind in kinds] == [
        f"{name} {what}" for what in ("paused", "resumed", "removed")
    ]


def test_deliveries_are_named_by_what_they_are_and_not_by_number(asked: Asked) -> None:
    """The operator may have seen a database of another machine, with other numbers."""
    asked.subscribe()
    asked.give_up(1, 2)
    [second, first] = asked.deliveries.newest()
    argument = request_redelivery([{**first, "id": second["id"]}])
    assert asked.ask(Kind.REDELIVER, **argument) == "1 queued again"
    assert [row["state"] for row in asked.deliveries.newest()] == ["exhausted", "queued"]


def test_all_that_a_subscription_gave_up_is_queued_again_once(asked: Asked) -> None:
    for name in ("ci", "bot"):
        asked.subscribe(name)
    asked.give_up(1, 2)
    mine = [row for row in asked.deliveries.newest() if row["subscription"] == "ci"]
    assert asked.ask(Kind.REDELIVER, **request_redelivery(mine, "ci")) == "2 queued again"
    assert asked.deliveries.counts() == {"exhausted": 2, "queued": 2}
    assert asked.ask(Kind.REDELIVER, **request_redelivery([], "none")).startswith("nothing queued: ")


@pytest.mark.parametrize(
    ("kind", "argument"),
    [
        (Kind.UNSUBSCRIBE, {}),
        (Kind.SUBSCRIBE, {"name": 7}),
        (Kind.PAUSE_SUBSCRIPTION, {"name": "\ud800"}),
        (Kind.REDELIVER, {}),
        (Kind.REDELIVER, {"deliveries": [["ci", "m"]]}),
        (Kind.REDELIVER, {"deliveries": [[1, 2, 3]]}),
        (Kind.REDELIVER, {"deliveries": [], "exhausted": 7}),
    ],
)
def test_a_request_without_what_its_kind_needs_is_rejected(asked: Asked, kind: Kind, argument: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match="ask with the program of this version"):
        asked.ask(kind, **argument)


def test_a_subscription_that_contradicts_the_file_is_removed_by_a_request(tmp_path: Path) -> None:
    settings = WebhookSettings(database=str(tmp_path / "deliveries.db"), subscriptions={"ci": CI})
    with closing(Deliveries(settings.database)) as deliveries:
        deliveries.subscriptions.add("ci", CI, origin="command", who="dana", now=1.0)
    with closing(Webhooks("hooks", settings, HandClock(), log := with_topics(MemoryLog()))) as webhooks:
        webhooks.restore(log.append)
        with pytest.raises(
            Unavailable, match=r"subscriptions\.ci: exists already, .*: vcsreplicator subscription remove ci"
        ):
            webhooks.start()
        remove = OperatorRequest(1, "hooks", Kind.UNSUBSCRIBE, {"name": "ci"}, "dana", 1.0, None, None)
        assert webhooks.carry_out(remove) == "ci removed"
        webhooks.start()
    assert [record.key for record in log.records(NOTIFIER) if record.value is None] == ["subscription/hooks/ci"]
