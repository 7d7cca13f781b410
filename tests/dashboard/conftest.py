# SPDX-License-Identifier: GPL-2.0-or-later
"""An installation in a log in memory: public and private repositories, mirrors of which one is late, and destinations."""

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from hgext.vcsreplicator.dashboard.acts import ActJournal, ActOutcome, OperatorAct
from hgext.vcsreplicator.dashboard.application import make_application
from hgext.vcsreplicator.dashboard.readers import Readers, read_users
from hgext.vcsreplicator.dashboard.settings import DashboardRole, DashboardSettings
from hgext.vcsreplicator.dashboard.sources import Sources
from hgext.vcsreplicator.dashboard.watcher import LogWatcher, Pace
from hgext.vcsreplicator.log import (
    ACKS,
    EVENTS,
    NOTICES,
    ROSTER,
    SERVICES,
    STATE,
    Log,
    NewRecord,
    partition_of,
    topics,
)
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import (
    AggregatorHeartbeat,
    MirrorHeartbeat,
    MirrorProof,
    Notice,
    ServiceReport,
    ServiceTrouble,
)
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import to_json
from notifier.delivery.destination import DestinationSettings
from notifier.destinations.jsonlines import JsonLinesSettings
from notifier.destinations.state import Kind, StateDatabase
from notifier.destinations.webhook.deliveries import AttemptEnd, Deliveries, DeliveryState
from notifier.destinations.webhook.destination import WebhookSettings
from notifier.destinations.webhook.subscription import Subscription
from notifier.messages.message import messages
from notifier.messages.public import PublicSettings
from notifier.publishing.settings import NotifierSettings
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import a_notice, a_push, an_event
from testing.clock import HandClock
from testing.waiting import eventually

TOKEN = "correct-horse-battery-staple"
OPERATOR_TOKEN = "battery-staple-correct-horse"
USERS = f"""# who may read
dana:reader:{hashlib.sha256(TOKEN.encode()).hexdigest()}
olga:operator:{hashlib.sha256(OPERATOR_TOKEN.encode()).hexdigest()}
proxied:reader:-
"""
SECRET = "secret/payroll"
MIRRORS = ("alpha", "beta")


class Site:
    """Asks an application, as a client of another machine."""

    def __init__(self, app: Starlette) -> None:
        self.app = app

    def get(self, address: str, **options: object) -> httpx.Response:
        return self.request("GET", address, **options)

    def request(self, method: str, address: str, **options: object) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("10.0.0.7", 5))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as opened:
                return await opened.request(method, address, **options)  # type: ignore[arg-type]

        return asyncio.run(ask())


