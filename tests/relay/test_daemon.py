# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes and the relay: what a pusher hears, what waits, what is repeated, and who is stopped."""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time

import pytest

from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.log import EVENTS, STATE, NewRecord, topics
from hgext.vcsreplicator.log.blobs import open_blobs
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.outbox.bundles import ChangesetsGone
from hgext.vcsreplicator.outbox.file import Fork
from hgext.vcsreplicator.relay import daemon, work
from hgext.vcsreplicator.relay.sending import EventSender
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from hgext.vcsreplicator.words.event import replaced_incarnations
from hgext.vcsreplicator.words.shape import to_json
from hgext.vcsreplicator.words.wire import BundlePlace, decode
from testing.builders.aggregator.states import state_of
from testing.builders.master.pushing import HG, KEPT, RECORDED, UNRELAYED, events, new_master, running_relay
from testing.metrics import value_of
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def log(tmp_path):
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
        yield log


@pytest.fixture
def master():
    with new_master("acknowledge-timeout = 20") as master:
        yield master


class Failing:
    """A log whose appends fail as long as `down` says so; everything else is the real one."""

    def __init__(self, log):
        self._log, self.down, self.tried = log, threading.Event(), threading.Event()

    def append(self, messages, *, timeout=30.0):
        self.tried.set()
        if self.down.is_set():
            raise Unavailable("the log is down")
        return self._log.append(messages, timeout=timeout)

    def __getattr__(self, name):
        return getattr(self._log, name)


def test_a_pusher_hears_when_the_log_has_the_push(master, log):
    with running_relay(master.settings(), log):
        master.create("one")
        master.commit("one", "a")
        assert RECORDED in master.push("one")
    assert [event.seq for event in events(log)["one"]] == [1, 2]


def test_a_push_without_a_relay_is_kept_and_sent_when_one_comes(master, log):
    master.create("one")
    master.commit("one", "a")
    assert UNRELAYED in master.push("one")
    assert events(log) == {}
    with running_relay(master.settings(), log):
        eventually(lambda: not master.outbox("one").has_unsent())
    assert [event.seq for event in events(log)["one"]] == [1, 2]


def test_a_push_whose_socket_leads_nowhere_reads_that_no_relay_is_there(master, log):
    with running_relay(master.settings(), log):
        master.create("one")
        master.configure(f"[vcsreplicator]\nrelay = {master.folder}/elsewhere.sock\n")
        master.commit("one", "a")
        assert UNRELAYED in master.push("one")
        eventually(lambda: not master.outbox("one").has_unsent())


def test_a_push_while_the_log_is_down_is_sent_in_order_afterwards(master, log):
    failing = Failing(log)
    with running_relay(master.settings(), failing):
        master.create("one")
        failing.down.set()
        master.configure("[vcsreplicator]\nacknowledge-timeout = 0.5\n")
        for text in "abc":
            master.commit("one", text)
            assert KEPT in master.push("one")
        failing.down.clear()
        eventually(lambda: not master.outbox("one").has_unsent())
    assert [event.seq for event in events(log, repeats=True)["one"]] == [1, 2, 3, 4]


def test_a_repository_moved_away_during_an_outage_is_not_tried_for_ever(master, log):
    failing = Failing(log)
    master.configure("[vcsreplicator]\nacknowledge-timeout = 0.5\n")
    with running_relay(master.settings(), failing):
        master.create("one")
        failing.down.set()
        master.operate("-R", str(master.root / "one"), "replicatedelete", "--yes")
        failing.down.clear()
        eventually(lambda: [event.type for event in events(log).get("one", [])] == ["created", "deleted"])
        eventually(lambda: value_of(work.WAITING) == 0)


def test_a_pusher_need_not_wait(master, log):
    master.configure("[vcsreplicator]\nacknowledge = outbox\n")
    with running_relay(master.settings(), log):
        master.create("one")
        master.commit("one", "a")
        assert "recorded push in outbox; it will be sent to the replication log" in master.push("one")
        eventually(lambda: not master.outbox("one").has_unsent())


