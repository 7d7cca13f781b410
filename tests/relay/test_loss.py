# SPDX-License-Identifier: GPL-2.0-or-later
"""The log comes back without its newest records: what is still in the outboxes is sent again, without a new push."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.log import EVENTS, STATE, Log, NewRecord, Positions, partition_of, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.outbox import file as outbox_file
from hgext.vcsreplicator.relay import loss
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import some_state, state_of
from testing.builders.log.memorylog import MemoryLog, MemoryReader
from testing.builders.master.pushing import UNRELAYED, Master, events, new_master, running_relay
from testing.clock import HandClock
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = pytest.mark.processes

# Seconds between looks: as if the relay never looked again.
SELDOM = 3600.0


@pytest.fixture
def master() -> Iterator[Master]:
    with new_master("acknowledge-timeout = 60") as master:
        yield master


class File:
    """The embedded log's database, with the backup that `docs/log.md` tells operators to make."""

    def __init__(self, folder: Path) -> None:
        self.path, self._copy = folder / "log.db", folder / "copy.db"
        self.url = f"sqlite://{self.path}"

    def copy(self) -> None:
        source, target = sqlite3.connect(self.path), sqlite3.connect(self._copy)
        with target:
            source.backup(target)
        source.close()
        target.close()

    def restore(self) -> None:
        """Puts the copy where the log was, while others may have that open."""
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self._copy.rename(self.path)

    def expire(self, topic: str) -> None:
        """Retention removes all records that a topic has now."""
        database = sqlite3.connect(self.path)
        with database:
            streams = "SELECT s.id FROM streams s JOIN topics t ON s.topic = t.id WHERE t.name = ?"
            database.execute(f"DELETE FROM records WHERE stream IN ({streams})", (topic,))
            database.execute(f"UPDATE streams SET beginning = next WHERE id IN ({streams})", (topic,))
        database.close()


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


@pytest.fixture
def log(file: File) -> Iterator[Log]:
    with open_log(file.url, creates=True) as log:
        log.create(topics())
        yield log


def pushes(master: Master, name: str, texts: str) -> None:
    for text in texts:
        master.commit(name, text)
        assert "recorded push in replication log" in master.push(name)


def sequences(log: Log, name: str) -> list[int]:
    """Of the events in the log, first appearances in order; no gap, or it raises."""
    return [event.seq for event in events(log).get(name, [])]


def lost_while_stopped(master: Master, log: Log, file: File) -> None:
    """Two repositories with events 1 to 4 and 1 to 3, of which the log has lost all but 1 and 2 of the first."""
    with running_relay(master.settings(), log):
        master.create("one")
        pushes(master, "one", "a")
        file.copy()
        master.create("two")
        pushes(master, "two", "ab")
        pushes(master, "one", "bc")
    log.close()
    file.restore()
    assert [sequences(log, name) for name in ("one", "two")] == [[1, 2], []]


def test_what_a_restored_log_lacks_is_sent_when_the_relay_starts(master: Master, log: Log, file: File) -> None:
    lost_while_stopped(master, log, file)
    with running_relay(master.settings(scan=SELDOM), log):
        eventually(lambda: [sequences(log, name) for name in ("one", "two")] == [[1, 2, 3, 4], [1, 2, 3]])


def test_what_a_log_lacks_that_is_restored_under_a_running_relay_is_sent(master: Master, log: Log, file: File) -> None:
    with running_relay(master.settings(), log):
        master.create("one")
        pushes(master, "one", "a")
        file.copy()
        pushes(master, "one", "bc")
        file.restore()
        eventually(lambda: sequences(log, "one") == [1, 2, 3, 4])


def test_the_next_push_after_a_loss_stands_behind_what_was_lost(master: Master, log: Log, file: File) -> None:
    with running_relay(master.settings(scan=SELDOM), log):
        master.create("one")
        pushes(master, "one", "a")
        file.copy()
        pushes(master, "one", "bc")
        file.restore()
        pushes(master, "one", "d")
        assert sequences(log, "one") == [1, 2, 3, 4, 5]


