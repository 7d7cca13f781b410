# SPDX-License-Identifier: GPL-2.0-or-later
"""The changesets of a push, as a mirror lists them; the heads only if the mirror has it no more."""

import gzip
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import structlog

from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.delivery.window import Delivery
from notifier.destinations.hgpush import lookup
from notifier.destinations.hgpush.lookup import BEHIND, ChangesetLookup
from notifier.messages.message import Message, messages
from notifier.messages.public import PublicSettings
from notifier.messages.pushes import LARGE, PushesAnswer
from testing.builders.notifier.endpoint import Endpoint, Reply
from testing.builders.notifier.notices import CREATED_AT, a_notice, an_event, node
from testing.clock import HandClock
from testing.waiting import eventually

pytestmark = pytest.mark.processes


def a_message(number: int) -> Message:
    """The event of this number of its repository, with the push of this number and one head."""
    [message] = messages(a_notice(an_event("x", number)), 0, PublicSettings(urls={"": "https://hg.example/"}))
    return message


MESSAGE = a_message(7)
HEAD = node("x", 7)


def a_reply(last: int, *, released: int | None = None, **pushes: Any) -> Reply:
    """What a mirror answers whose newest push is `last` and whose newest event is `released`."""
    entries = {name.removeprefix("p"): {"date": 1, "user": "dana", **each} for name, each in pushes.items()}
    headers = () if released is None else (("x-vcsreplicator-event", str(released)),)
    return Reply(headers=headers, body=json.dumps({"lastpushid": last, "pushes": entries}).encode())


class Asking:
    """A mirror, and the lookup that asks it; a minute has passed since the push."""

    def __init__(self, mirror: Endpoint) -> None:
        self.mirror, self.clock = mirror, HandClock(CREATED_AT + 60)
        url = f"http://127.0.0.1:{mirror.port}"
        self.lookup = ChangesetLookup(url, None, self.clock)
        self.lookup_of_all = ChangesetLookup(url, None, self.clock, with_obsolete=True)

    def changesets(
        self,
        reply: Reply,
        *,
        message: Message = MESSAGE,
        with_obsolete: bool = False,
        has_successor: bool = False,
    ) -> tuple[str, ...]:
        self.mirror.reply = lambda request: reply
        delivery = Delivery(number=1, message=message, attempt=1, has_successor=has_successor)
        [push] = (self.lookup_of_all if with_obsolete else self.lookup).pushes(delivery)
        return push.changesets


@pytest.fixture
def asking() -> Iterator[Asking]:
    with Endpoint() as mirror:
        made = Asking(mirror)
        with closing(made.lookup), closing(made.lookup_of_all):
            yield made


def test_a_packed_answer_of_a_mirror_is_unpacked(asking: Asking) -> None:
    reply = a_reply(7, p7={"changesets": [node("first"), HEAD]})
    packed = replace(reply, headers=(("Content-Encoding", "gzip"),), body=gzip.compress(reply.body))
    assert asking.changesets(packed) == (node("first"), HEAD)


@pytest.mark.parametrize("location", ["/elsewhere", "http://[::1", "file:///etc/passwd"])
def test_an_answer_that_leads_elsewhere_is_waited_out_and_not_followed(asking: Asking, location: str) -> None:
    """An address that is none made a push a reject."""
    with pytest.raises(Unavailable, match="status 302, expected 200"):
        asking.changesets(Reply(status=302, headers=(("Location", location),)))
    assert [request.path.partition("?")[0] for request in asking.mirror.requests] == ["/x/json-pushes"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (a_reply(6), "shows pushes up to 6, expected 7"),
        (a_reply(6, released=6), "shows pushes up to 6, expected 7"),
        (Reply(status=404), "has no such repository"),
    ],
    ids=["older pushes", "an older event", "no repository"],
)
def test_push_that_a_mirror_does_not_show_yet_waits_for_it(asking: Asking, reply: Reply, reason: str) -> None:
    asking.clock.advance(30 * DAY)
    for _ in range(2):
        with pytest.raises(Unavailable, match=f"{reason}: the mirror is behind"):
            asking.changesets(reply)
        asking.clock.advance(BEHIND - 1)
    whole = {"changesets": [node("first"), HEAD]}
    assert asking.changesets(a_reply(7, released=7, p7=whole)) == (node("first"), HEAD)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (a_reply(6, released=7), "the push is gone"),
        (a_reply(9), "the push is gone"),
        (a_reply(9, p7={"changesets": []}), "the push has no changesets any more"),
        (a_reply(9, p7={"changesets": [node("other")]}), "another push has this number now"),
    ],
    ids=["stripped", "hole", "empty", "another repository's"],
)
def test_a_push_that_a_mirror_lost_is_sent_with_its_heads_and_a_line(asking: Asking, reply: Reply, reason: str) -> None:
    with structlog.testing.capture_logs() as lines:
        assert asking.changesets(reply) == (HEAD,)
    [line] = lines
    assert (line["event"], line["reason"], line["message"]) == ("only the heads are sent", reason, MESSAGE.id)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (a_reply(6), "shows pushes up to 6, expected 7, for 1 h"),
        (Reply(status=404), "has no such repository, for 1 h"),
    ],
    ids=["older pushes", "no repository"],
)
def test_push_waits_an_hour_where_nothing_says_whether_it_was_stripped(
    asking: Asking, reply: Reply, reason: str
) -> None:
    with pytest.raises(Unavailable):
        asking.changesets(reply)
    asking.clock.advance(BEHIND)
    with structlog.testing.capture_logs() as lines:
        assert asking.changesets(reply) == (HEAD,)
    [line] = lines
    assert line["reason"].endswith(reason)


