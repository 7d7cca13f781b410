# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages of the queue `hg`, and answers of json-pushes: what is read, and what is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.words.errors import MalformedEvent, Rejected
from notifier.messages import pushes
from notifier.messages.pushes import LARGEST, QueuedPush, from_body, read_answer, to_body

NODE = "a" * 40
ENTRY = {"changesets": [NODE], "date": 1, "user": "dana"}


def an_answer(**pushes: Any) -> bytes:
    return json.dumps(
        {"lastpushid": 9, "pushes": {name.removeprefix("p"): each for name, each in pushes.items()}}
    ).encode()


def test_what_is_written_is_read_again() -> None:
    answer = read_answer(an_answer(p10=ENTRY, p9={**ENTRY, "git_changesets": [None]}), "h")
    assert [push.id for push in answer.pushes] == [9, 10]
    read = from_body(to_body(7, answer.pushes).encode())
    assert (read.repository_id, read.pushes) == (7, answer.pushes)


@pytest.fixture(params=[100_000, pytest.param(LARGEST, marks=pytest.mark.more)])
def largest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes of the largest message."""
    monkeypatch.setattr(pushes, "LARGEST", request.param)
    return int(request.param)


def test_push_of_the_largest_answer_fits_into_a_message(largest: int) -> None:
    nodes = [f"{number:040x}" for number in range(1, (largest - 200) // 43)]
    text = json.dumps({"lastpushid": 1, "pushes": {"1": {**ENTRY, "changesets": nodes}}}, separators=(",", ":"))
    assert largest - 300 < len(text) <= largest
    answer = read_answer(text.encode(), "h")
    assert from_body(to_body(7, answer.pushes).encode()).pushes == answer.pushes


def test_push_that_fits_into_no_message_is_refused(largest: int) -> None:
    push = QueuedPush(
        id=3, date=1, user="dana", changesets=tuple(f"{number:040x}" for number in range(1, largest // 43))
    )
    with pytest.raises(Rejected, match=rf"^push 3: a message of \d+ bytes, receivers accept at most {largest}$"):
        to_body(7, [push])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"<html>", "h: not JSON"),
        (b"[]", "h: expected an object with lastpushid and pushes"),
        (b'{"lastpushid": 1, "pushes": []}', "h: expected an object"),
        (b'{"lastpushid": "1", "pushes": {}}', "h: lastpushid: expected a number"),
        (b'{"lastpushid": true, "pushes": {}}', "h: lastpushid: expected a number"),
        (b'{"lastpushid": -1, "pushes": {}}', "h: lastpushid: expected a number"),
        (b'{"lastpushid": 4611686018427387904, "pushes": {}}', "h: lastpushid: expected a number"),
        (an_answer(p0=ENTRY), "h: pushes.0: expected a push and its id"),
        (an_answer(p1=[]), "h: pushes.1: expected a push"),
        (an_answer(p1={**ENTRY, "date": "1"}), "h: pushes.1.date: expected a whole number"),
        (an_answer(p1={**ENTRY, "date": 2**62}), "h: pushes.1.date: expected a number from "),
        (an_answer(p1={**ENTRY, "user": None}), "h: pushes.1.user: expected text"),
        (an_answer(p1={**ENTRY, "changesets": ["--config"]}), "h: pushes.1.changesets: expected 40"),
        (
            an_answer(p1={**ENTRY, "changesets": ["f" * 40]}),
            "h: pushes.1.changesets: the null changeset and the working",
        ),
        (
            an_answer(p1={**ENTRY, "changesets": ["0" * 40]}),
            "h: pushes.1.changesets: the null changeset and the working",
        ),
        (
            an_answer(p1={**ENTRY, "obsoletechangesets": ["0" * 40]}),
            "h: pushes.1.changesets: the null changeset and the working",
        ),
        (an_answer(p1={**ENTRY, "changesets": [NODE + "\n"]}), "h: pushes.1.changesets: expected 40"),
    ],
)
def test_answer_of_another_shape_is_refused_in_one_line(text: bytes, complaint: str) -> None:
    with pytest.raises(MalformedEvent) as refused:
        read_answer(text, "h")
    assert str(refused.value).startswith(complaint)
    assert "\n" not in str(refused.value)


def test_user_is_bounded_and_unicode() -> None:
    [push] = read_answer(an_answer(p1={**ENTRY, "user": "\ud800" + "x" * 5000}), "h").pushes
    assert push.user == "\N{REPLACEMENT CHARACTER}" + "x" * 999


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["pushes", "lastpushid", "1", "date"]), inner),
)


@given(JSON)
def test_any_json_is_read_or_refused(value: Any) -> None:
    for reader in (lambda text: read_answer(text, "h"), from_body):
        try:
            reader(json.dumps(value).encode())
        except MalformedEvent:
            pass


def test_push_of_a_message_has_a_positive_id() -> None:
    push = {"id": 0, "date": 1, "user": "u", "changesets": []}
    with pytest.raises(MalformedEvent, match="id: expected a positive number, got 0"):
        from_body(json.dumps({"type": "hg-push", "repository_id": 1, "pushes": [push]}).encode())
