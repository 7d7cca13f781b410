# SPDX-License-Identifier: GPL-2.0-or-later
"""The append-only file: it commits, aborts and recovers with Mercurial's own transactions; readers see committed bytes only."""

import contextlib
import os
import subprocess
import sys

import pytest
from mercurial import ui as ui_module

from pushlog.store import appendfile, disk
from pushlog.store.appendfile import AppendFile, TornRecord, open_regular
from pushlog.store.frames import FRAME_BYTES
from pushlog.versions import factory, initialize

pytestmark = pytest.mark.processes

initialize()

NAME, MAGIC = b"facts.log", b"FCT1"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("HGRCPATH", "")
    user_interface = ui_module.ui.load()
    user_interface.setconfig(b"ui", b"quiet", True)
    return factory.repository(user_interface, os.fsencode(tmp_path / "repository"), create=True)


def facts(repository):
    return AppendFile(repository.svfs, NAME, MAGIC)


def append(repository, *payloads):
    with repository.lock(), repository.transaction(b"test") as tr:
        tr.addfinalize(b"facts", lambda tr: facts(repository).append(tr, payloads))


def interrupted_append(repository, payload):
    with repository.lock(), repository.transaction(b"test", report=lambda message: None) as tr:
        facts(repository).append(tr, [payload])
        raise KeyboardInterrupt


def payloads(repository, start=0, tr=None):
    return [record.payload for record in facts(repository).records(start, tr)]


def test_a_file_that_does_not_exist_is_empty(repository):
    assert (payloads(repository), facts(repository).tail(), facts(repository).last()) == ([], 0, None)


def test_records_come_back_in_the_order_of_their_transactions(repository):
    append(repository, b"one", b"")
    append(repository, b"three")
    assert payloads(repository) == [b"one", b"", b"three"]


def test_records_larger_than_the_read_ahead_come_back_whole(repository):
    large = [os.urandom(size) for size in (1, 1 << 18, 1_000_000, 7, (1 << 18) - FRAME_BYTES, 3)]
    append(repository, *large)
    assert payloads(repository) == large


def test_reading_starts_at_the_end_of_any_record(repository):
    append(repository, b"one", b"two", b"three")
    first = next(facts(repository).records())
    assert payloads(repository, first.end) == [b"two", b"three"]
    assert payloads(repository, facts(repository).tail()) == []


def test_the_last_record_is_found_from_the_end(repository):
    append(repository, b"one", b"two")
    last = facts(repository).last()
    assert (last.payload, last.end) == (b"two", facts(repository).tail())


def test_an_append_of_nothing_makes_no_file(repository):
    append(repository)
    assert not repository.svfs.exists(NAME)


def test_uncommitted_records_are_seen_by_their_own_transaction_only(repository):
    append(repository, b"committed")
    with repository.lock(), repository.transaction(b"test") as tr:
        facts(repository).append(tr, [b"pending"])
        assert payloads(repository, tr=tr) == [b"committed", b"pending"]
        assert payloads(repository) == [b"committed"]
        assert facts(repository).last().payload == b"committed"
    assert payloads(repository) == [b"committed", b"pending"]


def test_an_abort_leaves_the_file_as_it_was(repository):
    append(repository, b"committed")
    before = repository.svfs.read(NAME)
    with pytest.raises(KeyboardInterrupt):
        interrupted_append(repository, b"pending")
    assert repository.svfs.read(NAME) == before


def test_an_abort_leaves_nothing_of_the_file_it_created(repository):
    with pytest.raises(KeyboardInterrupt):
        interrupted_append(repository, b"pending")
    assert not repository.svfs.tryread(NAME)  # Mercurial 6.3 leaves it empty
    assert payloads(repository) == []
    append(repository, b"later")
    assert payloads(repository) == [b"later"]