def test_other_records_in_the_place_of_lost_ones_hide_no_loss(master: Master, log: Log, file: File) -> None:
    lost_while_stopped(master, log, file)
    log.append([NewRecord(topic="events", key="x", value=b"y", partition=p) for p in range(16) for _ in range(9)])
    with running_relay(master.settings(scan=SELDOM), log):
        for name, box in (("one", master.outbox("one")), ("two", master.outbox("two"))):
            eventually(lambda box=box: (sent := box.sent()) is not None and (sent.offset or 0) >= 9, name)
    assert set(ids(log)) >= {place.entry.event.id for place in master.outbox("one").kept()}


def ids(log: Log) -> list[str]:
    reader = log.reader({("events", partition): 0 for partition in range(16)})
    try:
        return [name for record in reader.poll(0.0, limit=10_000) if (name := record.headers.get("ce_id"))]
    finally:
        reader.close()


def without_place(master: Master) -> None:
    """The marker as a release before this one wrote it."""
    path = master.root / "one/.hg/store/outbox.sent"
    marker = json.loads(path.read_bytes())
    path.write_text(json.dumps({name: marker[name] for name in ("seq", "id", "segment", "end")}))


def test_a_marker_of_an_older_release_counts_as_far_as_it_was_read(master: Master, log: Log, file: File) -> None:
    lost_while_stopped(master, log, file)
    without_place(master)
    newest = master.outbox("one").newest()
    assert newest is not None
    with running_relay(master.settings(scan=SELDOM), log):
        eventually(lambda: sequences(log, "one") == [1, 2, 3, 4])
    without_place(master)
    log.append([NewRecord(topic=STATE, key=newest.repository, value=to_json(state_of(newest)))])
    before = log.ends("events")
    with running_relay(master.settings(), log):
        master.create("three")
        eventually(lambda: sequences(log, "three") == [1])
    assert sum(log.ends("events").values()) == sum(before.values()) + 1


def test_what_expired_unread_is_sent_when_the_relay_starts(master: Master, log: Log, file: File) -> None:
    with running_relay(master.settings(), log):
        for name in ("unread", "read", "unknown"):
            master.create(name)
            pushes(master, name, "a")
    for name, seen in (("unread", 0), ("read", 1)):
        event = list(master.outbox(name).kept())[seen].entry.event
        log.append([NewRecord(topic=STATE, key=event.repository, value=to_json(state_of(event)))])
    file.expire("events")
    assert events(log) == {}
    with running_relay(master.settings(), log):
        master.create("new")
        eventually(lambda: sequences(log, "new") == [1])
    assert [sequences(log, name) for name in ("unread", "read", "unknown")] == [[1, 2], [], []]


def test_an_adoption_of_an_expired_history_is_no_loss(master: Master, log: Log, file: File) -> None:
    with running_relay(master.settings(), log):
        master.create("one")
        pushes(master, "one", "a")
    box = master.outbox("one")
    seen = list(box.kept())[-1].entry.event
    log.append([NewRecord(topic=STATE, key=seen.repository, value=to_json(state_of(seen)))])
    file.expire("events")
    master.commit("one", "b")
    assert UNRELAYED in master.push("one")
    master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes")
    waiting = [place.entry.event.id for place in box.unsent()]
    with capture_logs() as lines, running_relay(master.settings(scan=SELDOM), log):
        eventually(lambda: not box.has_unsent())
    assert [event.id for event in events(log, repeats=True)["one"]] == waiting
    assert [line["event"] for line in lines if "the log lost" in line["event"]] == []


def test_what_the_outbox_keeps_no_more_is_named(master: Master, log: Log, file: File) -> None:
    lost_while_stopped(master, log, file)
    box = master.outbox("one")
    folder = master.root / "one/.hg/store"
    places = list(box.kept())
    content = (folder / "outbox.0001.log").read_bytes()
    (folder / "outbox.0002.log").write_bytes(content[places[2].end :])  # as if 1 to 3 had been pruned
    (folder / "outbox.0001.log").unlink()
    sent = json.loads((folder / "outbox.sent").read_bytes())
    (folder / "outbox.sent").write_text(
        json.dumps({**sent, "segment": 2, "end": (folder / "outbox.0002.log").stat().st_size})
    )
    with capture_logs() as lines, running_relay(master.settings(scan=SELDOM), log):
        said = eventually(lambda: [line for line in lines if line["log_level"] == "error"])
    assert [(line["path"], line["missing"]) for line in said] == [("one", "1 to 3")]
    newest = places[-1].entry.event
    assert (said[0]["repository"], said[0]["seq"], said[0]["event_id"]) == (newest.repository, 4, newest.id)
    assert "hg replicatesync" in str(said[0]["next_step"])
    assert master.outbox("one").sent().seq == 4  # type: ignore[union-attr]