def test_the_rest_of_a_half_removed_repository_goes(master, log):
    deleted = master.root / ".vcsreplicator/deleted"
    for rest in ("one/.hg/store/data/file.i", "two/.hg/hgrc"):
        (deleted / rest).parent.mkdir(parents=True)
        (deleted / rest).touch()
    with running_relay(master.settings(), log):
        eventually(lambda: not list(deleted.iterdir()))


def test_a_deleted_repository_that_cannot_be_read_stops_nobody(master, log):
    master.develop("init", str(master.root / ".vcsreplicator/deleted/gone"))
    (master.root / ".vcsreplicator/deleted/gone/.hg/store/outbox.sent").mkdir()
    master.create("one")
    with running_relay(master.settings(), log):
        master.commit("one", "a")
        assert RECORDED in master.push("one")


def test_a_relay_killed_before_it_marked_what_it_sent_sends_it_again(master, log):
    master.create("one")
    with running_relay(master.settings(), log):
        eventually(lambda: not master.outbox("one").has_unsent())
    (master.root / "one/.hg/store/outbox.sent").unlink()
    with running_relay(master.settings(), log):
        eventually(lambda: not master.outbox("one").has_unsent())
    first, second = events(log, repeats=True)["one"]
    assert first == second


def test_a_repository_that_nobody_announced_is_announced(master, log):
    master.develop("init", str(master.root / "old"))
    os.utime(master.root / "old/.hg/requires", (0, 0))
    with running_relay(master.settings(), log):
        eventually(lambda: "old" in events(log))
    assert events(log)["old"][0].detail == {"origin": "adopted"}


def test_only_one_relay_has_a_socket(master, log):
    port = MasterRepositories(master.settings().roots, master.settings().source)
    with running_relay(master.settings(), log), pytest.raises(BadConfig, match="another relay is running"):
        daemon.run(master.settings(), log, port, stop=threading.Event(), ready=lambda: None)


def test_a_slow_repository_holds_up_no_other(master, log):
    class Slow(Failing):
        def append(self, messages, *, timeout=30.0):
            if decode(messages[0].value).event.path == "slow":
                self.tried.set()
                self.down.wait(60)
            return self._log.append(messages, timeout=timeout)

    slow = Slow(log)
    for name in ("slow", "quick"):
        master.create(name)
        master.commit(name, "a")
    with running_relay(master.settings(), slow):
        assert slow.tried.wait(60)
        assert RECORDED in master.push("quick")
        assert "slow" not in events(log)
        slow.down.set()
        eventually(lambda: not master.outbox("slow").has_unsent())


def test_a_bundle_that_no_record_holds_goes_to_the_blob_store(master, log, tmp_path):
    url = f"file://{tmp_path}/blobs"
    with running_relay(master.settings(blobs=url), log):
        master.create("one")
        (master.folder / "clone-one/big").write_bytes(os.urandom(600_000))
        master.commit("one", "a")
        assert RECORDED in master.push("one")
    attachment = last_frame(log).header.attachment
    assert attachment.where is BundlePlace.BLOB
    with open_blobs(url).open(attachment) as bundle:
        assert bundle.read(4) == b"HG20"
    assert open_blobs(url).remove_older(time.time() - 3600) == 0
    assert open_blobs(url).remove_older(time.time() + 3600) == 1
    with pytest.raises(FileNotFoundError):
        open_blobs(url).open(attachment)


def test_a_large_push_waits_for_the_blob_store_and_no_other_push_does(log, tmp_path):
    url = f"file://{tmp_path}/blobs"
    (tmp_path / "blobs").touch()
    with new_master("acknowledge-timeout = 0.5") as master, running_relay(master.settings(blobs=url), log):
        for name in ("one", "two"):
            master.create(name)
        (master.folder / "clone-one/big").write_bytes(os.urandom(600_000))
        master.commit("one", "a")
        assert RECORDED not in master.push("one")
        master.commit("two", "a")
        master.push("two")
        eventually(lambda: not master.outbox("two").has_unsent())
        assert master.outbox("one").has_unsent()
        (tmp_path / "blobs").unlink()
        eventually(lambda: not master.outbox("one").has_unsent())
    attachments = [frame.header.attachment for frame in frames(log) if frame.header.attachment is not None]
    [attachment] = [each for each in attachments if each.where is BundlePlace.BLOB]
    with open_blobs(url).open(attachment) as bundle:
        assert bundle.read(4) == b"HG20"


