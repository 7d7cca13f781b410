# SPDX-License-Identifier: GPL-2.0-or-later
"""The numbers of repositories in hg-push messages, on a log in memory."""

import random
from collections.abc import Callable

import pytest

from hgext.vcsreplicator.log import NOTIFIER, Log, NewRecord, topics
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from notifier.destinations.hgpush.numbers import RepositoryNumbers
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import with_topics

Open = Callable[..., RepositoryNumbers]


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def numbers(log: MemoryLog) -> Open:
    with_topics(log)
    return lambda source="notifier", **former: RepositoryNumbers(source, log, former)


def test_numbers_survive_the_loss_of_the_notifiers_folder(numbers: Open) -> None:
    first = numbers()
    given = {name: first.number_of(name) for name in "abc"}
    assert given == {"a": 1, "b": 2, "c": 3}
    elsewhere = numbers()
    assert [elsewhere.number_of(name) for name in "cbad"] == [3, 2, 1, 4]


@pytest.mark.parametrize("seed", range(10))
def test_no_two_repositories_get_one_number_from_two_notifiers(numbers: Open, log: MemoryLog, seed: int) -> None:
    chance = random.Random(seed)
    notifiers, seen = [numbers(), numbers()], dict[str, set[int]]()
    for _ in range(200):
        log.fail_commits = [chance.random() < 0.5] if chance.random() < 0.2 else []
        name, place = str(chance.randrange(40)), chance.randrange(2)
        if chance.random() < 0.05:
            notifiers[place] = numbers()
        try:
            number = notifiers[place].number_of(name)
        except Unavailable:
            continue
        seen.setdefault(name, set()).add(number)
    assert all(len(each) == 1 for each in seen.values())
    assert len(set.union(*seen.values())) == len(seen) > 30


def test_no_number_is_given_behind_an_open_transaction(numbers: Open, log: MemoryLog) -> None:
    """The one that was given last may stand there, and would be given again."""
    given = numbers()
    log.undecided.add(NOTIFIER)
    with pytest.raises(Unavailable):
        given.number_of("a")
    log.undecided.clear()
    assert given.number_of("a") == 1


def test_a_known_number_asks_the_log_nothing(numbers: Open, log: MemoryLog) -> None:
    numbers().number_of("a")
    opened = numbers()
    log.leaderless.add((NOTIFIER, 0))
    assert opened.number_of("a") == 1
    with pytest.raises(Unavailable):
        opened.number_of("b")


def test_numbers_of_the_former_file_go_on_in_the_log(numbers: Open) -> None:
    assert numbers(a=7, b=3).number_of("c") == 8
    assert [numbers(a=7, b=3).number_of(name) for name in "abcd"] == [7, 3, 8, 9]
    assert [numbers().number_of(name) for name in "abcd"] == [7, 3, 8, 9]


@pytest.mark.parametrize("former", [{"a": 2}, {"c": 1}], ids=["another number", "another repository"])
def test_a_file_that_contradicts_the_log_is_refused(numbers: Open, former: dict[str, int]) -> None:
    numbers().number_of("a")
    with pytest.raises(BadConfig, match="set another `source`"):
        numbers(**former)
    assert numbers("other", **former).number_of("b") not in former.values()


@pytest.mark.parametrize("value", [b"", b"{", b'{"number":0}', b'{"number":"1"}', b'{"number":9007199254740993}'])
def test_a_number_that_cannot_be_read_stops_its_repository_alone(numbers: Open, log: Log, value: bytes) -> None:
    numbers().number_of("a")
    log.append([NewRecord(topic=NOTIFIER, key="number/notifier/b", value=value)])
    opened = numbers()
    assert [opened.number_of("a"), opened.number_of("c")] == [1, 2]
    with pytest.raises(Unavailable, match=r"^topic notifier, key number/notifier/b: "):
        opened.number_of("b")


def test_a_strangers_number_leaves_one_for_each_new_repository(numbers: Open, log: MemoryLog) -> None:
    for name, number in (("a", 7), ("false", 2**53), ("odd", 2**52)):
        log.append([NewRecord(topic=NOTIFIER, key=f"number/notifier/{name}", value=b'{"number":%d}' % number)])
    given = {name: numbers().number_of(name) for name in "bc"}
    assert given == {"b": 8, "c": 9}
    assert {name: numbers().number_of(name) for name in "bc"} == given


def test_without_its_topic_the_destination_says_what_is_missing(log: MemoryLog) -> None:
    log.create([each for each in topics() if each.name != NOTIFIER])
    with pytest.raises(BadConfig, match="topic notifier: does not exist"):
        RepositoryNumbers("notifier", log, {})
