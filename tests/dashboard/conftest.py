# SPDX-License-Identifier: GPL-2.0-or-later
"""An installation in a log in memory: public and private repositories, mirrors of which one is late, and destinations."""

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from hgext.vcsreplicator.dashboard.application import make_application
from hgext.vcsreplicator.dashboard.readers import Readers, read_users
from hgext.vcsreplicator.dashboard.settings import DashboardSettings, ReaderRole
from hgext.vcsreplicator.dashboard.sources import Sources
from hgext.vcsreplicator.dashboard.watcher import LogWatcher
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
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.levels import (
    AggregatorBeat,
    Beat,
    MirrorProof,
    Notice,
    RepositoryState,
    ServiceReport,
    ServiceTrouble,
)
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.chains import Chain
from testing.builders.memorylog import MemoryLog
from testing.clock import HandClock
from testing.waiting import eventually

TOKEN = "correct-horse-battery-staple"
USERS = f"""# who may read
dana:reader:{hashlib.sha256(TOKEN.encode()).hexdigest()}
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
        self.write(ROSTER, KEY, Roster(mirrors=tuple(Mirror(name=name, state=MirrorState.ACTIVE) for name in mirrors)))
        self.beat()

    def write(self, topic: str, key: str, value: object) -> int:
        [(_, offset)] = self.log.append([NewRecord(topic=topic, key=key, value=to_json(value))])
        return offset

    def beat(self) -> None:
        """Every service gives a sign of life."""
        now = self.clock.now()
        self.write(STATE, "aggregator", AggregatorBeat(time=now, roster=1, held=0))
        for name in self.mirrors:
            self.write(ACKS, name, Beat(mirror=name, time=now, positions={}, version="1"))
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
        state = RepositoryState(
            repository=last.repository,
            incarnation=last.incarnation,
            path=last.path,
            generation=1,
            seq=last.seq,
            event=last.id,
            digest=last.digest,
            released=last.seq,
            noticed=last.seq,
            roster=1,
        )
        self.write(STATE, last.repository, replace(state, **members))  # type: ignore[arg-type]

    @property
    def sources(self) -> Sources:
        return Sources(
            log=self.log,
            destinations=["hooks"],
            relay="hg.example",
            is_public=lambda path: path.startswith("public/"),
            describe_delivery=lambda name, event, is_passed: "delivered" if is_passed else "not yet delivered",
        )


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
    installation.write(ACKS, f"beta/{chain.repository}", detached)
    installation.clock.advance(70)
    installation.beat()
    return installation


@contextmanager
def watching(sources: Sources, log: Log | None = None) -> Iterator[LogWatcher]:
    watcher = LogWatcher(log or sources.log, destinations=sources.destinations, relay=sources.relay)
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
    return DashboardSettings(listen="127.0.0.1:8090", users=users_file(folder), **members)  # type: ignore[arg-type]


@contextmanager
def pages(installation: Installation, made: DashboardSettings) -> Iterator[Site]:
    """A client of the pages, once the log was read."""
    with watching(installation.sources) as watcher:
        eventually(lambda: watcher.view is not None)
        yield client(installation, watcher, made)


def client(installation: Installation, watcher: LogWatcher, made: DashboardSettings) -> Site:
    readers = Readers(made, read_users(made.users) if made.users else ())
    application = make_application(installation.sources, watcher, readers, hosts=made.hosts)
    return Site(application)


AS_READER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def installation() -> Installation:
    return fill()


@pytest.fixture(scope="module")
def site(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Who has no token is a guest."""
    with pages(installation, settings(tmp_path_factory.mktemp("site"), anonymous=ReaderRole.GUEST)) as site:
        yield site