def test_a_store_that_does_not_let_old_blobs_go_stops_nobody(master, log, tmp_path, system):
    (old := tmp_path / "blobs" / "aa" / ("a" * 64 + ".hg")).parent.mkdir(parents=True)
    old.touch()
    os.utime(old, (0, 0))
    fault = system.refuse(errno.EACCES, "os.unlink", at=str(old))
    master.create("one")
    with running_relay(master.settings(blobs=f"file://{tmp_path}/blobs"), log):
        eventually(lambda: fault.paths, "a removal", timeout=60)
        master.commit("one", "a")
        assert RECORDED in master.push("one")


def test_a_bundle_too_large_for_a_mirror_unpacked_is_a_blob(master, log, tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "UNPACKED_LIMIT", 50_000)
    settings = master.settings(blobs=f"file://{tmp_path}/blobs")
    with running_relay(settings, log):
        master.create("one")
        (master.folder / "clone-one/big").write_text("a" * 60_000)
        master.commit("one", "a")
        assert RECORDED in master.push("one")
    assert last_frame(log).header.attachment.where is BundlePlace.BLOB
    assert last_frame(log).header.attachment.size < 10_000
    (master.folder / "clone-one/big").write_text("b" * 60_000)
    master.commit("one", "b")
    assert UNRELAYED in master.push("one")
    master.operate("-R", str(master.root / "one"), "strip", "-q", "--no-backup", "1")
    with running_relay(settings, log):
        eventually(lambda: not master.outbox("one").has_unsent())
    kept = next(frame for frame in frames(log) if frame.event.seq == 3)
    assert kept.header.attachment.where is BundlePlace.BLOB


def test_a_strip_waits_for_the_bundle_that_is_being_made(master, log):
    master.create("one")
    master.commit("one", "a")
    master.push("one")
    going, stripped = [], threading.Event()

    def strip():
        master.operate("-R", str(master.root / "one"), "strip", "-q", "--no-backup", "0")
        stripped.set()

    with master.outbox("one").sending(wait=True):
        going.append(threading.Thread(target=strip))
        going[0].start()
        eventually(lambda: (master.root / "one/.hg/store/lock").is_symlink())
        assert not stripped.wait(1.0)
        assert len(master.operate("-R", str(master.root / "one"), "log", "-T", "x")) == 1
    going[0].join()
    assert master.operate("-R", str(master.root / "one"), "log", "-T", "x") == ""


def test_files_beside_the_outbox_are_for_all_who_may_write_there(master, log):
    master.create("one")
    store = master.root / "one/.hg/store"
    store.chmod(0o2775)
    before = os.umask(0o077)
    try:
        with running_relay(master.settings(), log):
            eventually(lambda: not master.outbox("one").has_unsent())
            master.outbox("one").set_fork(Fork(reason="to see its mode"))
    finally:
        os.umask(before)
    modes = {
        name: stat.S_IMODE((store / name).stat().st_mode) for name in ("outbox.lock", "outbox.sent", "outbox.fork")
    }
    assert set(modes.values()) == {0o664}


def frames(log):
    reader = log.reader({(EVENTS, partition): 0 for partition in range(log.partitions(EVENTS))})
    found = [decode(record.value) for record in reader.poll(1.0)]
    reader.close()
    return found


def last_frame(log):
    return max(frames(log), key=lambda frame: frame.event.seq)


def test_a_second_strip_while_the_log_is_away_is_as_good_as_the_first(master, log):
    master.create("one")
    for text in ("a", "b"):
        master.commit("one", text)
        master.push("one")
    for revision in ("1", "0"):
        master.operate("-R", str(master.root / "one"), "strip", "-q", "--no-backup", revision)
    with running_relay(master.settings(), log):
        eventually(lambda: not master.outbox("one").has_unsent())
    kinds = [event.type.value for event in events(log)["one"]]
    assert kinds == ["created", "changed", "changed", "stripped", "stripped"]
    reader = log.reader({(EVENTS, partition): 0 for partition in range(log.partitions(EVENTS))})
    assert [decode(record.value).header.attachment.where for record in reader.poll(1.0)[1:3]] == [
        BundlePlace.INLINE
    ] * 2
    reader.close()


