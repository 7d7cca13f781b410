# SPDX-License-Identifier: GPL-2.0-or-later
"""A webhook destination whose notifier loses its folder at any step: what operators asked of it is as without."""

import random
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import NOTIFIER
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.shape import from_json, to_json
from notifier.destinations.state import Kind, RequestRecord, StateDatabase
from notifier.destinations.webhook.changes import request_subscription
from notifier.destinations.webhook.deliveries import Deliveries
from notifier.destinations.webhook.destination import Webhooks, WebhookSettings
from notifier.destinations.webhook.subscription import Subscription
from notifier.publishing.courier import Courier, _DeliveryLoop
from notifier.publishing.decoding import NoticeDecoder
from notifier.publishing.orders import FOLLOW_EVERY
from notifier.publishing.position import StoredPosition
from notifier.publishing.requests import SharedRequests, record_requests, restore_requests
from notifier.publishing.settings import NotifierSettings
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import with_topics
from testing.builders.notifier.notifying import PUBLIC
from testing.clock import HandClock
from testing.seeds import seeds

pytestmark = pytest.mark.processes

URL = "https://ci.example/"
NAMES = ("ci", "bot")


class Site:
    """A log, operators who ask through it, and the notifier of the destination `hooks`, step by step."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.clock = folder, MemoryLog(), HandClock()
        with_topics(self.log)
        self.wanted: dict[str, bool] = {}
        self._opened = ExitStack()
        self.start()

    def start(self) -> None:
        """Start the notifier as after a kill: what it has not stored is gone."""
        self.close()
        settings = WebhookSettings(database=str(self.folder / "deliveries.db"))
        notifier = NotifierSettings(
            public=PUBLIC, destinations={"hooks": settings}, state=str(self.folder / "notifier.db")
        )
        requests = SharedRequests(self.log)
        courier = Courier(
            "hooks",
            settings,
            notifier,
            self.log,
            self.clock,
            stop=threading.Event(),
            decoder=NoticeDecoder(PUBLIC),
            requests=requests,
        )
        position = StoredPosition("hooks", self.log, self.clock)
        state = self._opened.enter_context(closing(StateDatabase(notifier.state)))
        restore_requests("hooks", requests, state, position.write)
        self.hooks = self._opened.enter_context(closing(Webhooks("hooks", settings, self.clock, self.log)))
        self.hooks.restore(position.write)
        self.loop = _DeliveryLoop(courier, self.hooks, state, position)
        self._opened.callback(self.loop.close)

    def close(self) -> None:
        self._opened.close()

    def lose_folder(self) -> None:
        self.close()
        for file in self.folder.iterdir():
            file.unlink()
        self.start()

    def ask(self, kind: Kind, name: str) -> None:
        """Ask from another machine; `wanted` has which subscriptions there are then, and whether each is paused."""
        self.clock.advance(1.0)
        argument = {"name": name}
        if kind is Kind.SUBSCRIBE:
            argument = request_subscription(name, Subscription(url=URL))
            self.wanted.setdefault(name, False)
        elif kind is Kind.UNSUBSCRIBE:
            self.wanted.pop(name, None)
        elif name in self.wanted:
            self.wanted[name] = kind is Kind.PAUSE_SUBSCRIPTION
        text = to_json(argument).decode()
        asked = RequestRecord(kind=kind, argument=text, who="dana", asked_at=self.clock.now())
        record_requests("hooks", self.log.append, [asked])

    def carry_out(self) -> None:
        self.clock.advance(FOLLOW_EVERY)
        self.loop.orders.carry_out_requests()

    def die_in_it(self, chance: random.Random) -> None:
        """Be killed while it carries requests out, before or after a commit, and start again."""
        self.log.fail_commits = [chance.random() < 0.5 for _ in range(50)]
        with suppress(Unavailable):
            self.carry_out()
        self.log.fail_commits = []

    def list_found(self) -> dict[str, bool]:
        with closing(Deliveries(str(self.folder / "deliveries.db"))) as deliveries:
            return {each.name: each.paused_reason is not None for each in deliveries.subscriptions.all()}


@pytest.mark.parametrize("seed", seeds(50))
def test_folders_lost_at_any_step_cost_no_request_about_subscriptions(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with closing(Site(tmp_path)) as site:
        kinds = [Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.PAUSE_SUBSCRIPTION, Kind.RESUME_SUBSCRIPTION]
        for _ in range(12):
            site.ask(chance.choice(kinds), chance.choice(NAMES))
            match chance.randrange(6):
                case 0:
                    site.carry_out()
                case 1:
                    site.start()
                case 2:
                    site.lose_folder()
                case 3:
                    site.die_in_it(chance)
                    chance.choice((site.start, site.lose_folder))()
        site.carry_out()
        assert site.list_found() == site.wanted
        site.lose_folder()
        assert site.list_found() == site.wanted
    requests = [record for record in site.log.records(NOTIFIER) if str(record.key).startswith("request/")]
    newest = {record.key: from_json(RequestRecord, record.value or b"") for record in requests}
    assert [each.done_at is None for each in newest.values()] == [False] * 12