def test_a_push_that_sends_itself_sends_what_a_restored_log_lacks(master: Master, log: Log, file: File) -> None:
    hgrc = master.folder / "master.hgrc"
    hgrc.write_text(hgrc.read_text().replace(f"relay = {master.socket}", f"log = {file.url}"))
    master.create("one")
    pushes(master, "one", "a")
    file.copy()
    pushes(master, "one", "bc")
    log.close()
    file.restore()
    pushes(master, "one", "d")
    assert sequences(log, "one") == [1, 2, 3, 4, 5]


MEDDLER = """
import os
from hgext.vcsreplicator.outbox import losses
ask = losses.has_lost
def ask_and_restore(log, *arguments):
    answer = ask(log, *arguments)
    if os.path.exists({copy!r}):
        for suffix in ("-wal", "-shm"):
            if os.path.exists({path!r} + suffix):
                os.unlink({path!r} + suffix)
        os.rename({copy!r}, {path!r})
    return answer
losses.has_lost = ask_and_restore
"""


def test_a_push_that_sends_itself_hides_no_loss_of_a_restored_log(master: Master, log: Log, file: File) -> None:
    hgrc = master.folder / "master.hgrc"
    hgrc.write_text(hgrc.read_text().replace(f"relay = {master.socket}", f"log = {file.url}"))
    master.create("one")
    pushes(master, "one", "a")
    file.copy()
    meddler = master.folder / "meddler.py"
    meddler.write_text(MEDDLER.format(copy=f"{file.path}.later", path=str(file.path)))
    pushes(master, "one", "bc")
    log.close()
    shutil.copy(file.path.with_name("copy.db"), f"{file.path}.later")
    usual = hgrc.read_text()
    hgrc.write_text(f"{usual}\n[extensions]\nmeddler = {meddler}\n")
    master.commit("one", "d")
    assert "the push is kept and will be sent" in master.push("one")
    assert not Path(f"{file.path}.later").exists()
    hgrc.write_text(usual)
    pushes(master, "one", "e")
    assert set(ids(log)) >= {place.entry.event.id for place in master.outbox("one").kept()}


def test_a_loss_sends_nothing_again_that_an_adoption_set_aside(master: Master, log: Log, file: File) -> None:
    with running_relay(master.settings(), log):
        master.create("one")
        pushes(master, "one", "a")
    shutil.copytree(master.root / "one", master.folder / "backup")
    with running_relay(master.settings(), log):
        pushes(master, "one", "b")
    shutil.rmtree(master.root / "one")
    (master.folder / "backup").rename(master.root / "one")
    master.develop("clone", "-q", str(master.root / "one"), str(master.folder / "clone-other"))
    (master.folder / "clone-other" / "file").write_text("c")
    master.develop("-R", str(master.folder / "clone-other"), "commit", "-q", "-A", "-m", "c")
    where = f"ssh://x/{master.root / 'one'}"
    box = master.outbox("one")
    hgrc = master.folder / "master.hgrc"
    hgrc.write_text(hgrc.read_text().replace("acknowledge-timeout = 60", "acknowledge-timeout = 0.1"))
    master.develop("-R", str(master.folder / "clone-other"), "push", where)  # kept, and another event 3
    aside = [place.entry.event.id for place in box.kept()][-1]
    box.set_fork(outbox_file.Fork(reason="the log has another event 3 of it"))
    file.copy()
    master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes")
    with running_relay(master.settings(), log):
        eventually(lambda: len(events(log)["one"]) == 4)
    log.close()
    file.restore()
    with running_relay(master.settings(scan=SELDOM), log):
        eventually(lambda: len(events(log)["one"]) == 4)
    assert aside not in ids(log)


