# SPDX-License-Identifier: GPL-2.0-or-later
"""What an answer means for a repository: news, the next question, and repositories that are no longer the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.words.errors import MalformedEvent
from notifier.messages.pushes import PushesAnswer, QueuedPush
from notifier.services.poll.following import (
    CHANGESETS,
    PUSHES,
    Followed,
    Question,
    RepositoryReplaced,
    find_news,
    first_question,
    next_question,
    split,
)


def a_node(number: int) -> str:
    return f"{number:040x}"


def a_push(number: int, *changesets: int, obsolete: tuple[int, ...] = ()) -> QueuedPush:
    nodes = tuple(map(a_node, changesets or (() if obsolete else (number,))))
    return QueuedPush(id=number, date=1, user="dana", changesets=nodes, obsolete=tuple(map(a_node, obsolete)))


def an_answer(*pushes: QueuedPush, last: int | None = None) -> PushesAnswer:
    return PushesAnswer(last=max((p.id for p in pushes), default=0) if last is None else last, pushes=pushes)


AT_9 = Followed(number=1, url="u", last=9, tip=a_node(9))


def test_question_begins_with_the_last_push_that_was_sent() -> None:
    assert first_question(AT_9, 200).url("h") == "h/json-pushes?version=2&startID=8&endID=208"
    assert first_question(Followed(number=1, url="u"), 200).url("h") == "h/json-pushes?version=2&startID=0&endID=200"


def test_news_are_the_pushes_behind_the_last_one() -> None:
    news = find_news(AT_9, first_question(AT_9, 200), an_answer(a_push(9), a_push(12), a_push(13)))
    assert [push.id for push in news] == [12, 13]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (an_answer(a_push(8), last=8), "its last push is 8, push 9 was sent already"),
        (an_answer(last=0), "its last push is 0"),
        (an_answer(a_push(10)), "push 9, which was sent already, is gone"),
        (an_answer(a_push(9, 5), a_push(10)), "now it has others"),
    ],
)
def test_repository_that_lost_or_changed_a_push_is_replaced(answer: PushesAnswer, complaint: str) -> None:
    answer = PushesAnswer(last=answer.last, pushes=tuple(push for push in answer.pushes if push.id > 8))
    with pytest.raises(RepositoryReplaced, match=complaint):
        find_news(AT_9, first_question(AT_9, 200), answer)


@pytest.mark.parametrize(
    "push", [a_push(9, 1, 9), a_push(9, 1, obsolete=(9,)), QueuedPush(id=9, date=1, user="", changesets=())]
)
def test_push_whose_newest_changeset_became_obsolete_is_the_same(push: QueuedPush) -> None:
    assert find_news(AT_9, first_question(AT_9, 200), an_answer(push)) == []


@pytest.mark.parametrize("number", [5, 8, 209])
def test_push_that_was_not_asked_for_is_refused(number: int) -> None:
    pushes = sorted([a_push(9), a_push(number)], key=lambda push: push.id)
    with pytest.raises(MalformedEvent, match="not asked for"):
        find_news(AT_9, first_question(AT_9, 200), an_answer(*pushes, last=300))


def test_a_host_that_claims_a_last_id_far_away_is_asked_few_questions() -> None:
    question: Question | None = first_question(AT_9, 200)
    asked = 0
    while question is not None and asked < 1000:
        asked += 1
        pushes = [a_push(9)] if question.after < 9 else []
        question = next_question(question, an_answer(*pushes, last=2**62 - 1), None, 200)
        assert question is None or question.after + question.span < 2**62
    assert asked < 70


def test_portions_of_messages_are_bounded_and_keep_the_order() -> None:
    many = [a_push(number) for number in range(1, 2 * PUSHES + 2)]
    assert [len(portion) for portion in split(many)] == [PUSHES, PUSHES, 1]
    large = a_push(3, *range(1, CHANGESETS + 2))
    assert [[push.id for push in portion] for portion in split([a_push(1), a_push(2), large, a_push(4)])] == [
        [1, 2],
        [3],
        [4],
    ]


def answer_of(host: list[int], question: Question, limit: int, *, gives_link: bool) -> tuple[PushesAnswer, str | None]:
    """What a host with these pushes says, which leaves out what is beyond its limit."""
    to = question.after + question.span if question.link is None else 2**60
    found = [number for number in host if question.after < number <= to]
    shown = found[:limit]
    link = "link" if gives_link and len(found) > limit else None
    return an_answer(*map(a_push, shown), last=max(host, default=0)), link


@given(
    host=st.sets(st.integers(1, 400), max_size=60),
    page=st.integers(1, 50),
    limit=st.integers(2, 20),
    gives_link=st.booleans(),
    taken=st.integers(0, 60),
)
def test_whatever_holes_and_limits_every_push_is_found_once_and_in_order(
    host: set[int], page: int, limit: int, gives_link: bool, taken: int
) -> None:
    pushes = sorted(host)
    known = pushes[min(taken, len(pushes)) - 1] if pushes and taken else 0
    followed = Followed(number=1, url="u", last=known, tip=a_node(known) if known else "")
    question: Question | None = first_question(followed, page)
    found: list[int] = []
    while question is not None:
        answer, link = answer_of(pushes, question, limit, gives_link=gives_link)
        for push in find_news(followed, question, answer):
            followed = followed.after(push)
            found.append(push.id)
        question = next_question(question, answer, link, page)
    assert found == [number for number in pushes if number > known]
