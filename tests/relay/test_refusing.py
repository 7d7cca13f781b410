# SPDX-License-Identifier: GPL-2.0-or-later
"""`unavailable = refuse`: no push is accepted that the log cannot have."""

import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.log import Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.outbox.bundles import Bundle
from hgext.vcsreplicator.outbox.entry import Entry
from hgext.vcsreplicator.relay.fork import StateWatch
from hgext.vcsreplicator.relay.jobs import Job, RepositoryBusy, RepositoryJobs
from hgext.vcsreplicator.relay.loss import LossWatch
from hgext.vcsreplicator.relay.partitions import FRESH
from hgext.vcsreplicator.relay.sending import EventSender
from hgext.vcsreplicator.words.errors import Unavailable
from testing.builders.master.pushing import Master, events, running_relay
from testing.clock import HandClock
from testing.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

RECORDED = "remote: recorded push in replication log in "
REFUSED = "the replication log is not available, and this server refuses changes without it"


class Failing:
    """A log that takes no records while `full` is set, and does not even answer while `down` is."""

    def __init__(self, log: Log) -> None:
        self._log, self.down, self.full = log, threading.Event(), threading.Event()

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        if self.down.is_set() or self.full.is_set():
            raise Unavailable("the log takes nothing")
        return self._log.append(messages, timeout=timeout)

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        if self.down.is_set():
            raise Unavailable("the log is down")
        return self._log.ends(topic, partitions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@pytest.fixture
def master() -> Iterator[Master]:
    folder = Path(tempfile.mkdtemp(prefix="push-"))  # a socket's path may have 107 bytes
    yield Master(
        folder, f"relay = {folder}/relay.sock\nunavailable = refuse\nacknowledge-timeout = {PATIENCE}"
    ).set_up()
    shutil.rmtree(folder)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
        yield Failing(log)


def patience(master: Master, seconds: float) -> None:
    """From now on pushes wait so long for the relay."""
    master.configure(f"[vcsreplicator]\nacknowledge-timeout = {seconds}\n")


def check_refused(master: Master, name: str) -> None:
    """A push is refused, and the repository stays as it is."""
    before = master.operate("-R", str(master.root / name), "log", "-T", "{node}\n")
    assert REFUSED in master.push(name, check=False)
    assert master.operate("-R", str(master.root / name), "log", "-T", "{node}\n") == before
    assert not list((master.root / name / ".hg" / "store").glob("journal*"))


def test_a_push_is_accepted_while_the_log_answers(master: Master, log: Any) -> None:
    with running_relay(master.settings(), log):
        master.create("one")
        for text in "ab":
            master.commit("one", text)
            assert RECORDED in master.push("one")
    assert [event.seq for event in events(log)["one"]] == [1, 2, 3]


def test_a_push_is_refused_while_the_log_is_down_and_accepted_afterwards(master: Master, log: Any) -> None:
    with running_relay(master.settings(), log):
        master.create("one")
        master.commit("one", "a")
        log.down.set()
        patience(master, 0.5)
        check_refused(master, "one")
        log.down.clear()
        patience(master, PATIENCE)
        eventually(lambda: RECORDED in master.push("one", check=False), "the push is accepted")
    assert [event.seq for event in events(log)["one"]] == [1, 2]


def test_a_push_is_refused_without_a_relay(master: Master, log: Any) -> None:
    with running_relay(master.settings(), log):
        master.create("one")
    master.commit("one", "a")
    check_refused(master, "one")


def test_a_log_that_takes_nothing_is_noticed_by_the_second_push(master: Master, log: Any) -> None:
    with running_relay(master.settings(), log):
        master.create("one")
        log.full.set()
        patience(master, 0.5)
        master.commit("one", "a")
        assert "the push is kept and will be sent" in master.push("one")
        master.commit("one", "b")
        check_refused(master, "one")
        log.full.clear()
        patience(master, PATIENCE)
        eventually(lambda: RECORDED in master.push("one", check=False), "the push is accepted")
    assert [event.seq for event in events(log)["one"]] == [1, 2, 3]


def test_a_clone_into_a_root_is_refused_and_nothing_is_left(master: Master, log: Any) -> None:
    with running_relay(master.settings(), log):
        master.develop("init", str(master.folder / "clone-outside"))
        master.commit("outside", "a")
        log.down.set()
        patience(master, 0.5)
        words = ("clone", "-q", "--pull", str(master.folder / "clone-outside"), str(master.root / "copy"))
        assert REFUSED in master.operate(*words, check=False)
        assert not (master.root / "copy").exists()
        log.down.clear()
        patience(master, PATIENCE)
        eventually(lambda: not master.operate(*words, check=False), "it is accepted")
    assert [event.type for event in events(log)["copy"]] == ["created", "changed"]


def test_the_log_is_available_once_it_has_the_events_and_answers(master: Master, log: Any) -> None:
    said: list[str] = []
    clock = HandClock()
    watch, losses = StateWatch(log, stop := threading.Event()), LossWatch(log, lambda repository: None, clock)
    watch.start()
    sender = EventSender(log=log, source="hg://master", make_bundle=no_bundle, store_blob=None)
    jobs = RepositoryJobs(sender, MasterRepositories({str(master.root): ""}, "hg://master"), watch, losses)
    jobs.on_available = lambda folder, is_available: said.append(folder if is_available else "")
    check, folder = jobs.table()[Job.CHECK], str(master.root / "one")
    master.operate("init", folder)
    with pytest.raises(RepositoryBusy):
        check(folder)
    assert not said
    jobs.table()[Job.SEND](folder)
    log.down.set()
    with pytest.raises(Unavailable):
        check(folder)
    assert not said
    log.down.clear()
    clock.advance(FRESH)
    check(folder)
    assert said == [folder]
    stop.set()
    watch.close()


def no_bundle(folder: str, entry: Entry) -> Bundle:
    raise AssertionError("a creation has no changesets")


def test_an_administrator_may_accept_a_change_all_the_same(master: Master, log: Any) -> None:
    with running_relay(master.settings(), log):
        master.create("one")
        master.commit("one", "a")
        assert RECORDED in master.push("one")
        log.down.set()
        patience(master, 0.5)
        words = ("-R", str(master.root / "one"), "bookmark", "-r", "0", "mark")
        assert REFUSED in master.operate(*words, check=False)
        master.operate(*words, "--config", "vcsreplicator.unavailable=accept")
        log.down.clear()
        eventually(lambda: len(events(log)["one"]) == 3, "it is sent")