class Installation:
    """What stands in the log; `push` adds a push as all services would."""

    def __init__(self, mirrors: tuple[str, ...] = MIRRORS) -> None:
        self.clock = HandClock(1_700_000_100.0)
        self.log = MemoryLog(clock=self.clock)
        self.log.create(topics(partitions=2))
        self.mirrors = mirrors
        self.chains: dict[str, Chain] = {}
        self.notifier: NotifierSettings | None = None
        self.acts: list[tuple[OperatorAct, int]] = []
        self.write(ROSTER, KEY, Roster(mirrors=tuple(Mirror(name=name, state=MirrorState.ACTIVE) for name in mirrors)))
        self.beat()

    def write(self, topic: str, key: str, value: object) -> int:
        [(_, offset)] = self.log.append([NewRecord(topic=topic, key=key, value=to_json(value))])
        return offset

    def beat(self) -> None:
        """Every service sends a heartbeat."""
        now = self.clock.now()
        self.write(STATE, "aggregator", AggregatorHeartbeat(time=now, roster=1, held=0))
        for name in self.mirrors:
            self.write(ACKS, name, MirrorHeartbeat(mirror=name, time=now, positions={}, version="1"))
        trouble = ServiceTrouble(
            text=f"subscription ci is failing: status 500 for {SECRET} \x1b[31m\n<i>", since=now - 500
        )
        self.write(SERVICES, "relay hg.example", ServiceReport(time=now, version="1"))
        self.write(SERVICES, "destination hooks", ServiceReport(time=now, version="1", count=1, troubles=(trouble,)))

    def push(self, path: str, *, serving: tuple[str, ...] | None = None) -> Chain:
        """One more event; the notice follows if all mirrors serve it."""
        chain = self.chains.setdefault(path, Chain(path))
        event = chain.next(time=self.clock.now())
        self.clock.advance(0.02)
        partition = partition_of(event.repository, 2)
        self.log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event), partition=partition)])
        proofs = []
        for number, name in enumerate(self.mirrors if serving is None else serving):
            self.clock.advance(0.03)
            at = self.clock.now()
            self.write(ACKS, f"{name}/{event.repository}", chain.ack(name, event.seq, time=at + 0.02 * number))
            proofs.append(MirrorProof(mirror=name, applied_at=at - 0.02, served_at=at + 0.05))
        is_whole = len(proofs) == len(self.mirrors)
        level = event.seq if is_whole else event.seq - 1
        self.state(chain, released=level, noticed=level)
        if is_whole:
            self.clock.advance(0.1)
            notice = Notice(event=event, time=self.clock.now(), roster=1, acks=tuple(proofs), previous={})
            offset = self.write(NOTICES, event.repository, notice)
            self.log.acknowledge("notifier-hooks", NOTICES, {0: offset})
        return chain

    def state(self, chain: Chain, **members: object) -> None:
        last = chain.events[-1]
        state = state_of(last, released=last.seq, noticed=last.seq)
        self.write(STATE, last.repository, replace(state, **members))  # type: ignore[arg-type]

    def carry_out(self, act: OperatorAct, number: int) -> tuple[ActOutcome, str]:
        """Note the act, as its only effect."""
        self.acts.append((act, number))
        return ActOutcome.DONE, f"{act.kind.value}d"

    @property
    def sources(self) -> Sources:
        return Sources(
            log=self.log,
            url="memory:",
            expected=Expectations(destinations=("hooks",), relay="hg.example"),
            is_public=lambda path: path.startswith("public/"),
            describe_delivery=lambda name, event, is_passed: "passed" if is_passed else "not yet delivered",
            notifier=self.notifier,
            carry_out=self.carry_out,
            clock=self.clock,
        )


class AwayLog:
    """A log that stops to answer while `is_away`."""

    def __init__(self, installation: Installation) -> None:
        self._log, self.is_away = installation.log, False

    def __getattr__(self, name: str) -> object:
        if self.is_away:
            raise Unavailable("no broker answers at kafka.internal")
        return getattr(self._log, name)


def fill_notifier(folder: Path) -> NotifierSettings:
    """The databases of a notifier: a destination that fails, one that is paused, and deliveries of webhooks in every state."""
    hooks = WebhookSettings(database=str(folder / "deliveries.db"))
    lines = JsonLinesSettings(file=str(folder / "lines"))
    destinations: dict[str, DestinationSettings] = {"pulse-v2": lines, "hooks": hooks, "archive": lines, "new": lines}
    public = PublicSettings(urls={"": "https://hg.example.org/"})
    made = NotifierSettings(public=public, destinations=destinations, state=str(folder / "notifier.db"))
    now = 1_700_000_100.0
    still = {
        "paused": False,
        "position": 4711,
        "waiting": 0,
        "oldest": None,
        "oldest_age": 0.0,
        "trouble": None,
        "since": None,
    }
    behind = {"waiting": 312, "oldest": "m1", "oldest_age": 1300.0}
    refused = "amqps://pulse.example.org:5671: connection refused"
    failing = {**still, **behind, "position": 4399, "trouble": refused, "since": now - 1300}
    part = {
        "trouble": "subscription ci of hooks is failing, last: status 503; vcsreplicator subscription list",
        "since": now - 90,
    }
    with closing(StateDatabase(made.state)) as state:
        state.record_condition("pulse-v2", failing, now=now)
        state.record_condition("hooks", {**still, "parts": [part]}, now=now)
        state.record_condition("archive", {**still, **behind, "paused": True}, now=now)
        number = state.requests.ask("archive", Kind.PAUSE, {}, who="dana@notifier1", now=now - 600)
        state.requests.answer(number, "paused", now=now - 599)
        state.requests.ask("pulse-v2", Kind.SKIP, {"message": None}, who="olga (dashboard act 3)", now=now - 5)
    with closing(Deliveries(hooks.database)) as deliveries:
        wanted = Subscription(url="https://ci.example.org/hook")
        deliveries.subscriptions.add("ci", wanted, origin="command", who="dana", now=now)
        ends = ((DeliveryState.DELIVERED, 1, 200, None), (DeliveryState.EXHAUSTED, 9, 500, "status 500"))
        later = (DeliveryState.QUEUED, 3, 503, "status 503")
        for seq, (state_, attempt, status, error) in enumerate((*ends, later), 1):
            notice = a_notice(an_event("integration/autoland-with-a-long-name", seq, push=a_push(seq)))
            [found, *_] = messages(notice, seq, public)
            [row] = deliveries.enqueue([(found, deliveries.subscriptions.all())], now - 60)
            end = AttemptEnd(begun=row, state=state_, attempt=attempt, mature_at=now + 300, status=status, error=error)
            answered = replace(end, duration=0.25, answer=f"<b>answer\x1b {seq}</b>" if error else "")
            deliveries.record([answered], now - 30)
        notice = a_notice(an_event("integration/autoland-with-a-long-name", 4, push=a_push(4)))
        deliveries.enqueue([(messages(notice, 4, public)[0], deliveries.subscriptions.all())], now)
    return made


