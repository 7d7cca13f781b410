# SPDX-License-Identifier: GPL-2.0-or-later
"""The changesets of a push, as a mirror lists them; the heads only if the mirror has it no more."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import structlog

from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.hgpush.lookup import ChangesetLookup
from notifier.message import messages
from notifier.public import PublicSettings
from testing.builders.endpoint import Endpoint, Reply
from testing.builders.notices import CREATED_AT, a_notice, an_event, node
from testing.clock import HandClock

pytestmark = pytest.mark.processes

# The event 7 of its repository, with push 7 and one head.
[MESSAGE] = messages(a_notice(an_event("x", 7)), 0, PublicSettings(urls={"": "https://hg.example/"}))
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
        self.url = f"http://127.0.0.1:{mirror.port}"

    def changesets(self, reply: Reply, *, with_obsolete: bool = False) -> tuple[str, ...]:
        self.mirror.reply = lambda request: reply
        with closing(ChangesetLookup(self.url, None, self.clock, with_obsolete=with_obsolete)) as lookup:
            [push] = lookup.pushes(MESSAGE)
        return push.changesets


@pytest.fixture
def asking() -> Iterator[Asking]:
    with Endpoint() as mirror:
        yield Asking(mirror)


@pytest.mark.parametrize("released", [None, 6])
def test_push_that_a_mirror_does_not_show_yet_waits_for_it(asking: Asking, released: int | None) -> None:
    with pytest.raises(Unavailable, match="shows pushes up to 6, expected 7: the mirror is behind"):
        asking.changesets(a_reply(6, released=released))
    whole = {"changesets": [node("first"), HEAD]}
    assert asking.changesets(a_reply(7, released=7, p7=whole)) == (node("first"), HEAD)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=404), "status 404, the repository is gone"),
        (a_reply(6, released=7), "the push is gone"),
        (a_reply(9), "the push is gone"),
        (a_reply(9, p7={"changesets": []}), "the push has no changesets any more"),
    ],
    ids=["no repository", "stripped", "hole", "empty"],
)
def test_push_that_a_mirror_has_no_more_is_sent_with_its_heads_and_a_log_line(
    asking: Asking, reply: Reply, reason: str
) -> None:
    with structlog.testing.capture_logs() as lines:
        assert asking.changesets(reply) == (HEAD,)
    [line] = lines
    assert (line["event"], line["reason"], line["message"]) == ("only the heads are sent", reason, MESSAGE.id)


def test_push_waits_a_day_at_most_where_nothing_says_whether_it_was_stripped(asking: Asking) -> None:
    asking.clock.advance(DAY)
    with structlog.testing.capture_logs() as lines:
        assert asking.changesets(a_reply(6)) == (HEAD,)
    [line] = lines
    assert line["reason"] == "the mirror shows pushes up to 6, a day after this one"


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
def test_obsolete_changesets_come_only_where_they_are_asked_for_and_the_head_last(
    asking: Asking, visible: list[str], obsolete: list[str], all_of_them: tuple[str, ...]
) -> None:
    reply = a_reply(7, p7={"changesets": visible, "obsoletechangesets": obsolete})
    assert asking.changesets(reply, with_obsolete=True) == all_of_them
    assert asking.changesets(reply) == (tuple(visible) or (HEAD,))