def test_bundles_of_unsent_events_survive_a_strip(master, log):
    master.create("one")
    master.commit("one", "a")
    master.push("one")
    master.operate("-R", str(master.root / "one"), "strip", "-q", "--no-backup", "0")
    with running_relay(master.settings(), log):
        eventually(lambda: not master.outbox("one").has_unsent())
    assert [event.type.value for event in events(log)["one"]] == ["created", "changed", "stripped"]
    reader = log.reader({(EVENTS, partition): 0 for partition in range(log.partitions(EVENTS))})
    assert [decode(record.value).header.attachment.where for record in reader.poll(1.0)[1:2]] == [BundlePlace.INLINE]
    reader.close()
    assert not list((master.root / "one/.hg/store").glob("outbox-*"))


def test_changesets_that_are_gone_are_left_to_the_master(master, log):
    master.create("one")
    master.commit("one", "a")
    master.push("one")

    def make_bundle(folder, entry):
        raise ChangesetsGone("stripped")

    box = master.outbox("one")
    with box.sending(wait=True):
        sender = EventSender(log=log, source="hg://master", make_bundle=make_bundle, store_blob=None)
        assert sender.send("one", box) == 2
    assert last_frame(log).header.attachment.where is BundlePlace.MASTER


def noticed(event, **changed):
    """The state once the notice of this event is written."""
    return state_of(event, **{"released": event.seq, "noticed": event.seq, **changed})