def fill() -> Installation:
    """Public and private repositories; beta lacks the newest push of two of them, and has one detached."""
    installation = Installation()
    for path in ("public/firefox", SECRET, "public/tools", 'public/<b>"odd" name'):
        for _ in range(3):
            installation.push(path)
            installation.clock.advance(2)
    installation.push(SECRET, serving=("alpha",))
    chain = installation.push("public/firefox", serving=("alpha",))
    detached = replace(chain.ack("beta", 3), detached="locked", note=f"abort: {SECRET}: locked")
    detached = replace(detached, detached_since=installation.clock.now())
    installation.write(ACKS, f"beta/{chain.repository}", detached)
    installation.clock.advance(70)
    installation.beat()
    return installation


@contextmanager
def watching(sources: Sources, log: Log | None = None, pace: Pace | None = None) -> Iterator[LogWatcher]:
    watcher = LogWatcher(log or sources.log, sources.expected, sources.clock, pace=pace)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.close()
        assert watcher.failure is None


def users_file(folder: Path) -> str:
    file = folder / "users"
    file.write_text(USERS)
    return str(file)


def settings(folder: Path, **members: object) -> DashboardSettings:
    acts = str(folder / "acts.db")
    return DashboardSettings(listen="127.0.0.1:8090", users=users_file(folder), acts=acts, **members)  # type: ignore[arg-type]


def settings_with(socket: str, **members: object) -> DashboardSettings:
    """Settings with this socket, and without files."""
    return DashboardSettings(listen="127.0.0.1:8090", anonymous=DashboardRole.GUEST, socket=socket, **members)  # type: ignore[arg-type]


@contextmanager
def pages(installation: Installation, made: DashboardSettings) -> Iterator[Site]:
    """A client of the pages, once the log was read."""
    with watching(installation.sources) as watcher:
        eventually(lambda: watcher.view is not None)
        yield client(installation, watcher, made)


def client(installation: Installation, watcher: LogWatcher, made: DashboardSettings) -> Site:
    readers = Readers(made, read_users(made.users) if made.users else ())
    journal = ActJournal(made.acts, installation.sources.log) if made.acts else None
    application = make_application(installation.sources, watcher, readers, journal, made)
    return Site(application)


AS_READER = {"authorization": f"Bearer {TOKEN}"}
AS_OPERATOR = {"authorization": f"Bearer {OPERATOR_TOKEN}"}


@pytest.fixture(scope="module")
def installation() -> Installation:
    return fill()


@pytest.fixture(scope="module")
def site(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Who has no token is a guest."""
    with pages(installation, settings(tmp_path_factory.mktemp("site"), anonymous=DashboardRole.GUEST)) as site:
        yield site
