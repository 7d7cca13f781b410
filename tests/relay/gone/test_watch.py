# SPDX-License-Identifier: GPL-2.0-or-later
"""A relay that announces the deletion of what was removed by hand, and of nothing else."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log import EVENTS, SERVICES, STATE, NewRecord, topics
from hgext.vcsreplicator.outbox.entry import Entry, NewestEvent, before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay.fork import StateWatch
from hgext.vcsreplicator.relay.gone import watch
from hgext.vcsreplicator.relay.gone.watch import AT_ONCE, RETRY, GoneWatch
from hgext.vcsreplicator.relay.rounds import RelayRound
from hgext.vcsreplicator.relay.scan import find_repositories
from hgext.vcsreplicator.relay.settings import RelaySettings, Removed
from hgext.vcsreplicator.words import digest, wire
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.records import MASTER_KEY, MasterRecord
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import state_of
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.outboxes import Folder, Transaction, following
from testing.clock import HandClock
from testing.waiting import eventually

SOURCE = "hg://master"
DELAY = 3600.0


class Killed(BaseException):
    """The process ends here."""


class Host:
    """A master whose repositories the log knows, and its relay's watch, without a relay around it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.root, self.clock, self.log = folder / "repos", HandClock(), MemoryLog()
        self.log.create(topics(partitions=1))
        known = {"removed": Removed.ANNOUNCE, "removed_after": DELAY, **settings}
        self.settings = RelaySettings(socket="/s", source=SOURCE, roots={str(self.root): ""}, **known)
        self.states: StateWatch
        self.watch: GoneWatch
        self.stop = threading.Event()

    def create(self, path: str, **state: Any) -> list[Entry]:
        """Make a repository with two events, which the log and the aggregator have."""
        store = self.root / path / ".hg" / "store"
        store.mkdir(parents=True)
        (store.parent / "requires").write_text("store\n")
        entries = following(before_first_event(path, 1), 2)
        Outbox(Folder(str(store))).append(Transaction(), entries)
        for entry in entries:
            self.append(entry.event)
        last = entries[-1].event
        value = to_json(state_of(last, source=SOURCE, **state))
        self.log.append([NewRecord(topic=STATE, key=last.repository, value=value)])
        return entries

    def append(self, event: Event) -> None:
        headers = wire.headers(event, SOURCE)
        self.log.append([NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event), headers=headers)])

    def start(self) -> None:
        """Start the relay, also after a kill."""
        self.stop.set()
        self.stop = threading.Event()
        self.states = StateWatch(self.log, self.stop)
        self.states.start()
        self.watch = GoneWatch(self.settings, self.log, self.states, self.clock, self.stop)

    def look(self, *, is_shared: bool = False, unreadable: tuple[str, ...] = ()) -> list[str]:
        """Make a round, let it write what is due, and return the texts of the troubles."""
        found = RelayRound(folders=list(find_repositories(str(self.root))), unreadable=list(unreadable))
        troubles = self.watch.find(found, self.clock.now(), is_shared=is_shared)
        eventually(lambda: "relay-gone" not in {thread.name for thread in threading.enumerate()}, every=0.002)
        return [trouble.text for trouble in troubles]

    def wait(self) -> list[str]:
        """Look once more when the delay is over."""
        self.clock.advance(DELAY)
        return self.look()

    def remove(self, path: str) -> None:
        shutil.rmtree(self.root / path)

    def deletions(self) -> list[Event]:
        events = [wire.decode(record.value or b"").event for record in self.log.records(EVENTS)]
        return [event for event in events if event.type is Type.DELETED]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def make(*paths: str, **settings: Any) -> Host:
        """A host that has made one round over these repositories and one that stays."""
        hosts.append(host := Host(tmp_path, **settings))
        for path in ("stays", *paths):
            host.create(path)
        host.start()
        assert host.look() == []
        return host

    yield make
    for host in hosts:
        host.stop.set()


def test_a_repository_removed_by_hand_is_deleted_after_the_delay(make: Callable[..., Host]) -> None:
    host = make("team/one")
    last = next(iter(state for state in host.states.states().values() if state.path == "team/one"))
    host.remove("team")
    [text] = host.look()
    assert "put it back, or the relay announces its deletion after `removed-after` seconds; " in text
    host.clock.advance(DELAY - 1)
    host.look()
    assert host.deletions() == []
    host.clock.advance(1)
    host.look()
    [event] = host.deletions()
    assert (event.repository, event.seq, event.previous) == (last.repository, 3, last.event)
    assert event.digest == digest.advance(last.digest, event.type, event.changes)
    assert host.wait() == []
    assert len(host.deletions()) == 1


