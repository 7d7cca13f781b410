# SPDX-License-Identifier: GPL-2.0-or-later
"""A database of webhooks that is older than its destination's position."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import NOTICES, Log
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.destinations.webhook.deliveries import Deliveries
from notifier.destinations.webhook.destination import WebhookSettings
from notifier.destinations.webhook.subscription import Subscription
from notifier.publishing.position import StoredPosition, group
from testing.builders.notifier.endpoint import Endpoint
from testing.builders.notifier.notices import publish_pushes
from testing.builders.notifier.notifying import FAST, Notifier
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


class Hooks:
    """A webhook destination at work; `deliver` starts and stops it."""

    def __init__(self, log: Log, notifier: Notifier, endpoint: Endpoint, folder: Path) -> None:
        self.log, self.notifier, self.endpoint = log, notifier, endpoint
        self.file, self.copy = folder / "deliveries.db", folder / "copy.db"
        self.settings = WebhookSettings(
            database=str(self.file), jitter=0, allow=("127.0.0.0/8",), allow_http=True, patience=FAST
        )
        with closing(Deliveries(self.settings.database)) as deliveries:
            wanted = Subscription(url=endpoint.url)
            deliveries.subscriptions.add("ci", wanted, origin="command", who="dana", now=1.0)

    def deliver(self) -> list[int]:
        """Start, deliver all there is, and stop; return the sequences that came, in order."""
        self.endpoint.requests.clear()
        self.notifier.start(hooks=self.settings)
        eventually(lambda: self.reached == self.log.ends(NOTICES)[0], "the database to reach the end")
        self.notifier.settled("hooks")
        with closing(Deliveries(self.settings.database)) as deliveries:
            eventually(lambda: not deliveries.counts().get("queued"))
        self.notifier.stop()
        return [sequence for _, sequence in self.endpoint.told]

    def back_up(self) -> None:
        with closing(sqlite3.connect(self.file)) as source, closing(sqlite3.connect(self.copy)) as target:
            source.backup(target)

    def restore(self) -> None:
        for file in self.file.parent.glob("deliveries.db*"):
            file.unlink()
        shutil.copy(self.copy, self.file)

    def run(self, statement: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    @property
    def reached(self) -> int:
        """The position in the database; -1 if it has none."""
        with closing(Deliveries(self.settings.database)) as deliveries:
            return deliveries.read_reached()


@pytest.fixture
def hooks(log: Log, notifier: Notifier, endpoint: Endpoint, tmp_path: Path) -> Hooks:
    return Hooks(log, notifier, endpoint, tmp_path)


def test_a_database_restored_from_a_copy_is_filled_from_the_log_instead(hooks: Hooks) -> None:
    publish_pushes(hooks.log, "x", 1, 2)
    assert hooks.deliver() == [1, 2]
    hooks.back_up()
    publish_pushes(hooks.log, "x", 3, 6)
    assert hooks.deliver() == [3, 4, 5, 6]
    hooks.restore()
    publish_pushes(hooks.log, "x", 7, 7)
    assert hooks.deliver() == [7]
    assert hooks.deliver() == []
    assert hooks.notifier.errors() == []


def test_a_notifier_killed_before_its_position_delivers_nothing_twice(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_pushes(hooks.log, "x", 1, 2)
    hooks.deliver()
    publish_pushes(hooks.log, "x", 3, 4)

    def stop_here(*_: object) -> None:
        raise Unavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(StoredPosition, "store", stop_here)
        hooks.notifier.start(hooks=hooks.settings)
        eventually(lambda: hooks.reached == 4)
        hooks.notifier.stop()
    assert hooks.notifier.position("hooks") == 2
    publish_pushes(hooks.log, "x", 5, 5)
    assert set(hooks.deliver()) <= {3, 4, 5}  # 3 and 4 only if they were stopped before they were sent
    assert hooks.run("SELECT COUNT(*) FROM deliveries") == [(5,)]


def test_a_log_restored_older_than_the_database_is_not_sent_whole(hooks: Hooks) -> None:
    publish_pushes(hooks.log, "x", 1, 2)
    hooks.deliver()
    hooks.run("UPDATE reached SET position = 9")
    publish_pushes(hooks.log, "x", 3, 3)
    assert hooks.deliver() == [3]
    assert hooks.notifier.errors() == []


def test_a_database_of_the_former_version_is_taken_for_complete(hooks: Hooks) -> None:
    publish_pushes(hooks.log, "x", 1, 3)
    hooks.deliver()
    hooks.run("DROP TABLE reached")
    hooks.run("DELETE FROM deliveries")
    publish_pushes(hooks.log, "x", 4, 4)
    assert hooks.deliver() == [4]
    assert hooks.reached == 4


def test_a_former_versions_database_has_the_position_once_opened(hooks: Hooks) -> None:
    publish_pushes(hooks.log, "x", 1, 2)
    hooks.log.acknowledge(group("hooks"), NOTICES, {0: 2})
    hooks.deliver()
    assert hooks.reached == 2
    assert hooks.run("SELECT COUNT(*) FROM deliveries") == [(0,)]


def test_notices_that_no_subscription_wants_are_not_read_again(hooks: Hooks) -> None:
    hooks.run("UPDATE subscriptions SET removed_at = 2")
    publish_pushes(hooks.log, "x", 1, 3)
    hooks.deliver()
    assert hooks.reached == hooks.notifier.position("hooks") == 3


def test_a_position_that_cannot_be_recorded_is_not_stored(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_pushes(hooks.log, "x", 1, 1)
    hooks.deliver()
    hooks.endpoint.requests.clear()

    def fail(*_: object) -> None:
        raise Unavailable("database: disk is full")

    hooks.notifier.start(hooks=hooks.settings)
    with monkeypatch.context() as patched:
        patched.setattr(Deliveries, "record_reached", fail)
        publish_pushes(hooks.log, "x", 2, 2)
        eventually(lambda: hooks.endpoint.told == [("x", 2)])
        hooks.notifier.stop()
    assert (hooks.notifier.position("hooks"), hooks.reached) == (1, 1)
    assert hooks.deliver() == []
    assert hooks.run("SELECT COUNT(*) FROM deliveries") == [(2,)]
