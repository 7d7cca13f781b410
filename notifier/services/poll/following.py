# SPDX-License-Identifier: GPL-2.0-or-later
"""The meaning of an answer of json-pushes for a followed repository.

Pure. The repository was followed up to some push.

Each question begins with the last known push, so its answer shows whether this is still the same repository. The position moves
only to pushes that were in an answer: ids have holes, and a host may leave out the end of an answer.
"""

from dataclasses import dataclass, replace
from typing import Self

from hgext.vcsreplicator.words.errors import MalformedEvent, ReplicationError
from hgext.vcsreplicator.words.shape import extensible

from ...messages.pushes import PushesAnswer, QueuedPush

# Pushes of one message.
PUSHES = 100

# Changesets of one message, unless one push has more.
CHANGESETS = 10_000


class RepositoryReplaced(ReplicationError):
    """The repository lost pushes that were sent, or has others in their place."""


# Where a repository stands that is followed from its end on, until its end is known.
UNDECIDED = -1


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A repository, its `number`, and the `last` push that was sent.

    `tip` is the newest changeset of that push ("": unknown). `last` is 0 if no push was sent, and `UNDECIDED` until the poller
    knows where to begin.
    """

    number: int
    url: str
    last: int = 0
    tip: str = ""

    def after(self, push: QueuedPush) -> Self:
        return replace(self, last=push.id, tip=push.changesets[-1] if push.changesets else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Pushes with ids above `after`, up to `after + span`.

    With a `link` of the host, the pushes behind that link instead.
    """

    after: int
    span: int
    link: str | None = None

    def url(self, repository: str) -> str:
        window = f"startID={self.after}&endID={self.after + self.span}"
        return self.link or f"{repository}/json-pushes?version=2&{window}"


def first_question(followed: Followed, page: int) -> Question:
    """Return the question that begins with the last known push."""
    return Question(after=max(followed.last - 1, 0), span=page)


def find_news(followed: Followed, question: Question, answer: PushesAnswer) -> list[QueuedPush]:
    """Return the pushes that are new.

    Raises Replaced, or MalformedEvent for pushes that the question did not ask for.
    """
    if answer.last < followed.last:
        raise RepositoryReplaced(f"its last push is {answer.last}, push {followed.last} was sent already")
    pushes = answer.pushes
    if any(push.id <= question.after for push in pushes):
        raise MalformedEvent(f"{followed.url}: push {pushes[0].id}, which was not asked for (after {question.after})")
    if question.link is None and pushes and pushes[-1].id > question.after + question.span:
        raise MalformedEvent(f"{followed.url}: push {pushes[-1].id}, which was not asked for")
    if question.after < followed.last:
        _check_last(followed, pushes[0] if pushes else None)
    return [push for push in pushes if push.id > followed.last]


def next_question(question: Question, answer: PushesAnswer, link: str | None, page: int) -> Question | None:
    """Return the next question; None if the repository is caught up."""
    top = answer.pushes[-1].id if answer.pushes else question.after
    if link is not None and top > question.after:
        return Question(after=top, span=page, link=link)
    if top > question.after:
        return Question(after=top, span=page) if answer.last > top else None
    if answer.last <= question.after + question.span:
        return None
    # A hole of ids, however wide, costs few questions: a host may claim any last id.
    after = question.after + question.span
    return Question(after=after, span=min(question.span * 2, answer.last - after))


def split(pushes: list[QueuedPush]) -> list[list[QueuedPush]]:
    """Split the pushes, in order, into portions of one message each."""
    portions: list[list[QueuedPush]] = []
    room = 0
    for push in pushes:
        if not portions or len(portions[-1]) == PUSHES or room < len(push.changesets):
            portions.append([])
            room = CHANGESETS
        portions[-1].append(push)
        room -= len(push.changesets)
    return portions


def _check_last(followed: Followed, push: QueuedPush | None) -> None:
    if push is None or push.id != followed.last:
        raise RepositoryReplaced(f"push {followed.last}, which was sent already, is gone")
    known = {*push.changesets, *push.obsolete}
    if followed.tip and known and followed.tip not in known:
        raise RepositoryReplaced(f"push {followed.last} was sent with changeset {followed.tip[:12]}, now it has others")
