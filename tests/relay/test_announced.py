# SPDX-License-Identifier: GPL-2.0-or-later
"""`acknowledge = mirrors`: a push waits until a state says that its notice is written."""

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log import EVENTS, STATE, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import state_of
from testing.builders.master.pushing import RECORDED, UNRELAYED, Master, events, new_master, running_relay
from testing.waiting import eventually

pytestmark = pytest.mark.processes

ANNOUNCED = re.compile(re.escape(RECORDED) + r"\d+\.\d{3}s\nremote: on all mirrors in \d+\.\d{3}s, announced\n")
LATE = re.compile(r"remote: not on all mirrors after \d+\.\ds: mirrors get it later, and it is announced then\n")
UNKNOWN = (
    "remote: not known whether it is on all mirrors: the relay does not say (it was stopped, or is an older one)\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
        yield log


@pytest.fixture
def master() -> Iterator[Master]:
    with new_master("acknowledge = mirrors", "acknowledge-timeout = 20") as master:
        yield master


def announce(log: Log, event: Event, served_by: int | None = None) -> None:
    """Write what the aggregator writes with the notice of an event."""
    state = state_of(event, released=event.seq, noticed=event.seq, served_by=served_by)
    log.append([NewRecord(topic=STATE, key=event.repository, value=to_json(state))])


def newest(log: Log, seq: int) -> Event:
    """The newest event of the repository, once it is this one."""
    found = eventually(lambda: [event for event in events(log).get("one", []) if event.seq == seq])
    return found[0]


@contextmanager
def pushing(master: Master) -> Iterator[Future[str]]:
    """A push of one changeset to a new repository, which goes on during the block; what the pusher reads."""
    master.create("one")
    master.commit("one", "a")
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(master.push, "one")


def test_a_pusher_reads_that_the_log_and_then_all_mirrors_have_it(master: Master, log: Log) -> None:
    with running_relay(master.settings(), log), pushing(master) as push:
        announce(log, newest(log, 2))
        assert ANNOUNCED.search(push.result())


@pytest.mark.parametrize(("mirrors", "told"), [(2, "on 2/2 mirrors in"), (0, "announced in")])
def test_a_pusher_reads_how_many_mirrors_the_notice_waited_for(
    master: Master, log: Log, mirrors: int, told: str
) -> None:
    with running_relay(master.settings(), log), pushing(master) as push:
        announce(log, newest(log, 2), mirrors)
        assert re.search(
            rf"remote: {told} \d+\.\d{{3}}s(, announced|: no mirror gates the repository)\n$", push.result()
        )


def test_a_push_that_waits_for_mirrors_holds_no_lock(master: Master, log: Log) -> None:
    with running_relay(master.settings(), log), pushing(master) as push:
        newest(log, 2)
        bookmark = ("-R", str(master.root / "one"), "bookmark", "-r", "0", "mark")
        master.operate(*bookmark, "--config", "ui.timeout=60", "--config", "vcsreplicator.acknowledge=log")
        assert not push.done()
        announce(log, newest(log, 3))
        assert ANNOUNCED.search(push.result())


def test_a_push_that_no_mirror_gets_in_time_succeeds(master: Master, log: Log) -> None:
    master.configure("[vcsreplicator]\nacknowledge-timeout = 2\n")
    with running_relay(master.settings(), log), pushing(master) as push:
        read = push.result()
        assert RECORDED in read
        assert LATE.search(read)


def test_a_creation_does_not_wait_for_mirrors(master: Master, log: Log) -> None:
    with running_relay(master.settings(), log):
        read = master.operate("init", str(master.root / "one"))
    assert re.fullmatch(r"\(recorded repository creation in replication log in \d+\.\d{3}s\)\n", read)


def test_a_push_without_a_relay_is_kept_and_asks_nothing_about_mirrors(master: Master) -> None:
    with pushing(master) as push:
        read = push.result()
    assert read.endswith(f"{UNRELAYED}\n")


def test_a_push_that_sends_its_events_itself_does_not_know_the_mirrors(
    master: Master, log: Log, tmp_path: Path
) -> None:
    master.configure(f"[vcsreplicator]\nlog = sqlite://{tmp_path}/log.db\n")
    with pushing(master) as push:
        read = push.result()
    assert RECORDED in read
    assert read.endswith(UNKNOWN)


def test_a_relay_that_stops_while_a_push_waits_for_mirrors_ends_the_wait(master: Master, log: Log) -> None:
    with ExitStack() as relay:
        relay.enter_context(running_relay(master.settings(), log))
        with pushing(master) as push:
            newest(log, 2)
            eventually(lambda: not master.outbox("one").has_unsent())
            relay.close()
            read = push.result()
    assert RECORDED in read
    assert read.endswith(UNKNOWN)


def test_a_push_whose_event_is_under_way_when_the_relay_stops_is_answered(
    master: Master, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, append = threading.Event(), threading.Event(), log.append

    def append_late(messages: Sequence[NewRecord], **options: Any) -> list[tuple[int, int]]:
        if messages[0].topic == EVENTS:
            begun.set()
            assert may_end.wait(60)
        return append(messages, **options)

    with ExitStack() as relay, ThreadPoolExecutor(2) as pool:
        relay.enter_context(running_relay(master.settings(), log))
        master.create("one")
        master.commit("one", "a")
        monkeypatch.setattr(log, "append", append_late)
        push = pool.submit(master.push, "one")
        assert begun.wait(60)
        end = pool.submit(relay.close)
        with pytest.raises(TimeoutError):
            push.result(1.0)
        may_end.set()
        assert RECORDED in push.result()
        end.result()


@contextmanager
def scripted_relay(path: str, answer: Callable[[dict[str, object]], dict[str, object] | None]) -> Iterator[None]:
    """A relay that answers each message as given and ends a conversation at None."""

    def converse(connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as lines:
            for line in lines:
                said = answer(json.loads(line))
                if said is None:
                    return
                if said:
                    lines.write(json.dumps(said).encode() + b"\n")
                    lines.flush()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            converse(connection)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            os.unlink(path)


def answer_as_before(message: dict[str, object]) -> dict[str, object] | None:
    """What a relay answers that knows nothing of mirrors."""
    if "repository" in message:
        return {}
    return {"sent": message["seq"]} if "seq" in message else None


def test_a_relay_without_a_question_about_mirrors_fails_no_push(master: Master) -> None:
    with scripted_relay(master.socket, answer_as_before), pushing(master) as push:
        read = push.result()
    assert RECORDED in read
    assert read.endswith(UNKNOWN)


def test_a_push_that_waits_only_for_the_log_asks_nothing_about_mirrors(master: Master) -> None:
    heard: list[dict[str, object]] = []

    def listen(message: dict[str, object]) -> dict[str, object] | None:
        heard.append(message)
        return answer_as_before(message)

    master.configure("[vcsreplicator]\nacknowledge = log\n")
    with scripted_relay(master.socket, listen), pushing(master) as push:
        read = push.result()
    assert re.search(re.escape(RECORDED) + r"\d+\.\d{3}s\n$", read)
    assert not [message for message in heard if "ask" in message]
