# SPDX-License-Identifier: GPL-2.0-or-later
"""What the dashboard remembers of the log: in any order of its topics, and never more than a fixed number of events."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import structlog
from starlette.requests import Request

from hgext.vcsreplicator.dashboard import recent
from hgext.vcsreplicator.dashboard.feed import Feed
from hgext.vcsreplicator.dashboard.recent import Announcements, RecentEvents
from hgext.vcsreplicator.dashboard.settings import DashboardRole
from hgext.vcsreplicator.log import EVENTS, NOTICES, NewRecord
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.records import Notice
from testing.builders.aggregator.chains import Chain
from testing.waiting import eventually
from tests.dashboard.conftest import AS_READER, SECRET, Installation, fill, pages, settings
from tests.dashboard.test_browser import serving


def read_all(installation: Installation) -> RecentEvents:
    events = RecentEvents(installation.log)
    while events.read_on(0.0):
        pass
    return events


def test_events_of_one_repository_push_out_their_own_only() -> None:
    installation = Installation()
    installation.push("public/quiet")
    for _ in range(recent.PER_REPOSITORY + 5):
        installation.push("public/busy")
    events = read_all(installation)
    busy, quiet = (installation.chains[path].repository for path in ("public/busy", "public/quiet"))
    assert [event.seq for event in events.of(busy)] == list(range(recent.PER_REPOSITORY + 5, 5, -1))
    assert [event.seq for event in events.of(quiet)] == [1]
    assert len(list(events.newest())) == recent.PER_REPOSITORY + 1


@pytest.mark.processes
def test_all_pushes_of_the_last_minute_are_counted_remembered_or_not(tmp_path: Path) -> None:
    installation = Installation(mirrors=())
    installation.push("public/old")
    installation.clock.advance(61)
    for number in range(3):
        for _ in range(recent.PER_REPOSITORY + 2):  # the first of each only creates the repository
            installation.push(f"public/{number}")
    with pages(installation, settings(tmp_path)) as site:
        count = 3 * (recent.PER_REPOSITORY + 1)
        eventually(lambda: site.get("/api/overview.json", headers=AS_READER).json()["pushes"] == count)
        assert f"<p>{count} in the last minute." in site.get("/pushes", headers=AS_READER).text


def test_pushes_of_the_last_minute_are_counted_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "SECONDS", 5)
    installation = Installation(mirrors=())
    for _ in range(20):
        installation.push("public/tools")
        installation.clock.advance(2)
    assert read_all(installation).count_pushes(installation.clock.now()) == 5


def test_pushes_from_before_the_clock_went_back_are_not_of_this_minute() -> None:
    installation = Installation(mirrors=())
    for _ in range(3):
        installation.push("public/tools")
    installation.clock.set_back(3600)
    installation.push("public/tools")
    assert read_all(installation).count_pushes(installation.clock.now()) == 1


def test_in_all_only_so_many_events_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "IN_ALL", 5)
    installation = Installation()
    for number in range(12):
        installation.push(f"public/{number}")
    events = read_all(installation)
    assert len(list(events.newest())) == 5
    assert sum(bool(events.of(chain.repository)) for chain in installation.chains.values()) == 5


def test_a_notice_that_is_read_before_its_event_counts() -> None:
    installation = Installation()
    events = RecentEvents(installation.log)
    chain = Chain("public/one")
    event = chain.next()
    installation.write(NOTICES, event.repository, Notice(event=event, time=1.0, roster=1, acks=(), previous={}))
    events.read_on(0.0)
    installation.log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event))])
    events.read_on(0.0)
    [known] = events.of(event.repository)
    assert known.notice == 0
    assert [each.id for each in events.announced] == [event.id]


@pytest.mark.processes
def test_the_feed_sends_an_announcement_whose_event_is_read_late() -> None:
    installation = Installation()
    first, late, next_, last = (Chain(f"public/{name}").next() for name in ("first", "late", "next", "last"))

    def log(event: Event) -> None:
        installation.log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event))])

    def announce(event: Event) -> None:
        installation.write(NOTICES, event.repository, Notice(event=event, time=1.0, roster=1, acks=(), previous={}))

    log(first)
    announce(first)
    log(next_)
    announce(late)
    announce(next_)
    events = RecentEvents(installation.log)
    while events.read_on(0.0):
        pass
    watcher = SimpleNamespace(announced=tuple(events.announced), note_interest=lambda: None)

    def go_on(found: list[dict[str, object]]) -> None:
        if len(found) == 1:
            log(late)
            log(last)
            announce(last)
            while events.read_on(0.0):
                pass
            watcher.announced = tuple(events.announced)

    assert read_feed(watcher, "0", 3, go_on) == ["public/next", "public/late", "public/last"]
    assert read_feed(watcher, "2", 2) == ["public/late", "public/last"]
    assert read_feed(watcher, "1", 1) == ["public/last"]


def read_feed(
    watcher: SimpleNamespace,
    last: str,
    count: int,
    look: Callable[[list[dict[str, object]]], None] = lambda found: None,
) -> list[object]:
    """The names of the announcements that a reader gets after this id."""
    headers = [(b"last-event-id", last.encode())]
    request = Request({"type": "http", "headers": headers, "state": {"role": DashboardRole.READER}})
    feed: Any = Feed(watcher, lambda request: lambda repository, path: path)  # type: ignore[arg-type]

    async def read() -> list[object]:
        found: list[dict[str, object]] = []
        with anyio.fail_after(10):
            async for text in feed._send(request):
                if "data: " in text:
                    found.append(json.loads(text.partition("data: ")[2]))
                    look(found)
                if len(found) == count:
                    break
        return [each["repository"] for each in found]

    return anyio.run(read)


def test_nothing_is_announced_again_when_the_log_is_read_anew() -> None:
    installation = Installation()
    installation.push("public/one")
    announcements = Announcements()
    for _ in range(2):
        events = RecentEvents(installation.log, announcements)
        events.read_on(0.0)
        installation.push("public/two")
        events.read_on(0.0)
    assert [(each.number, each.path) for each in announcements.newest] == [
        *enumerate(("public/one", "public/two", "public/two"))
    ]


def test_a_replay_is_no_second_announcement() -> None:
    installation = Installation()
    chain = installation.push("public/one")
    notice = Notice(event=chain.events[0], time=9.0, roster=1, acks=(), previous={}, replay="dana, today")
    installation.write(NOTICES, chain.repository, notice)
    events = read_all(installation)
    assert [each.notice for each in events.announced] == [0]


def test_a_release_that_is_seen_has_its_time() -> None:
    installation = Installation()
    chain = installation.push("public/one", serving=("alpha",))
    events = read_all(installation)
    assert events.of(chain.repository)[0].released is None
    installation.clock.advance(5)
    installation.state(chain, released=1, noticed=0)
    events.read_on(0.0)
    assert events.of(chain.repository)[0].released == installation.clock.now()


def test_an_event_does_not_get_the_time_of_a_later_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "STATES_BEFORE", 0)
    installation = Installation()
    chain = installation.push("public/one")
    events = RecentEvents(installation.log)  # after a restart
    installation.clock.advance(441)
    installation.push("public/one")
    events.read_on(0.0)
    assert [event.released for event in events.of(chain.repository)] == [None, None]
    installation.push("public/one")
    events.read_on(0.0)
    assert [event.released is None for event in events.of(chain.repository)] == [False, True, True]


def test_an_event_that_is_read_after_its_release_gets_no_later_time() -> None:
    installation = Installation()
    chain = installation.push("public/one")
    events = read_all(installation)
    second = chain.next()
    installation.clock.advance(1)
    installation.state(chain, released=2, noticed=1)
    at = installation.clock.now()
    events.read_on(0.0)
    third = chain.next()
    installation.clock.advance(60)
    installation.state(chain, released=3, noticed=3)
    events.read_on(0.0)
    for event in (second, third):
        installation.log.append([NewRecord(topic=EVENTS, key=chain.repository, value=wire.encode(event))])
    events.read_on(0.0)
    assert [event.released for event in events.of(chain.repository)] == [at + 60, None, None]


@pytest.mark.parametrize("value", [b"", b"\xff\x00", b"{}", b"VCR1\xff\xff\xff\xff"])
@pytest.mark.parametrize("topic", [EVENTS, NOTICES, "state"])
def test_a_record_of_no_known_form_is_passed_over(topic: str, value: bytes) -> None:
    installation = Installation()
    events = RecentEvents(installation.log)
    installation.log.append([NewRecord(topic=topic, key="odd", value=value)])
    installation.push("public/one")
    while events.read_on(0.0):
        pass
    assert [event.path for event in events.newest()] == ["public/one"]


def test_a_record_on_which_the_dashboard_fails_is_set_aside_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation()
    for path in ("public/one", "public/bad", "public/two"):
        installation.push(path)
    bad = installation.chains["public/bad"].repository
    decode = wire.decode

    def fail_on_bad(value: bytes) -> object:
        if bad.encode() in value:
            raise RuntimeError("a bug")
        return decode(value)

    monkeypatch.setattr(recent.wire, "decode", fail_on_bad)
    with structlog.testing.capture_logs() as lines:
        events = read_all(installation)
    assert {event.path for event in events.newest()} == {"public/one", "public/two"}
    [line] = lines
    assert line["event"] == "record set aside"
    assert (line["topic"], line["kind"], line["reason"]) == (EVENTS, "RuntimeError", "a bug")


def test_pages_show_an_event_that_the_aggregator_has_not_seen(tmp_path: Path) -> None:
    installation = fill()
    event = Chain("public/new").next()
    installation.log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event))])
    with pages(installation, settings(tmp_path)) as site:
        for address in ("/", "/pushes"):
            answer = site.get(address, headers=AS_READER)
            assert answer.status_code == 200
            assert "public/new" in answer.text
        assert site.get(f"/repository/{event.repository}", headers=AS_READER).status_code == 404


def follow(
    address: str, installation: Installation, enough: Callable[[list[dict[str, object]]], bool]
) -> list[dict[str, object]]:
    """What the feed sends after the first notice, until it is enough."""
    asked = urllib.request.Request(f"{address}/pushes/live", headers={"Last-Event-ID": "0"})
    found: list[dict[str, object]] = []
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        while not enough(found):
            line = answer.readline().decode()
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
    return found


@pytest.mark.processes
@pytest.mark.parametrize("role", [DashboardRole.GUEST, DashboardRole.READER])
def test_the_feed_resumes_after_the_last_id_and_shows_what_a_role_may(role: DashboardRole) -> None:
    installation = fill()
    with serving(installation, role) as address:
        found = follow(address, installation, lambda found: len(found) == 11)
    private = installation.chains[SECRET].repository
    names = {str(each["repository"]) for each in found}
    assert (SECRET in names) == (role is DashboardRole.READER)
    assert (private[:8] in names) == (role is DashboardRole.GUEST)
    assert all(("user" in each) == (role is DashboardRole.READER) for each in found)
