# SPDX-License-Identifier: GPL-2.0-or-later
"""Killed before any step that changes something: afterwards changelog and pushlog agree, and the next push works.

The work is done in a forked process that is killed before its n-th call of a function that writes, for every n until it
survives; and by `hg` itself, killed at a system call that changes a file. Readers are asked before and after Mercurial's own
recovery, which any next writer starts.
"""

import contextlib
import errno
import io
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from mercurial import bookmarks, error, exchange, extensions, hg, merge, repair, vfs
from mercurial import ui as ui_module

from pushlog import checking, stripping, wire
from pushlog.store import appendfile, database, journal, storage
from pushlog.store.session import PushlogTransaction, session_of
from pushlog.versions import factory, initialize
from testing.faults import SEED, SystemCall, SystemCalls, told_with_seed
from testing.faults.forks import await_fork, begin_fork
from testing.journals import write_foreign_journal
from testing.warm_hg import shared_hg

pytestmark = [pytest.mark.processes, pytest.mark.hunt]

initialize()

HG = Path(sys.executable).with_name("hg")
INTERRUPTED = "pushlog2.db was left in the middle of a change; 'hg recover' or the next push rolls it back"
STEPS = {"write", "flush", "close", "rename", "unlink", "truncate", "execute", "executemany", "link", "symlink"}
PLACES = {"transaction", "revlog", "repair", "phases"} | {
    *("storage", "session", "derivation", "appendfile", "disk", "connections", "database", "stripping", "recording")
}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Open the repository of a name below the test's folder, as a process of its own would."""
    (tmp_path / "hgrc").write_text(
        "[extensions]\n*:required = yes\npushlog =\nstrip =\n[ui]\nrollback = yes\nquiet = yes\nusername = test\n"
        f"ssh = {tmp_path}/ssh\n"
        "[devel]\ndefault-date = 1500000000 0\n[phases]\npublish = no\n"
    )
    (tmp_path / "ssh").write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "hgrc"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(HG.parent), os.environ["PATH"]]))
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setitem(os.environb, b"USER", b"alice")

    def load(name, *, create=False):
        user_interface = ui_module.ui.load()
        user_interface.fout = user_interface.ferr = io.BytesIO()
        extensions.loadall(user_interface)
        extensions.populateui(user_interface)
        return factory.repository(user_interface, os.fsencode(tmp_path / name), create=create)

    return load


def commit(repository, name):
    with repository.wlock(), repository.lock():
        repository.wvfs.write(b"file", name)
        if b"file" not in repository.dirstate:
            with getattr(repository.dirstate, "changing_files", contextlib.nullcontext)(repository):
                repository[None].add([b"file"])
        repository.commit(name)


def push(load, source="client", target="server", revision=None):
    remote = factory.peer(load(target).ui, {}, load(target).root)
    local = load(source)
    exchange.push(local, remote, force=True, revs=None if revision is None else [local[revision].node()])


@pytest.fixture
def pushed(load, make_once):
    """A server that got two pushes of a client which has two changesets more."""

    def push_two():
        load("server", create=True)
        client = load("client", create=True)
        for name in (b"a", b"b"):
            commit(client, name)
        push(load)
        commit(client, b"c")
        push(load)
        for name in (b"d", b"e"):
            commit(client, name)

    make_once(push_two, "server", "client")
    return load


def is_writing(frame):
    """Whether a call comes, directly or by a helper, from where the repository is written."""
    callers = (frame, frame.f_back, frame.f_back and frame.f_back.f_back)
    return any(caller and Path(caller.f_code.co_filename).stem in PLACES for caller in callers)


def is_journalling_a_group(frame):
    """Whether a call comes from where the entries of a strip reach the journal."""
    while frame is not None and frame.f_code.co_name != "endgroup":
        frame = frame.f_back
    return frame is not None