@pytest.mark.parametrize("pushed_since", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_a_broker_with_older_data_lacks_is_sent(
    master: Master, own_service: Callable[[type[Kafka]], Kafka], pushed_since: int
) -> None:
    kafka = own_service(Kafka)
    with open_log(f"{kafka.url}?topic-prefix=push-") as log:
        log.create(topics(partitions=4))
        with running_relay(master.settings(scan=SELDOM if pushed_since else 0.3), log):
            master.create("one")
            pushes(master, "one", "a")
            kafka.copy()
            pushes(master, "one", "bc")
            kafka.restore()
            pushes(master, "one", "d" * pushed_since)
            eventually(lambda: sequences(log, "one") == [1, 2, 3, 4, 5][: 4 + pushed_since])


# The watch alone


class Interrupting(MemoryLog):
    """Calls `act` when a reader is opened: what others do while the relay looks at the log."""

    act: Callable[[], object] = staticmethod(lambda: None)

    def reader(self, positions: Mapping[tuple[str, int], int]) -> MemoryReader:
        self.act()
        return super().reader(positions)


@pytest.fixture
def watched() -> tuple[Interrupting, loss.LossWatch]:
    log = Interrupting()
    log.create(topics(partitions=1))
    return log, loss.LossWatch(log, lambda repository: None)


def sent(log: MemoryLog, watch: loss.LossWatch, name: str) -> None:
    """The relay sends an event of this repository."""
    eras = watch.eras()
    [(partition, offset)] = log.append([NewRecord(topic="events", key=name, value=b"", headers={"ce_id": name})])
    mark = outbox_file.SentMark(seq=1, id=name, segment=1, end=1, partition=partition, offset=offset)
    watch.confirm(f"/{name}", name, mark, eras)


def fill(log: MemoryLog, count: int) -> None:
    """Another master sends."""
    log.append([NewRecord(topic="events", key="other", value=b"") for _ in range(count)])


def test_a_loss_counts_though_the_relay_sent_more_while_it_looked(watched: tuple[Interrupting, loss.LossWatch]) -> None:
    log, watch = watched
    sent(log, watch, "one")
    log.lose("events", 0, 1)
    fill(log, 2)
    log.act = lambda: sent(log, watch, "two")
    watch.check_partitions()
    assert not watch.is_confirmed("/one", "one")


def test_what_was_sent_before_a_loss_was_found_is_not_confirmed_after_it(
    watched: tuple[Interrupting, loss.LossWatch],
) -> None:
    log, watch = watched
    sent(log, watch, "one")
    eras = watch.eras()
    log.lose("events", 0, 1)
    watch.check_partitions()
    mark = outbox_file.SentMark(seq=2, id="two", segment=1, end=1, partition=0, offset=9)
    watch.confirm("/two", "two", mark, eras)
    assert not watch.is_confirmed("/two", "two")
    assert watch.newest_places() == {}


def test_a_doubt_stays_until_its_check_ends_and_if_another_comes(
    watched: tuple[Interrupting, loss.LossWatch],
) -> None:
    log, watch = watched
    sent(log, watch, "one")
    meanwhile: list[bool] = []
    watch.doubt("/one")
    log.act = lambda: meanwhile.append(watch.partitions.is_doubted(0))
    watch.check_partitions()
    assert meanwhile == [True]
    assert not watch.partitions.is_doubted(0)
    watch.doubt("/one")
    log.act = lambda: watch.doubt("/one")
    watch.check_partitions()
    assert watch.partitions.is_doubted(0)


def test_a_check_that_the_log_does_not_answer_leaves_a_doubt(watched: tuple[Interrupting, loss.LossWatch]) -> None:
    log, watch = watched
    sent(log, watch, "one")

    def fail() -> None:
        raise Unavailable("away")

    log.act = fail
    with pytest.raises(Unavailable):
        watch.check_partitions()
    assert watch.partitions.is_doubted(0)
    assert watch.is_confirmed("/one", "one")


def test_the_newest_place_stays_the_newest_whichever_send_ends_first(
    watched: tuple[Interrupting, loss.LossWatch],
) -> None:
    log, watch = watched
    sent(log, watch, "one")
    sent(log, watch, "two")
    late = outbox_file.SentMark(seq=1, id="one", segment=1, end=1, partition=0, offset=0)
    watch.confirm("/one", "one", late, watch.eras())
    assert watch.newest_places()[0].offset == 1


def test_an_event_in_the_place_of_the_newest_known_shows_a_loss(
    watched: tuple[Interrupting, loss.LossWatch],
) -> None:
    log, watch = watched
    sent(log, watch, "one")
    before = watch.newest_places()
    watch.check_appended(0, 1, before)
    assert watch.is_confirmed("/one", "one")
    with pytest.raises(Unavailable):
        watch.check_appended(0, 0, before)
    assert not watch.is_confirmed("/one", "one")


def test_what_was_appended_while_a_loss_was_found_is_sent_again(watched: tuple[Interrupting, loss.LossWatch]) -> None:
    log, watch = watched
    sent(log, watch, "one")
    before = watch.newest_places()
    log.lose("events", 0, 1)
    watch.check_partitions()
    with pytest.raises(Unavailable):
        watch.check_appended(0, 5, before)


@pytest.mark.parametrize(("seen", "is_confirmed"), [("other", False), ("one", True), (None, True)])
def test_an_expired_event_is_looked_at_again_only_if_it_was_unread(seen: str | None, is_confirmed: bool) -> None:
    log = MemoryLog()
    log.create(topics(partitions=1))
    watch = loss.LossWatch(log, lambda repository: None if seen is None else some_state(event=seen))
    sent(log, watch, "one")
    log.expire("events", 0)
    sent(log, watch, "two")
    assert watch.is_confirmed("/one", "one"), "no round has seen it"
    watch.check_partitions()
    assert watch.is_confirmed("/one", "one") is is_confirmed
    assert watch.is_confirmed("/two", "two"), "it has not expired"


def test_a_loss_that_two_threads_find_counts_once(watched: tuple[Interrupting, loss.LossWatch]) -> None:
    log, watch = watched
    sent(log, watch, "one")
    before = watch.newest_places()
    for _ in range(2):
        with pytest.raises(Unavailable):
            watch.check_appended(0, 0, before)
    assert watch.eras() == {0: 1}


def test_a_partition_without_a_leader_hides_no_loss_in_another() -> None:
    log = MemoryLog()
    log.create(topics(partitions=3))
    watch = loss.LossWatch(log, lambda repository: None)
    names = {partition_of(name, 3): name for name in "abcdefgh"}
    for name in names.values():
        sent(log, watch, name)
    log.leaderless.add(("events", 0))
    log.lose("events", 1, 1)
    with pytest.raises(Unavailable):
        watch.check_partitions()
    assert [watch.is_confirmed(f"/{names[partition]}", names[partition]) for partition in (0, 1, 2)] == [
        True,
        False,
        True,
    ]
    assert [watch.partitions.is_doubted(partition) for partition in (0, 1, 2)] == [True, False, False]
    log.leaderless.clear()
    watch.check_partitions()
    assert not watch.partitions.is_doubted(0)


def test_partitions_behind_a_slow_one_are_checked_too() -> None:
    log, clock = MemoryLog(), HandClock()
    log.create(topics(partitions=3))
    watch = loss.LossWatch(log, lambda repository: None, clock)
    names = {partition_of(name, 3): name for name in "abcdefgh"}
    for partition in range(3):
        sent(log, watch, names[partition])
        watch.doubt(f"/{names[partition]}")

    def answer_slowly(positions: Positions) -> None:
        if {(EVENTS, 0), (EVENTS, 1)} & positions.keys():
            clock.advance(loss.CHECK)
            raise Unavailable("no answer")

    log.before["reader"] = answer_slowly
    for _ in range(3):
        with pytest.raises(Unavailable):
            watch.check_partitions()
    assert [watch.partitions.is_doubted(partition) for partition in range(3)] == [True, True, False]