def test_push_whose_heads_alone_were_stripped_is_sent_with_the_rest(asking: Asking) -> None:
    rest = {"changesets": [node("first")], "date": int(CREATED_AT)}
    assert asking.changesets(a_reply(9, p7=rest)) == (node("first"),)


def test_push_waits_a_day_for_a_mirror_that_states_that_it_is_behind(asking: Asking) -> None:
    asking.clock.advance(30 * DAY)
    for _ in range(2):
        with pytest.raises(Unavailable, match="the mirror is behind"):
            asking.changesets(a_reply(6, released=6))
        asking.clock.advance(DAY - 1)
    asking.clock.advance(1)
    assert asking.changesets(a_reply(6, released=6)) == (HEAD,)


@pytest.mark.parametrize(
    "reply",
    [a_reply(6, released=6), a_reply(6), Reply(status=404)],
    ids=["an older event", "older pushes", "no repository"],
)
def test_a_push_of_a_repository_without_its_url_waits_for_no_mirror(asking: Asking, reply: Reply) -> None:
    with structlog.testing.capture_logs() as lines:
        assert asking.changesets(reply, has_successor=True) == (HEAD,)
    [line] = lines
    assert line["reason"].endswith("and another repository has the URL now")
    whole = {"changesets": [node("first"), HEAD]}
    assert asking.changesets(a_reply(7, p7=whole), has_successor=True) == (node("first"), HEAD)


def test_pushes_of_a_repository_that_is_gone_wait_one_hour_together(asking: Asking) -> None:
    asking.clock.advance(BEHIND)
    with pytest.raises(Unavailable):
        asking.changesets(Reply(status=404))
    asking.clock.advance(BEHIND)
    assert asking.changesets(Reply(status=404)) == (HEAD,)
    assert asking.changesets(Reply(status=404), message=a_message(8)) == (node("x", 8),)


def test_a_push_newer_than_its_mirrors_trouble_waits_up_to_an_hour(asking: Asking) -> None:
    with pytest.raises(Unavailable):
        asking.changesets(Reply(status=404))
    asking.clock.advance(BEHIND)
    late = replace(a_message(8), created=asking.clock.now())
    with pytest.raises(Unavailable):
        asking.changesets(Reply(status=404), message=late)


def test_mirror_that_was_behind_before_is_waited_for_as_long_again(asking: Asking) -> None:
    with pytest.raises(Unavailable):
        asking.changesets(Reply(status=404))
    asking.changesets(a_reply(7, p7={"changesets": [HEAD]}))
    asking.clock.advance(BEHIND)
    with pytest.raises(Unavailable):
        asking.changesets(Reply(status=404))


def test_pushes_that_a_mirror_shows_do_not_prolong_the_wait_of_a_replay(asking: Asking) -> None:
    replayed = replace(MESSAGE, replay="dana 1")
    with pytest.raises(Unavailable):
        asking.changesets(a_reply(6), message=replayed)
    asking.clock.advance(BEHIND)
    asking.changesets(a_reply(8, p8={"changesets": [node("x", 8)]}), message=a_message(8))
    assert asking.changesets(a_reply(6), message=replayed) == (HEAD,)


def test_lookup_that_is_closed_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "ANSWER", 3600.0)
    caught: list[BaseException] = []
    with Endpoint() as mirror:
        asking = Asking(mirror)

        def look_up() -> None:
            try:
                asking.changesets(Reply(hang=threading.Event()))
            except Unavailable as error:
                caught.append(error)

        threading.Thread(target=look_up, daemon=True).start()
        eventually(lambda: mirror.requests)
        asking.lookup.close()
        eventually(lambda: caught)


def test_large_answers_of_a_mirror_are_read_one_at_a_time(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take forty times its size in memory, and several threads ask."""
    at_work = threading.Lock()

    def read(text: bytes, where: str) -> PushesAnswer:
        assert at_work.acquire(blocking=False), "another one is read"
        time.sleep(0.1)
        at_work.release()
        return PushesAnswer(last=9, pushes=())

    monkeypatch.setattr(lookup, "read_answer", read)
    large = Reply(body=b" " * LARGE)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: asking.changesets(large), range(3))) == [(HEAD,)] * 3


FIRST, SECOND, THIRD = node("first"), node("second"), node("third")


@pytest.mark.parametrize(
    ("visible", "obsolete", "all_of_them"),
    [
        ([FIRST, SECOND], [THIRD, HEAD], (FIRST, SECOND, THIRD, HEAD)),
        ([FIRST, HEAD], [SECOND, THIRD], (FIRST, SECOND, THIRD, HEAD)),
        ([], [FIRST, HEAD], (FIRST, HEAD)),
    ],
    ids=["the head", "others", "all"],
)
def test_obsolete_changesets_come_on_demand_and_the_head_last(
    asking: Asking, visible: list[str], obsolete: list[str], all_of_them: tuple[str, ...]
) -> None:
    reply = a_reply(7, p7={"changesets": visible, "obsoletechangesets": obsolete})
    assert asking.changesets(reply, with_obsolete=True) == all_of_them
    assert asking.changesets(reply) == (tuple(visible) or (HEAD,))
