# SPDX-License-Identifier: GPL-2.0-or-later
"""Two masters: both write to one log, each below a wire prefix of its own, or a promotion replaced one of them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import EVENTS, SERVICES, Log, NewRecord, Record, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.relay.lacking import find_trouble
from hgext.vcsreplicator.relay.mastership import HANDED_OVER
from hgext.vcsreplicator.words.records import MASTER_KEY, MasterRecord
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.pushing import RECORDED, Master, events, new_master, running_relay, short_folder
from testing.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

NAMES = ("left", "right")


@pytest.fixture
def masters() -> Iterator[list[Master]]:
    """Two masters, the repositories of each below its name on the wire."""
    with short_folder() as folder:
        made = []
        for name in NAMES:
            master = Master(folder / name, f"relay = {folder}/{name}/relay.sock\nacknowledge-timeout = 60").set_up()
            hgrc = master.folder / "master.hgrc"
            hgrc.write_text(hgrc.read_text().replace(f"{master.root} = .", f"{master.root} = {name}"))
            made.append(master)
        yield made


def test_relays_of_two_masters_keep_order_and_send_again_what_was_lost(
    masters: list[Master],
) -> None:
    log = MemoryLog()
    log.create(topics(partitions=1))
    with ExitStack() as relays:
        for name, master in zip(NAMES, masters, strict=True):
            settings = replace(master.settings(), source=f"hg://{name}", roots={str(master.root): name})
            relays.enter_context(running_relay(settings, log))
        for text in ("a", "b"):
            for master in masters:
                if text == "a":
                    master.create("one")
                master.commit("one", text)
                master.push("one")
        sent = events(log)
        assert sorted(sent) == ["left/one", "right/one"]
        log.lose(EVENTS, 0, 4)
        eventually(lambda: events(log) == sent)
    assert [len(chain) for chain in sent.values()] == [3, 3]


def promote_another(log: Log, source: str = "hg://alpha", former: str = "hg://master") -> None:
    """What `vcsreplicator promote` on a mirror leaves in the log."""
    record = MasterRecord(source=source, mirror="alpha", replaces=(former,), time=1.0)
    log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(record))])


REPLACED = "hg://alpha is the master now"


def test_a_former_master_refuses_pushes_once_its_relay_reads_of_the_promotion() -> None:
    log = MemoryLog()
    log.create(topics())
    with new_master("acknowledge-timeout = 60") as master:
        with running_relay(master.settings(), log):
            master.create("one")
            master.commit("one", "a")
            promote_another(log)
            eventually(lambda: master.outbox("one").fork() is not None)
            said = master.push("one", check=False)
            assert REPLACED in said
            assert "(push to the new master)" in said, "an adoption would make a second master of it"
        master.operate("init", str(master.root / "two"))
        with running_relay(master.settings(), log):
            eventually(lambda: master.outbox("two").fork() is not None)
        trouble = find_trouble(str(master.root / "two"), master.outbox("two"), 0.0, "")
        assert trouble is not None
        assert "save what was not sent: vcsreplicator demote" in trouble.text
    assert [len(chain) for chain in events(log).values()] == [1]


class HangingLog(MemoryLog):
    """A relay hangs between its look who is the master and its append of an event, in which a mirror is promoted."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs, self._is_read = False, threading.Event()
        self.create(topics())

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        if self.hangs and messages[0].topic == EVENTS:
            self.hangs = False
            promote_another(self)
            assert self._is_read.wait(PATIENCE)
        return super().append(messages, timeout=timeout)

    def collect(
        self, positions: dict[tuple[str, int], int], active: Sequence[tuple[str, int]], limit: int
    ) -> list[Record]:
        end = self._ends.get((SERVICES, 0), 0)
        if not self.hangs and positions.get((SERVICES, 0)) == end and (SERVICES, 0, MASTER_KEY) in self._newest:
            self._is_read.set()  # the reader comes back for more
        return super().collect(positions, active, limit)


def test_what_a_former_master_sent_too_late_counts_as_unsent() -> None:
    log = HangingLog()
    with new_master("acknowledge-timeout = 3") as master:
        with running_relay(master.settings(), log):
            master.create("one")
            log.hangs = True
            master.commit("one", "a")
            master.push("one", check=False)
            eventually(lambda: master.outbox("one").fork() is not None)
        assert [place.entry.event.seq for place in master.outbox("one").unsent()] == [2]
    assert [len(chain) for chain in events(log).values()] == [2]


def test_a_master_accepts_pushes_again_once_the_log_says_that_it_goes_on() -> None:
    """An undo of its promotion was recorded for an instant, and refused because this master had sent an event."""
    log = MemoryLog()
    log.create(topics())
    with new_master("acknowledge-timeout = 60") as master, running_relay(master.settings(), log):
        for name in ("one", "two"):
            master.create(name)
        promote_another(log)
        eventually(lambda: all(master.outbox(name).fork() is not None for name in ("one", "two")))
        master.outbox("two").set_fork(HANDED_OVER)
        promote_another(log, "hg://master", "hg://alpha")
        eventually(lambda: master.outbox("one").fork() is None)
        master.commit("one", "a")
        assert RECORDED in master.push("one")
        assert master.outbox("two").fork() == HANDED_OVER, "an operator hands it over"


def test_a_push_that_sends_itself_finds_that_another_master_was_promoted(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/log.db"
    with open_log(url, creates=True) as log, short_folder() as folder:
        log.create(topics())
        master = Master(folder / "master", f"log = {url}").set_up()
        master.create("one")
        master.commit("one", "a")
        promote_another(log)
        assert f"the push is kept and is not sent: {REPLACED}" in master.push("one")
        master.commit("one", "b")
        assert f"refuses changes: {REPLACED}" in master.push("one", check=False)
        assert len(events(log)["one"]) == 1