def test_a_restored_master_is_stopped_until_an_operator_adopts_it(master, log):
    master.create("one")
    shutil.copytree(master.root / "one", master.folder / "backup")
    with running_relay(master.settings(), log):
        for text in "ab":
            master.commit("one", text)
            master.push("one")
    newest = events(log)["one"][-1]
    log.append([NewRecord(topic=STATE, key=newest.repository, value=to_json(noticed(newest)))])
    shutil.rmtree(master.root / "one")
    shutil.copytree(master.folder / "backup", master.root / "one")
    with running_relay(master.settings(), log):
        eventually(lambda: master.outbox("one").fork() is not None)
        refused = master.push("one", check=False)
        assert "this repository refuses changes: the log has its event 3" in refused
        assert len(events(log)["one"]) == 3
        print(master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes"))
        assert RECORDED in master.push("one")
    adopted, pushed = events(log)["one"][3:]
    assert adopted.detail["replaces"] == newest.incarnation != adopted.incarnation
    assert (adopted.seq, pushed.seq, pushed.changes.added.count) == (1, 2, 2)


def test_a_repository_without_its_outbox_refuses_until_it_is_adopted(master, log):
    master.create("one")
    with running_relay(master.settings(), log):
        master.commit("one", "a")
        master.push("one")
        eventually(lambda: not master.outbox("one").has_unsent())
        (master.root / "one/.hg/store/outbox.0001.log").unlink()
        eventually(lambda: master.outbox("one").fork() is not None)
        master.commit("one", "b")
        assert "this repository refuses changes: the log has its event 2" in master.push("one", check=False)
        master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes")
        assert RECORDED in master.push("one")
    [former, latter] = {event.repository: event.path for event in events(log)["one"]}
    assert former != latter


@pytest.mark.parametrize("left", [None, b""])
def test_a_push_before_the_relay_looked_begins_no_history_anew(master, log, left):
    master.create("one")
    with running_relay(master.settings(), log):
        master.commit("one", "a")
        master.push("one")
        eventually(lambda: not master.outbox("one").has_unsent())
    outbox = master.root / "one/.hg/store/outbox.0001.log"
    outbox.unlink()
    if left is not None:
        outbox.write_bytes(left)
    master.commit("one", "b")
    assert "this repository refuses changes: the log has its event 2" in master.push("one", check=False)
    assert master.outbox("one").newest() is None
    master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes")
    assert UNRELAYED in master.push("one")


def test_a_master_restored_from_before_an_adoption_can_be_adopted_again(master, log):
    master.create("one")
    master.commit("one", "a")
    adopt = "-R", str(master.root / "one"), "replicateadopt", "--yes"
    with running_relay(master.settings(), log):
        master.push("one")
        shutil.copytree(master.root / "one", master.folder / "backup")
        master.operate(*adopt)
        eventually(lambda: not master.outbox("one").has_unsent())
    created, _, first = events(log)["one"]
    log.append([NewRecord(topic=STATE, key=first.repository, value=to_json(noticed(first)))])
    shutil.rmtree(master.root / "one")
    shutil.copytree(master.folder / "backup", master.root / "one")
    with running_relay(master.settings(), log):
        eventually(lambda: master.outbox("one").fork() is not None)
        master.operate(*adopt)
        master.commit("one", "b")
        assert RECORDED in master.push("one")
    second = events(log)["one"][3]
    assert replaced_incarnations(second) == (created.incarnation, first.incarnation)


def test_what_was_not_sent_is_told_before_a_repository_is_adopted(master, log):
    master.create("one")
    master.commit("one", "a")
    master.push("one")
    master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes")
    with running_relay(master.settings(), log):
        eventually(lambda: not master.outbox("one").has_unsent())
    created, pushed, adopted = events(log)["one"]
    assert pushed.changes.push.id == 1
    assert (adopted.detail["replaces"], adopted.seq) == (created.incarnation, 1)


def test_an_adoption_names_what_all_adoptions_before_it_replaced(master, log):
    master.create("one")
    for text in "ab":
        master.commit("one", text)
        master.push("one")
        master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes")
    with running_relay(master.settings(), log):
        eventually(lambda: not master.outbox("one").has_unsent())
    created, _, first, _, second = events(log)["one"]
    assert replaced_incarnations(first) == (created.incarnation,)
    assert replaced_incarnations(second) == (first.incarnation, created.incarnation)


def without_relay(master, url):
    hgrc = master.folder / "master.hgrc"
    hgrc.write_text(re.sub(r"(?m)^(relay|log) = .*", f"log = {url}", hgrc.read_text()))


@pytest.mark.parametrize("relaying", [True, False])
def test_a_push_to_a_restored_outbox_is_never_called_recorded(master, log, tmp_path, relaying):
    master.configure(f"[vcsreplicator]\nlog = sqlite://{tmp_path}/log.db\n")
    master.create("one")
    outbox = master.root / "one/.hg/store/outbox.0001.log"
    for text in "ab":
        before = outbox.read_bytes()
        master.commit("one", text)
        assert RECORDED in master.push("one")
    outbox.write_bytes(before)
    master.commit("one", "c")
    with running_relay(master.settings(), log) if relaying else contextlib.nullcontext():
        assert "the log has its event 3, which is not in the outbox" in master.push("one", check=False)
        master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes")
        master.push("one", check=False)
        master.commit("one", "d")
        assert RECORDED in master.push("one")
    sent = events(log)["one"]
    assert [event.seq for event in sent if event.incarnation != sent[-1].incarnation] == [1, 2, 3]


def test_without_a_relay_the_next_push_tells_of_a_deletion(master, log, tmp_path):
    without_relay(master, f"sqlite://{tmp_path}/not-there/log.db")
    master.create("one")
    master.operate("-R", str(master.root / "one"), "replicatedelete", "--yes")
    assert events(log) == {}
    without_relay(master, f"sqlite://{tmp_path}/log.db")
    master.create("two")
    assert [event.type.value for event in events(log)["one"]] == ["created", "deleted"]
    assert not list((master.root / ".vcsreplicator/deleted").iterdir())


def test_without_a_relay_a_restored_master_is_stopped_at_its_next_push(master, log, tmp_path):
    without_relay(master, f"sqlite://{tmp_path}/log.db")
    master.create("one")
    shutil.copytree(master.root / "one", master.folder / "backup")
    master.commit("one", "a")
    assert RECORDED in master.push("one")
    newest = events(log)["one"][-1]
    log.append([NewRecord(topic=STATE, key=newest.repository, value=to_json(noticed(newest)))])
    shutil.rmtree(master.root / "one")
    shutil.copytree(master.folder / "backup", master.root / "one")
    assert "remote: the push is kept and is not sent: the log has another event 2 of it" in master.push("one")
    assert len(events(log, repeats=True)["one"]) == 2
    master.commit("one", "b")
    assert "this repository refuses changes" in master.push("one", check=False)
    master.operate("-R", str(master.root / "one"), "replicateadopt", "--yes")
    assert RECORDED in master.push("one")


def test_a_pusher_killed_in_its_transaction_is_cleaned_up_after_at_once(master, log):
    with running_relay(master.settings(scan=3600), log):
        master.create("one")
        master.commit("one", "a")
        hook = f"hooks.pretxnclose.die=python:{master.folder}/die.py:die"
        (master.folder / "die.py").write_text(
            "import os, signal\ndef die(*a, **k):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        where = str(master.root / "one")
        code = subprocess.run(
            [HG, "-R", f"{master.folder}/clone-one", "push", where, "--config", hook],
            env={**os.environ, "HGRCPATH": f"{master.folder}/master.hgrc"},
            check=False,
        ).returncode
        assert code == -signal.SIGKILL
        eventually(lambda: not (master.root / "one/.hg/store/journal").exists())
        assert RECORDED in master.push("one")


@pytest.mark.parametrize(
    "said",
    [
        b"hello\n",
        b'{"seq": 1}\n',
        b'{"repository": "/etc"}\n',
        b'{"repository": 3}\n',
        b"x" * 9000,
        b"[" * 8000 + b"\n",
    ],
)
def test_a_peer_that_talks_nonsense_is_hung_up_on(master, log, said):
    with running_relay(master.settings(), log):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(60)
            peer.connect(master.socket)
            peer.sendall(said)
            try:
                assert peer.recv(100) == b""
            except ConnectionResetError:
                pass
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(60)
            peer.connect(master.socket)
            master.create("one")
            peer.sendall(json.dumps({"repository": str(master.root / "one")}).encode() + b'\n{"seq": 1}\n')
            assert json.loads(peer.recv(100)) == {"sent": 1}


def test_segments_are_rotated_and_what_the_log_has_is_removed(master, log):
    master.create("one")
    (master.folder / "small.py").write_text("from hgext.vcsreplicator.outbox import file\nfile.SEGMENT_SIZE = 1500\n")
    master.configure(f"[extensions]\nsmall = {master.folder}/small.py\n")
    with running_relay(master.settings(), log):
        for number in range(6):
            master.operate("-R", str(master.root / "one"), "bookmark", "-r", "null", f"mark{number}")
    segments = master.outbox("one").segments()
    assert len(segments) <= 3
    assert segments[-1] >= 3
    assert [event.seq for event in events(log)["one"]] == list(range(1, 8))


@pytest.mark.parametrize("repositories", [4, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_four_pushes_to_each_of_many_repositories_at_once_arrive_in_order(master, log, repositories):
    names = [f"r{number:02}" for number in range(repositories)]
    master.develop("init", str(master.folder / "empty"))
    master.develop("init", str(master.folder / "clone-work"))
    for number in range(4):
        master.commit("work", f"change {number}")
    for name in names:
        shutil.copytree(master.folder / "empty", master.root / name)
        shutil.copytree(master.folder / "clone-work", master.folder / f"clone-{name}")

    def push(mine):
        for number in range(4):
            for name in mine:
                heard.append(master.push(name, "-r", str(number)))

    heard = []
    with running_relay(master.settings(), log):
        threads = [threading.Thread(target=push, args=(names[start::8],)) for start in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: not any(master.outbox(name).has_unsent() for name in names))
    assert len(heard) == 4 * repositories
    told = events(log, repeats=True)
    assert {name: [event.seq for event in told[name]] for name in names} == {name: [1, 2, 3, 4, 5] for name in names}
    assert len({event.id for chain in told.values() for event in chain}) == 5 * repositories