KILLED = """
import os, signal, sys
from mercurial import ui
from pushlog.versions import factory, initialize
from pushlog.store.appendfile import AppendFile
initialize()
repository = factory.repository(ui.ui.load(), os.fsencode(sys.argv[1]))
lock = repository.lock()
tr = repository.transaction(b"test")
AppendFile(repository.svfs, b"facts.log", b"FCT1").append(tr, [b"pending"])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_nothing_to_see_and_recovery_removes_it(repository):
    append(repository, b"committed")
    size = facts(repository).tail()
    subprocess.run([sys.executable, "-c", KILLED, os.fsdecode(repository.root)], check=False)
    assert repository.svfs.stat(NAME).st_size > size
    assert payloads(repository) == [b"committed"]
    repository.recover()
    assert repository.svfs.stat(NAME).st_size == size


def test_a_flipped_bit_anywhere_in_the_last_frame_is_noticed(repository):
    append(repository, b"first", b"second")
    whole = repository.svfs.read(NAME)
    start = facts(repository).last().start
    for position in range(start, len(whole)):
        repository.svfs.write(NAME, whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(TornRecord) as caught:
            payloads(repository)
        assert f": damaged record at byte {start}: " in str(caught.value)
        with pytest.raises(TornRecord):
            facts(repository).last()


def test_a_torn_tail_refuses_an_append_until_it_is_mended(repository):
    append(repository, b"first", b"second")
    start = facts(repository).last().start
    with repository.svfs(NAME, b"r+b") as file:
        file.truncate(facts(repository).tail() - 3)
    with pytest.raises(TornRecord):
        append(repository, b"third")
    with repository.lock():
        facts(repository).mend(start, [b"again"])
        assert payloads(repository) == [b"first", b"again"]
        append(repository, b"third")
    assert payloads(repository) == [b"first", b"again", b"third"]


def places(records):
    return [(each.start, each.end, each.payload) for each in records]


@pytest.mark.parametrize("place", range(3))
def test_what_is_sound_behind_a_damaged_record_is_found(repository, place):
    append(repository, b"first", b"FCT1", b"third")
    sound = places(facts(repository).records())
    whole = repository.svfs.read(NAME)
    assert places(facts(repository).sound_records()) == sound
    for position in range(*sound[place][:2]):
        repository.svfs.write(NAME, whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert places(facts(repository).sound_records()) == [*sound[:place], *sound[place + 1 :]]


def test_a_file_of_another_kind_is_refused(repository):
    append(repository, b"first")
    with pytest.raises(TornRecord, match="expected b'OTHR'"):
        list(AppendFile(repository.svfs, NAME, b"OTHR").records())


@pytest.mark.parametrize("name", [b"facts", b"facts.i", b"data/facts.log"])
def test_names_that_mercurial_would_misread_are_refused(repository, name):
    with pytest.raises(ValueError, match="expected a flat name"):
        AppendFile(repository.svfs, name, MAGIC)


RACING_READER = """
import sys
from pushlog.store.appendfile import AppendFile

class Folder:
    def join(self, name):
        return sys.argv[1].encode() + b"/" + name

facts = AppendFile(Folder(), b"facts.log", b"FCT1")
print("ready", flush=True)
while facts.last() is None or facts.last().payload != b"end":
    for record in facts.records():
        if record.payload == b"aborted":
            sys.exit("saw a record that never committed")
"""


def test_a_reader_without_a_lock_never_sees_what_is_aborted_later(repository):
    append(repository, b"first")
    command = [sys.executable, "-c", RACING_READER, os.fsdecode(repository.svfs.join(b""))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        try:
            assert reader.stdout.readline() == b"ready\n"
            for attempt in range(150):
                with pytest.raises(KeyboardInterrupt):
                    interrupted_append(repository, b"aborted")
                if attempt % 10 == 0:
                    append(repository, b"committed")
            append(repository, b"end")
            _output, errors = reader.communicate()
        finally:
            reader.kill()
    assert (reader.returncode, errors) == (0, b"")


def test_a_replacement_is_on_disk_before_its_name_and_its_use(repository, monkeypatch):
    repository.svfs.write(NAME, b"old")
    steps = []

    def content(file):
        steps.append(("content", os.pread(file, 9, 0), repository.svfs.read(NAME)))

    def folder(file):
        steps.append((os.readlink(f"/proc/self/fd/{file}").encode(), repository.svfs.read(NAME)))

    with monkeypatch.context() as patch:
        patch.setattr(disk.os, "fdatasync", content)
        patch.setattr(disk.os, "fsync", folder)
        disk.replace(repository.svfs, NAME, b"new").close()
    assert steps == [("content", b"new", b"old"), (repository.svfs.join(b""), b"new")]


def test_a_reader_of_a_file_whose_first_append_failed_sees_nothing(repository, monkeypatch):
    read_size = AppendFile._read_journalled_size
    with repository.lock():
        tr = repository.transaction(b"test", report=lambda message: None)
        facts(repository).append(tr, [b"aborted"])

        def abort_then_read_size(file):
            if repository.currenttransaction() is not None:
                tr.abort()
            return read_size(file)

        monkeypatch.setattr(AppendFile, "_read_journalled_size", abort_then_read_size)
        assert payloads(repository) == []
    assert not repository.svfs.tryread(NAME)


def test_a_reader_sees_nothing_uncommitted_of_a_repository_that_moves(repository, tmp_path, monkeypatch):
    append(repository, b"committed")
    with contextlib.ExitStack() as held:

        def open_then_move(path, flags):
            file = open_regular(path, flags)
            if (tmp_path / "repository").exists():
                (tmp_path / "repository").rename(tmp_path / "moved")
                moved = factory.repository(repository.ui, os.fsencode(tmp_path / "moved"))
                held.enter_context(moved.lock())
                tr = moved.transaction(b"test", report=lambda message: None)
                held.callback(tr.abort)
                facts(moved).append(tr, [b"uncommitted"])
            return file

        monkeypatch.setattr(appendfile, "open_regular", open_then_move)
        assert payloads(repository) == []


@pytest.mark.parametrize("size", [b"", b"x", b"-5", b"9" * 5000])
def test_a_journal_with_a_size_that_is_none_is_damage(repository, size):
    append(repository, b"one")
    repository.svfs.write(b"journal", NAME + b"\0" + size + b"\n")
    with pytest.raises(TornRecord, match="journal"):
        payloads(repository)
