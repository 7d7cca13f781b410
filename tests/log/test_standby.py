# SPDX-License-Identifier: GPL-2.0-or-later
"""Whose turn it is to work, as heartbeats and the processes of this machine say."""

import errno
import os
import subprocess
import sys

import pytest

from hgext.vcsreplicator.log import SERVICES, NewRecord, Record, standby, topics
from hgext.vcsreplicator.log.standby import Presence, Rival, Sign, StandbyReader, is_gone, name_process
from hgext.vcsreplicator.words.errors import Unavailable
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock
from testing.faults.system import System
from testing.waiting import eventually

# Processes of machines that are not this one.
ELSEWHERE, THIRD = (f"00000000-0000-0000-0000-000000000000/4026531836/{pid}/99" for pid in (17, 18))
PATIENCE = 10.0


class Following:
    """What a standby hears about the names `x` and `y`, on both of which another process worked."""

    def __init__(self) -> None:
        self.log, self.clock = MemoryLog(), HandClock()
        self.log.create(topics())
        rivals = {name: Rival(heard=0.0, instance=ELSEWHERE) for name in ("x", "y")}
        self.reader = StandbyReader(
            self.log,
            {(SERVICES, 0): 0},
            rivals,
            read_signs=self.read_signs,
            patience=PATIENCE,
            clock=self.clock,
        )

    def read_signs(self, record: Record) -> list[Sign]:
        works = (record.value or b"").decode().split()
        return [Sign(name, record.key, works=name in works) for name in ("x", "y")]

    def find_turns(self, after: float, **heard: str) -> list[str]:
        """What is to be taken over so many seconds later, once a process has said what it works on."""
        self.clock.advance(after)
        for names in heard.values():
            self.log.append([NewRecord(topic=SERVICES, key=ELSEWHERE, value=names.encode())])
        return self.reader.find_turns()


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> Following:
    monkeypatch.setattr("hgext.vcsreplicator.log.standby.POLL", 0.0)
    return Following()


def test_a_process_that_goes_on_with_one_of_two_leaves_the_other(following: Following) -> None:
    assert following.find_turns(1.0, says="x y") == []
    assert following.find_turns(1.0, says="y") == ["x"]
    assert following.find_turns(PATIENCE - 1.0) == []
    assert following.find_turns(1.0) == ["y"]


def test_a_process_that_never_worked_on_it_cannot_give_it_up(following: Following) -> None:
    following.log.append([NewRecord(topic=SERVICES, key=THIRD, value=b"")])
    assert following.find_turns(1.0) == []


def test_records_of_others_do_not_delay_a_turn(following: Following) -> None:
    following.log.append([NewRecord(topic=SERVICES, key=THIRD, value=b"")])
    assert following.find_turns(PATIENCE) == ["x", "y"]


def test_a_standby_hears_what_it_has_not_read_before_it_takes_over(following: Following) -> None:
    """As when the log shows the records late, or many came while this process was stopped."""
    following.clock.advance(PATIENCE)
    following.log.append([NewRecord(topic=SERVICES, key=f"{THIRD}{number}", value=b"") for number in range(600)])
    assert following.find_turns(0.0, says="x y") == []
    assert following.find_turns(0.0) == []
    assert following.find_turns(PATIENCE - 1.0) == []


def test_silence_while_the_log_is_away_does_not_count(following: Following) -> None:
    """Who works could not send a heartbeat either; the log answers again before anybody saw that it was away."""
    assert following.find_turns(0.6 * PATIENCE) == []
    following.log.before["ends"] = lambda *_: following.clock.advance(PATIENCE)
    assert following.find_turns(1.0) == []
    del following.log.before["ends"]
    assert following.find_turns(PATIENCE - 1.0) == []
    assert following.find_turns(1.0) == ["x", "y"]


def test_a_heartbeat_that_failed_is_sent_again_soon() -> None:
    log = MemoryLog()
    log.create(topics())
    log.before["append"] = lambda *_: log.before.pop("append") and unavailable()
    with Presence(log, "key", ELSEWHERE, HandClock()):
        eventually(lambda: log.records(SERVICES), "a report", timeout=5.0)


def unavailable() -> None:
    raise Unavailable("away")


@pytest.mark.processes
def test_a_process_is_gone_once_it_ended_and_not_before() -> None:
    script = "from hgext.vcsreplicator.log.standby import name_process; print(name_process(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        name = child.stdout.readline().strip()
        assert f"/{child.pid}/" in name
        assert not is_gone(name)
        child.communicate("\n")
    assert is_gone(name)
    assert not is_gone(name_process())
    assert not is_gone(ELSEWHERE)
    assert not is_gone(f"{name_process().partition('/')[0]}/1/{os.getpid()}/1"), "of another container"


def test_each_look_at_a_process_reads_of_that_process_alone(system: System) -> None:
    """A process that stands by looks each second: all else that it reads there is most of what it costs."""
    name, read = name_process(), list[str]()
    system.watch(read.append, "io.open")
    assert not is_gone(name)
    assert read == [f"/proc/{os.getpid()}/stat"]


def test_a_process_that_may_not_see_the_boot_has_a_name_all_the_same(system: System) -> None:
    seen = name_process()
    standby._read_space.cache_clear()
    system.refuse(errno.ENOENT, "io.open", at="/proc/*")
    assert name_process() != name_process()
    assert not is_gone(seen)
    assert not is_gone(name_process())