def test_a_repository_removed_during_a_round_is_deleted_after_the_delay(make: Callable[..., Host]) -> None:
    host = make("team/one")
    found = RelayRound(folders=list(find_repositories(str(host.root))))
    host.remove("team/one")
    assert host.watch.find(found, host.clock.now(), is_shared=False) == []
    host.look()
    host.wait()
    assert [event.path for event in host.deletions()] == ["team/one"]


def test_a_repository_whose_removal_takes_long_is_deleted_after_the_delay(make: Callable[..., Host]) -> None:
    host = make("team/one")
    folder = host.root / "team/one"
    (folder / ".hg").rename(folder / "hg")
    for _ in range(2):
        assert host.look(unreadable=(str(folder),)) == []
    host.remove("team/one")
    host.look()
    host.wait()
    assert [event.path for event in host.deletions()] == ["team/one"]


def test_no_path_of_a_removed_repository_adds_a_command_to_ours(make: Callable[..., Host]) -> None:
    host = make("x;reboot", removed=Removed.REPORT)
    host.remove("x;reboot")
    host.look()
    assert "vcsreplicator forget 'x;reboot' --yes; " in host.look()[0]


def test_a_relay_that_only_reports_never_deletes_what_was_removed(make: Callable[..., Host]) -> None:
    host = make("one", removed=Removed.REPORT)
    host.remove("one")
    host.look()
    [text] = host.wait()
    assert "put it back, or announce its deletion: vcsreplicator forget one --yes; " in text
    assert host.deletions() == []
    assert not (host.root / ".vcsreplicator").exists()


def test_a_former_master_deletes_nothing_that_is_removed_there(make: Callable[..., Host]) -> None:
    host = make("one")
    host.remove("one")
    host.look()
    record = MasterRecord(source="hg://alpha", mirror="alpha", replaces=(SOURCE,), time=1.0)
    host.log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(record))])
    host.wait()
    [text] = host.look()
    assert "keeps the relay from announcing its deletion: hg://alpha is the master now" in text
    assert host.deletions() == []


def test_a_restart_does_not_forget_that_a_repository_was_removed(make: Callable[..., Host]) -> None:
    host = make("one")
    host.remove("one")
    host.look()
    host.clock.advance(DELAY)
    host.start()
    host.look()
    assert host.deletions() == []
    host.wait()
    assert len(host.deletions()) == 1


