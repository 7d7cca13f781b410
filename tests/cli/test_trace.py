# SPDX-License-Identifier: GPL-2.0-or-later
"""`trace` finds a push by what people know of it, and follows one until it is delivered."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mercurial import ui as uimod

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.hg.bundles import make_bundle
from hgext.vcsreplicator.log import EVENTS, NOTICES, STATE, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Bookmark, Changes, Event, NodeSet, PushEntry, Type
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.shape import to_json
from pushlog import versions
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of

SHARED, BOOKED = "ab" * 20, "abcd" + "0" * 36


def changes(user: str, *heads: str, count: int = 1, bookmark: str | None = None) -> Changes:
    return Changes(
        added=NodeSet(count=count, sha256="0" * 64) if heads else None,
        heads_added=heads,
        bookmarks=(Bookmark(name=bookmark, node=BOOKED),) if bookmark else (),
        push=PushEntry(id=7, user=user, date=0),
    )


class History:
    """The events in a log: `put` adds one, and lets the aggregator know it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "x.toml"
        self.file.write_text(f'log = "sqlite://{folder}/log.db"\n')
        self.log: Log = open_log(f"sqlite://{folder}/log.db", creates=True)
        self.log.create(topics(partitions=2))
        self.chains: dict[str, Chain] = {}

    def put(self, path: str, made: Changes, *, at: float = 1_700_000_000.0, body: bytes = b"") -> Event:
        chain = self.chains.setdefault(path, Chain(path))
        event = chain.next(Type.CHANGED, changes=made, time=at)
        value = wire.encode(event, wire.inline(body) if body else None, body)
        self.log.append([NewRecord(topic=EVENTS, key=event.repository, value=value)])
        self.write(STATE, event, state_of(event))
        return event

    def write(self, topic: str, event: Event, value: object) -> None:
        self.log.append([NewRecord(topic=topic, key=event.repository, value=to_json(value))])

    def trace(self, *words: str) -> str:
        result = CliRunner().invoke(program, ["trace", *words, "--config", str(self.file)])
        return result.output if result.exception is None else f"{result.output}{result.exception}"


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History(tmp_path)
    made.put("integration/autoland", changes("dana@example.com", SHARED))
    made.put("mozilla-central", changes("sheriff@example.com", SHARED, "cd" * 20), at=1_700_100_000.0)
    made.put("mozilla-central", changes("Erin@example.com", bookmark="release/118"), at=1_700_200_000.0)
    return made


def test_a_changeset_in_one_push_is_traced_by_a_prefix(history: History) -> None:
    printed = history.trace("CDCDcd")
    assert printed.startswith("mozilla-central  event 1 (changed)")
    assert "committed on the master" in printed


def test_a_changeset_in_several_pushes_lists_them_the_newest_first(history: History) -> None:
    [heading, newest, oldest, hint] = history.trace("abababab").splitlines()
    assert heading.split() == ["when", "(UTC)", "changeset", "event", "user", "repository"]
    assert newest.split() == ["2023-11-16", "02:00", "abababababab", "1", "sheriff@example.com", "mozilla-central"]
    assert oldest.split()[-1] == "integration/autoland"
    assert hint == "follow one: vcsreplicator trace mozilla-central --event 1"
    assert len(json.loads(history.trace("abab", "--json"))) == 2


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (("--user", "DANA"), "integration/autoland  event 1"),
        (("--bookmark", "118"), "mozilla-central  event 2"),
        (("--repository", "autol"), "integration/autoland  event 1"),
        (("--since", "2023-11-17"), "mozilla-central  event 2"),
        (("mozilla-central", "--user", "sheriff"), "mozilla-central  event 1"),
        (("abab", "--user", "dana"), "integration/autoland  event 1"),
    ],
)
def test_a_push_is_found_by_what_is_known_of_it(history: History, words: tuple[str, ...], title: str) -> None:
    assert history.trace(*words).startswith(title)


def test_the_newest_pushes_are_listed_and_the_rest_is_named(history: History) -> None:
    printed = history.trace("--user", "@example", "--last", "2")
    assert "integration/autoland" not in printed
    assert "these are the newest 2" in printed


def test_a_repository_whose_name_is_a_hash_is_no_changeset(history: History) -> None:
    history.put("abab", changes("dana@example.com", "ef" * 20))
    assert history.trace("abab").startswith("abab  event 1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "expected a repository, a changeset, or one of"),
        (("--push", "3", "--user", "dana"), "need a repository, and no other condition"),
        (("x", "--event", "3", "--user", "dana"), "need a repository, and no other condition"),
        (("x", "--follow", "--json"), "either --follow or --json"),
        (("0123",), "changeset 0123: no push in the log matches; the log begins 20"),
        (("--user", "zoe"), "no push in the log matches"),
        (("mozilla-centrl",), "did you mean mozilla-central?"),
    ],
)
def test_a_push_that_is_not_found_is_a_line_with_the_next_step(
    history: History, words: tuple[str, ...], said: str
) -> None:
    assert said in history.trace(*words)


def test_a_changeset_inside_a_bundle_is_found_and_a_bad_bundle_hides_none(history: History, tmp_path: Path) -> None:
    versions.initialize()
    ui = uimod.ui.load()
    ui.setconfig(b"ui", b"username", b"dana")
    repository: Any = versions.factory.repository(ui, os.fsencode(tmp_path / "repository"), create=True)
    nodes = []
    for number in range(3):
        (tmp_path / "repository" / "file").write_text(str(number))
        with repository.wlock(), repository.dirstate.changing_files(repository):
            repository[None].add([b"file"])
        nodes.append(repository.commit(b"change").hex())
    body = b"".join(make_bundle(repository, 0, 3).pieces)
    history.put("broken", changes("dana@example.com", "ee" * 20, count=3), body=b"HG20\0\0\0\0\0\0\0\1")
    history.put("long", changes("dana@example.com", nodes[-1], count=3), body=body)
    assert history.trace(nodes[0][:12]).startswith("long  event 1")
    assert "not searched: bundles in the blob store" in history.trace("feedbeef0")


def test_a_followed_push_prints_each_step_once_until_it_is_delivered(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = history.put("followed", changes("dana@example.com", "ef" * 20), at=time.time())
    state = state_of(event)
    acts: list[Callable[[], None]] = [
        lambda: history.write(STATE, event, replace(state, released=1)),
        lambda: None,
        lambda: history.write(NOTICES, event, Notice(event=event, time=0.0, roster=1, acks=(), previous={})),
        lambda: history.write(STATE, event, replace(state, released=1, noticed=1)),
    ]
    history.log.acknowledge("notifier-lines", NOTICES, {0: 0})
    acts.append(lambda: history.log.acknowledge("notifier-lines", NOTICES, {0: 1}))
    monkeypatch.setattr(time, "sleep", lambda _: acts.pop(0)())
    lines = history.trace("followed", "--follow").splitlines()
    assert not acts
    wanted = ["followed  event 1", "committed", "in the log", "released", "notice written"]
    assert [word in line for word, line in zip(wanted, lines, strict=False)] == [True] * 5, lines
    assert [line for line in lines if line.startswith("lines: ")] == ["lines: not yet delivered", "lines: passed"]
    assert len(lines) == 7