def run_killed_at(step, work, is_watched):
    """Whether ``work`` was killed before its ``step``-th changing call, in a process of its own."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        if event == "c_call" and argument.__name__ in STEPS and is_watched(frame):
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    def act():
        sys.setprofile(profile)
        try:
            work()
        finally:
            sys.setprofile(None)

    ended = await_fork(begin_fork(act))
    assert ended in (0, -signal.SIGKILL), "the work failed without being killed"
    return ended != 0


def recorded(log):
    with log.view() as connection:
        return list(database.pushes(connection, 0, database.last_id(connection)))


def read_before_recovery(repository):
    """Without the file nothing but SQLite has the pushes, and no reader rolls it back."""
    try:
        recorded(storage.Pushlog(repository))
    except sqlite3.OperationalError as problem:
        assert storage.Pushlog(repository).file.tail() == 0
        assert str(problem) == INTERRUPTED  # noqa: PT017 (it need not be raised)


def assert_agrees(repository):
    """Nothing that `hg verifypushlog` calls an error, and SQLite brought level says what the reader saw."""
    log = storage.Pushlog(repository)
    assert hg.verify(repository) == 0
    assert [line for line, is_error in checking.problems(log) if is_error] == []
    seen = recorded(log)
    with repository.lock(), repository.transaction(b"test") as tr:
        connection = session_of(log, tr).connection
        assert list(database.pushes(connection, 0, database.last_id(connection))) == seen
    assert recorded(log) == seen
    assert list(log.sound_facts()) or seen == []


@pytest.fixture
def survive_kills(tmp_path, told, request):
    """Kills the work before its first changing call, and every `stride`-th from there on."""

    def survive(load, work, stride, *, folder="server", is_watched=is_writing, least=20):
        folders = [each.parent.name for each in tmp_path.glob("*/.hg")]
        for each in folders:
            shutil.copytree(tmp_path / each, tmp_path / "before" / each, symlinks=True)
        step, kills, was_killed = 1 - stride, -1, True
        while was_killed:
            step, kills = step + stride, kills + 1
            for each in folders:
                shutil.rmtree(tmp_path / each)
                shutil.copytree(tmp_path / "before" / each, tmp_path / each, symlinks=True)
            was_killed = run_killed_at(step, work, is_watched)  # the only one that survives is the last
            with_reader = load(folder)
            if with_reader.svfs.exists(b"journal"):
                read_before_recovery(with_reader)
                with_reader.recover()
            assert_agrees(load(folder))
        assert step > max(least, 2 * stride), "the work does not seem to write"
        told(f"{request.node.name}: killed before {kills} changing calls")

    return survive


@pytest.fixture(params=[50, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def stride(request):
    """Of how many changing calls one is a kill."""
    return request.param


def test_push(survive_kills, pushed, stride):
    survive_kills(pushed, lambda: push(pushed), stride)
    assert [len(each.nodes) for each in recorded(storage.Pushlog(pushed("server")))] == [2, 1, 2]


def test_first_push(tmp_path, survive_kills, pushed, stride):
    shutil.rmtree(tmp_path / "server")
    pushed("server", create=True)
    survive_kills(pushed, lambda: push(pushed), stride)
    assert [len(each.nodes) for each in recorded(storage.Pushlog(pushed("server")))] == [5]


def test_first_push_to_an_adopted_database(tmp_path, survive_kills, pushed, stride):
    os.unlink(tmp_path / "server" / ".hg" / "store" / "pushlog.log")
    survive_kills(pushed, lambda: push(pushed), stride)
    assert [len(each.nodes) for each in recorded(storage.Pushlog(pushed("server")))] == [2, 1, 2]


def test_pull(survive_kills, pushed, stride):
    push(pushed)

    def pull():
        local = pushed("mirror")
        remote = factory.peer(local.ui, {}, pushed("server").root)
        remote.capable = lambda name: name == b"pushlog-stream" or type(remote).capable(remote, name)
        stream = b"".join(wire.stream_rows(pushed("server"), b"1"))
        remote._callstream = lambda _command, **_arguments: io.BytesIO(stream)
        exchange.pull(local, remote)

    pushed("mirror", create=True)
    survive_kills(pushed, pull, stride, folder="mirror")
    assert recorded(storage.Pushlog(pushed("mirror"))) == recorded(storage.Pushlog(pushed("server")))


@pytest.fixture
def strip(pushed):
    """Strips from the middle of the server: the branch with d and e is saved and comes back under other numbers."""
    side = pushed("client")
    with side.wlock(), side.lock():
        merge.clean_update(side[0])
    commit(pushed("client"), b"side")
    push(pushed)

    def strip():
        server = pushed("server")
        with server.wlock(), server.lock():
            repair.strip(server.ui, server, [server[2].node()], backup=False)

    return strip


def test_strip_in_the_middle(survive_kills, pushed, strip, stride):
    survive_kills(pushed, strip, stride)
    assert [len(each.nodes) for each in recorded(storage.Pushlog(pushed("server")))] == [2, 0, 1]


def test_strip_killed_before_it_cuts(survive_kills, pushed, strip):
    """Recovery cuts what the journal names: all that the strip would have cut, or nothing."""
    survive_kills(pushed, strip, 1, is_watched=is_journalling_a_group, least=3)
    assert [len(each.nodes) for each in recorded(storage.Pushlog(pushed("server")))] == [2, 0, 1]


def test_stripped_changesets_are_pushed_again_before_the_strip_is_known(pushed, strip, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr(stripping, "settle", lambda *_: None)
        strip()
    push(pushed)
    assert [len(each.nodes) for each in recorded(storage.Pushlog(pushed("server")))] == [2, 0, 1, 3]
    assert_agrees(pushed("server"))


def test_strip_that_cannot_journal_cuts_nothing(pushed, strip, monkeypatch):
    def full(_file):
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as disk:
        disk.setattr(appendfile.os, "fdatasync", full)
        with pytest.raises(OSError, match="no space"):
            strip()
    assert len(pushed("server")) == 6
    assert_agrees(pushed("server"))


def test_rollback_leaves_an_abandoned_transaction_alone(pushed):
    push(pushed)
    server = pushed("server")
    server.svfs.write(b"journal", b"")
    with pytest.raises(error.Abort, match="abandoned transaction found"):
        server.rollback()
    server.recover()
    assert_agrees(pushed("server"))
    assert len(pushed("server")) == 5


def test_rollback(survive_kills, pushed, stride):
    push(pushed)
    survive_kills(pushed, lambda: pushed("server").rollback(), stride)
    assert [len(each.nodes) for each in recorded(storage.Pushlog(pushed("server")))] == [2, 1]


def move_mark(load, rev):
    repository = load("server")
    with repository.wlock(), repository.lock(), repository.transaction(b"bookmark") as tr:
        repository._bookmarks.applychanges(repository, tr, [(b"mark", repository[rev].node())])


def run_killed_after(work, owner, name, is_wanted=lambda *_arguments: True):
    """Does the work in a process of its own, which is killed as soon as it has called a function."""
    called = getattr(owner, name)

    def call_and_die(*arguments, **keywords):
        answer = called(*arguments, **keywords)
        if is_wanted(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def act():
        setattr(owner, name, call_and_die)
        work()

    assert await_fork(begin_fork(act)) == -signal.SIGKILL, "the work was not killed"


def test_recovery_rolls_back_a_database_that_no_file_replaces(tmp_path, pushed):
    os.unlink(tmp_path / "server" / ".hg" / "store" / "pushlog.log")
    run_killed_after(lambda: push(pushed), PushlogTransaction, "record")
    with pytest.raises(sqlite3.OperationalError, match=INTERRUPTED):
        recorded(storage.Pushlog(pushed("server")))
    assert pushed("server").recover()
    assert [len(each.nodes) for each in recorded(storage.Pushlog(pushed("server")))] == [2, 1]


def test_recovery_removes_no_file_that_a_journal_of_the_database_names(tmp_path, pushed):
    (tmp_path / "precious").write_text("precious")
    write_foreign_journal(tmp_path / "server" / ".hg" / "pushlog2.db", tmp_path / "precious")
    server = pushed("server")
    assert not server.recover()
    assert b"pushlog2.db is not rolled back: pushlog2.db-journal names another file" in server.ui.ferr.getvalue()
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("first", ["a commit", "a rollback"])
def test_backups_of_a_killed_process_do_not_undo_what_was_committed(pushed, first):
    move_mark(pushed, 0)
    if first == "a commit":
        run_killed_after(
            lambda: move_mark(pushed, 1), vfs.abstractvfs, "rename", lambda _vfs, name, *_: name == b"journal"
        )
    else:
        move_mark(pushed, 1)
        run_killed_after(lambda: pushed("server").rollback(), journal, "_journal_backups")
    assert not pushed("server").svfs.exists(b"journal")

    def opens_journal(_vfs, path, mode=b"r", *_rest):
        return path == b"journal" and mode == b"w+"

    run_killed_after(lambda: move_mark(pushed, 2), vfs.vfs, "__call__", opens_journal)
    server = pushed("server")
    server.recover()
    assert bookmarks.listbookmarks(server) == {b"mark": server[1].hex()}


def hash_alike():
    """This environment, with what every command below strace has."""
    return {**os.environ, "PYTHONHASHSEED": "0"}


def warm_hg():
    """A warm `hg` for commands of `Struck`, and for what these start."""
    return shared_hg(hash_alike())


class Struck:
    """One command of `hg`, run repeatedly from the same beginning, met by a fault at one of its system calls.

    Without a fault it is warm.
    """

    def __init__(self, tmp_path, *command):
        self._folder, self._argv = tmp_path, [str(HG), *command]
        self._repositories = [each.parent.name for each in tmp_path.glob("*/.hg")]
        for each in self._repositories:
            shutil.copytree(tmp_path / each, tmp_path / "before" / each, symlinks=True)
        self._calls = SystemCalls(log=tmp_path / "strace.log")

    def calls(self, repository):
        """Those of the undisturbed command that change a repository's files."""
        return [call for call in self._calls.made(self._argv, self.run) if self._concerns(repository, call.text)]

    def meet(self, call: SystemCall, fault="signal=KILL"):
        """The command's exit status, begun again and struck at this call."""
        for each in self._repositories:
            shutil.rmtree(self._folder / each)
            shutil.copytree(self._folder / "before" / each, self._folder / each, symlinks=True)
        return self.run(self._calls.struck(self._argv, at=call, fault=fault))

    def faults(self, repository):
        """The calls of the last run that were answered with an error and concern this repository."""
        lines = (self._folder / "strace.log").read_text(errors="replace").splitlines()
        return [line for line in lines if "(INJECTED)" in line and self._concerns(repository, line)]

    def _concerns(self, repository, line):
        """Whether a call names a file of the repository, or the open folder in which it is."""
        return any(f"{self._folder / repository}/.hg{end}" in line for end in "/>")

    def run(self, argv=None):
        return subprocess.run(
            argv or [warm_hg(), *self._argv[1:]],
            cwd=self._folder,
            env=hash_alike(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode


COMMANDS = {
    "push": ("server", "-R", "client", "push", "--force", "server"),
    "pull": ("mirror", "-R", "mirror", "pull", "ssh://x/{folder}/server"),
    "strip": ("server", "-R", "server", "strip", "--no-backup", "--rev", "1"),
    "rollback": ("server", "-R", "server", "rollback"),
}


@pytest.mark.sample(2, keep=("[push",))
@pytest.mark.parametrize("share", [2, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_a_system_call(tmp_path, pushed, name, share, told):
    repository, *command = COMMANDS[name]
    if repository == "mirror":
        pushed("mirror", create=True)
    struck = Struck(tmp_path, *(word.format(folder=tmp_path) for word in command))
    calls = struck.calls(repository)
    assert len(calls) > 10, "the command does not seem to write"
    kills = 0
    chosen = calls if share is None else random.Random(SEED).sample(calls, share)
    for call in chosen:
        kills += struck.meet(call) == -signal.SIGKILL
        with told_with_seed(f"{name}: killed at {call}"):
            reader = pushed(repository)
            recorded(storage.Pushlog(reader))
            if reader.svfs.exists(b"journal"):
                reader.recover()
            assert_agrees(pushed(repository))
    told(f"{name}: killed at {kills} of {len(calls)} system calls")
    # Two runs are not always alike.
    assert kills >= len(chosen) - max(1, len(chosen) // 10), f"only {kills} of {len(chosen)} kills struck"


@pytest.mark.parametrize("share", [2, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_full_disk_at_a_system_call_of_a_push(tmp_path, pushed, share, told):
    repository, *command = COMMANDS["push"]
    struck = Struck(tmp_path, *command)
    calls = [call for call in struck.calls(repository) if call.name in ("openat", "write", "pwrite64", "mkdir")]
    accepted = strikes = 0
    chosen = calls if share is None else random.Random(SEED).sample(calls, share)
    for call in chosen:
        was_accepted = struck.meet(call, fault="error=ENOSPC") == 0
        strikes += len(struck.faults(repository))
        with told_with_seed(f"push: no space at {call}"):
            reader = pushed(repository)
            if reader.svfs.exists(b"journal"):
                reader.recover()
            assert_agrees(pushed(repository))
            assert not was_accepted or len(recorded(storage.Pushlog(pushed(repository)))) == 3
        accepted += was_accepted
    told(f"push: no space at {strikes} of {len(calls)} system calls, accepted all the same {accepted} times")
    assert strikes == len(chosen)
    assert share or accepted < strikes, "no push was refused for want of space"


def test_a_push_whose_note_of_an_old_strip_cannot_be_removed_is_accepted(tmp_path, pushed):
    storage.Pushlog(pushed("server")).write_note(3)
    repository, *command = COMMANDS["push"]
    struck = Struck(tmp_path, *command)
    [removal] = [
        call for call in struck.calls(repository) if "unlink" in call.name and "pushlog-strip.log" in call.text
    ]
    assert struck.meet(removal, fault="error=EIO") == 0
    assert_agrees(pushed("server"))
    assert [len(each.nodes) for each in recorded(storage.Pushlog(pushed("server")))] == [2, 1, 2]