@pytest.mark.parametrize("step", ["walk", "make_deletion", "refuse_present", "append_deletion", "sent"])
def test_a_relay_killed_at_any_step_writes_one_deletion_or_reports(
    make: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    host = make("one")
    host.remove("one")

    def die(*arguments: object, **keywords: object) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr(host.states if step == "sent" else watch, step, die)
        broken.setattr(threading, "excepthook", lambda arguments: None)
        try:
            host.look()
            host.wait()
        except Killed:
            assert step == "walk"
    host.start()
    host.look()
    host.wait()
    host.wait()
    assert len(host.deletions()) == (step != "walk")


def test_a_repository_moved_away_and_back_starts_its_delay_anew(make: Callable[..., Host]) -> None:
    host = make("one")
    away = (host.root / "one").rename(host.root.parent / "away")
    host.look()
    host.clock.advance(DELAY - 1)
    away.rename(host.root / "one")
    assert host.look() == []
    assert not any((host.root / ".vcsreplicator/removed").iterdir())
    host.remove("one")
    host.look()
    host.clock.advance(DELAY - 1)
    host.look()
    assert host.deletions() == []
    host.clock.advance(1)
    host.look()
    assert len(host.deletions()) == 1


def test_a_repository_replaced_by_another_at_its_path_is_not_deleted(make: Callable[..., Host]) -> None:
    host = make("one")
    host.remove("one")
    host.look()
    host.create("one")
    assert host.look() == []
    assert host.wait() == []
    assert host.deletions() == []


def test_a_repository_that_lies_elsewhere_below_the_root_is_not_deleted(make: Callable[..., Host]) -> None:
    host = make("one")
    (host.root / "one").rename(host.root / "two")
    host.look()
    host.wait()
    [text] = host.look()
    assert f"one: it was moved to {host.root}/two; run `hg replicaterename` in it" in text
    (host.root / "two").rename(host.root.parent / "archive")
    host.clock.advance(RETRY)
    host.look()
    assert len(host.deletions()) == 1


def test_a_repository_with_unread_events_is_not_deleted(make: Callable[..., Host]) -> None:
    host = make("one")
    newest = outbox_end(host, "one")
    host.append(following(newest, 1)[0].event)
    host.remove("one")
    host.look()
    host.wait()
    [text] = host.look()
    assert "one: the aggregator has not read all its events, or they fork" in text
    assert host.deletions() == []


def outbox_end(host: Host, path: str) -> NewestEvent:
    newest = Outbox(Folder(str(host.root / path / ".hg" / "store"))).newest()
    assert newest is not None
    return newest


def test_a_repository_whose_events_the_log_no_longer_has_can_be_deleted(make: Callable[..., Host]) -> None:
    host = make("one")
    newest = outbox_end(host, "one")
    host.log.expire(EVENTS, 0)
    host.remove("one")
    host.look()
    host.wait()
    [event] = host.deletions()
    assert (event.seq, event.previous) == (newest.seq + 1, newest.id)


def test_what_was_removed_while_the_relay_was_down_is_only_reported(make: Callable[..., Host]) -> None:
    host = make("one")
    host.remove("one")
    host.start()
    host.look()
    [text] = host.wait()
    assert "vcsreplicator forget one --yes" in text
    assert host.deletions() == []


def test_nothing_is_deleted_while_another_relay_has_the_same_source(make: Callable[..., Host]) -> None:
    host = make("one")
    host.remove("one")
    host.look()
    host.clock.advance(DELAY)
    host.look(is_shared=True)
    assert host.deletions() == []


def test_a_folder_that_took_the_place_of_a_mounted_one_deletes_nothing(make: Callable[..., Host]) -> None:
    """The mount point is not empty, so it does not look unmounted."""
    host = make("team/one", "team/two")
    (host.root / "team").rename(host.root.parent / "disk")
    (host.root / "team").mkdir()
    (host.root / "team" / "README").touch()
    assert len(host.look()) == 2
    host.wait()
    assert host.deletions() == []


def test_a_file_system_that_went_with_its_mount_point_deletes_nothing(make: Callable[..., Host]) -> None:
    """As an automounter's does."""
    host = make("team/one")
    for folder in ("team", "team/one"):
        device, inode = host.watch._seen[f"{host.root}/{folder}"]
        host.watch._seen[f"{host.root}/{folder}"] = device + 1, inode
    host.remove("team")
    host.look()
    host.wait()
    assert host.deletions() == []


def test_an_empty_root_deletes_nothing(make: Callable[..., Host]) -> None:
    host = make("one")
    disk = host.root.rename(host.root.parent / "disk")
    host.root.mkdir()
    assert "is its file system mounted?" in host.look()[0]
    host.wait()
    shutil.rmtree(disk / "one")
    host.root.rmdir()
    disk.rename(host.root)
    assert "vcsreplicator forget one --yes" in host.look()[0]
    host.wait()
    assert host.deletions() == []


def test_a_folder_that_cannot_be_read_deletes_nothing(make: Callable[..., Host]) -> None:
    host = make("one")
    host.remove("one")
    host.look(unreadable=(str(host.root),))
    host.clock.advance(DELAY)
    host.look(unreadable=(str(host.root),))
    assert host.deletions() == []


def test_many_repositories_gone_at_the_same_time_are_left_to_an_operator(make: Callable[..., Host]) -> None:
    """Also those that are left when the operator has decided about most of them."""
    names = [f"r{number}" for number in range(AT_ONCE + 1)]
    host = make(*names)
    for name in names:
        host.remove(name)
    assert len(host.look()) == len(names)
    host.wait()
    assert host.deletions() == []
    host.create(names[0])
    host.look()
    host.wait()
    assert host.deletions() == []


def test_a_name_from_the_log_that_is_no_identifier_makes_no_note(make: Callable[..., Host]) -> None:
    host = make("one")
    [state] = [state for state in host.states.states().values() if state.path == "one"]
    host.log.append([NewRecord(topic=STATE, key="../../../x", value=to_json(state))])
    eventually(lambda: len(host.states.states()) == 3)
    host.remove("one")
    assert len(host.look()) == 2
    assert not (host.root.parent / "x").exists()
