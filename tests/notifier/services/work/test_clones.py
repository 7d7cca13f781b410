# SPDX-License-Identifier: GPL-2.0-or-later
"""Local clones: trouble of the installation uses no retry, and a damaged clone is re-created.

Mounting a small disk, and giving files to another user, needs root.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent, Unavailable
from notifier.services.work import clones, commandserver
from notifier.services.work.clones import Clones, CloneUnavailable
from notifier.services.work.commandserver import CommandServer, HgFailed
from notifier.services.work.database import ChangesetRecord, RepositoryKey
from testing.builders.notifier.working import HgHost, hg
from testing.faults.system import System
from testing.waiting import eventually

pytestmark = pytest.mark.processes

A_KEY = RepositoryKey(source="poll", number=1, url="http://127.0.0.1:1/x")

# What Mercurial prints of a changeset.
LINE = '{"node": "n", "author": "a", "date": "0 0", "description": "a", "branch": "a", "files": []}'


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HgHost]:
    with HgHost(tmp_path_factory.mktemp("host")) as running:
        yield running


def key_of(host: HgHost, name: str) -> RepositoryKey:
    return RepositoryKey(source="poll", number=1, url=host.url(name))


def read(kept: Clones, server: CommandServer, key: RepositoryKey, nodes: list[str]) -> set[str]:
    """Read changesets; return those that came."""
    found: list[ChangesetRecord] = []
    kept.read(server, key, nodes, found.extend)
    return {each.node for each in found}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def server(warm_pulls: None) -> Iterator[CommandServer]:
    with closing(CommandServer(timeout=60.0, memory=4 * 1024**3)) as server:
        yield server


@pytest.fixture
def _full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room is found by what Mercurial or the system says, not by a look at it before."""
    monkeypatch.setattr(clones, "LEAST_FREE", 0)


@pytest.mark.usefixtures("_full_disk")
@pytest.mark.parametrize(
    "folder",
    ["/proc", "/proc/missing", "{}/a file", "{}/a file/clones"],  # no user, not even root, can make a file in any
    ids=["nothing can be written", "missing", "a file", "below a file"],
)
def test_a_folder_that_cannot_be_written_uses_no_retry(server: CommandServer, tmp_path: Path, folder: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(Unavailable, match=f"^work.clones: {folder.format(tmp_path)}: "):
        read(Clones(folder.format(tmp_path)), server, A_KEY, ["a" * 40])


def test_a_host_that_is_away_uses_a_retry(server: CommandServer, tmp_path: Path) -> None:
    with pytest.raises(HgFailed):
        read(Clones(str(tmp_path)), server, A_KEY, ["a" * 40])
    assert [each.name for each in tmp_path.iterdir()] == [".poll-1.lock"]


@pytest.mark.slow
@pytest.mark.usefixtures("_full_disk")
def test_disk_that_a_pull_fills_uses_no_retry(server: CommandServer, host: HgHost, small_disk: Path) -> None:
    host.add("large", 1)
    (host.folder / "large" / "file").write_bytes(os.urandom(4_000_000))
    nodes = host.extend("large", 1)
    with pytest.raises(CloneUnavailable, match="No space left on device"):
        read(Clones(str(small_disk)), server, key_of(host, "large"), nodes)


def test_host_that_says_its_own_disk_is_full_uses_a_retry(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    host.add("full", 1)
    hook = host.folder / "full" / "hook.py"
    hook.write_text("from mercurial.error import Abort\n\ndef say(**_): raise Abort(b'No space left on device')\n")
    (host.folder / "full" / ".hg" / "hgrc").write_text(f"[hooks]\npreoutgoing = python:{hook}:say\n")
    with pytest.raises(HgFailed, match="No space left on device"):
        read(Clones(str(tmp_path)), server, key_of(host, "full"), ["e" * 40])


# -- locks


def this_machine() -> str:
    """Return how Mercurial names this machine in a lock."""
    return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino:x}"


def lock_clone(folder: Path, holder: str, *, age: float = 0.0) -> Path:
    """Leave a lock of Mercurial's in the clone."""
    lock = folder / "poll-1" / ".hg" / "store" / "lock"
    lock.symlink_to(holder)
    made = time.time() - age
    os.utime(lock, (made, made), follow_symlinks=False)
    return lock


def read_locked(
    server: CommandServer, host: HgHost, folder: Path, name: str, holder: str, *, age: float = 0.0
) -> tuple[set[str], set[str]]:
    """Read a changeset from a host into a clone with a lock; what came, and what was expected."""
    nodes = host.add(name, 1)
    kept = Clones(str(folder))
    read(kept, server, key_of(host, name), nodes)
    lock_clone(folder, holder, age=age)
    nodes = host.extend(name, 1)
    return read(kept, server, key_of(host, name), nodes), set(nodes)


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The process of another program that is no child of this one."""
    words = ["sh", "-c", "sleep 1000 >/dev/null & echo $!"]
    pid = int(subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout)
    yield pid
    os.kill(pid, 9)


def test_lock_from_elsewhere_is_removed_after_a_day(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    found, expected = read_locked(server, host, tmp_path, "left", "6f2c1b/f0000001:17", age=DAY + 60)
    assert found == expected


def test_lock_from_elsewhere_is_waited_for_until_then(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    with pytest.raises(CloneUnavailable, match="timed out waiting for lock"):
        read_locked(server, host, tmp_path, "elsewhere", f"dockerhost/f0000001:{os.getpid()}", age=DAY - 60)
    assert (tmp_path / "poll-1/.hg/store/lock").is_symlink()


def test_lock_whose_number_another_process_has_now_is_removed(
    server: CommandServer, host: HgHost, tmp_path: Path, sleeper: int
) -> None:
    found, expected = read_locked(server, host, tmp_path, "again", f"{this_machine()}:{sleeper}", age=60)
    assert found == expected


def test_lock_whose_number_a_thread_has_now_is_removed(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    ended, numbers = threading.Event(), [0]
    thread = threading.Thread(target=lambda: (numbers.append(threading.get_native_id()), ended.wait()))
    thread.start()
    try:
        eventually(lambda: numbers[1:], "the thread")
        found, expected = read_locked(server, host, tmp_path, "thread", f"{this_machine()}:{numbers[1]}")
    finally:
        ended.set()
        thread.join()
    assert found == expected


def test_lock_whose_number_our_own_mercurial_has_is_removed(
    server: CommandServer, host: HgHost, tmp_path: Path
) -> None:
    server.run("version")
    assert server._process is not None
    holder = f"{this_machine()}:{server._process.pid}"
    found, expected = read_locked(server, host, tmp_path, "ours", holder, age=-60)
    assert found == expected


def test_lock_of_a_process_that_lives_uses_no_retry(
    server: CommandServer, host: HgHost, tmp_path: Path, sleeper: int
) -> None:
    with pytest.raises(CloneUnavailable, match="timed out waiting for lock"):
        read_locked(server, host, tmp_path, "busy", f"{this_machine()}:{sleeper}", age=-60)
    assert (tmp_path / "poll-1/.hg/store/lock").is_symlink()


# Reads a changeset; prints the error.
READ = """
import sys
from notifier.services.work.clones import Clones
from notifier.services.work.commandserver import CommandServer
from notifier.services.work.database import RepositoryKey

server = CommandServer(timeout=60.0, memory=4 * 1024**3)
key = RepositoryKey(source="poll", number=1, url=sys.argv[2])
try:
    Clones(sys.argv[1]).read(server, key, sys.argv[3:], lambda _: None)
except Exception as error:
    print(type(error).__name__, error)
"""

# Starts a program as a root that has no right to the files of others.
PLAIN = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", ["poll-1/.hg", "poll-1/.hg/store", ".poll-1.lock"])
def test_clone_of_another_user_uses_no_retry(server: CommandServer, host: HgHost, tmp_path: Path, part: str) -> None:
    name = f"another{len(part)}"
    nodes = host.add(name, 1)
    read(Clones(str(tmp_path)), server, key_of(host, name), nodes)
    theirs = tmp_path / part
    os.chown(theirs, 65534, 65534)
    theirs.chmod(0o755)
    nodes = host.extend(name, 1)
    words = [*PLAIN, sys.executable, "-c", READ, str(tmp_path), host.url(name), *nodes]
    said = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout
    assert said.startswith("CloneUnavailable "), said
    assert "Permission denied" in said


def test_clone_that_another_process_reads_is_waited_for(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    nodes = host.add("shared", 1)
    with (tmp_path / ".poll-1.lock").open("w") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reading = pool.submit(read, Clones(str(tmp_path)), server, key_of(host, "shared"), nodes)
        wait([reading], 0.5)
        assert not (tmp_path / "poll-1").exists()
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert reading.result() == set(nodes)


def test_wait_for_another_process_has_an_end(
    server: CommandServer, host: HgHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clones, "PATIENCE", 0.2)
    with (tmp_path / ".poll-1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CloneUnavailable, match="another process uses it"):
            read(Clones(str(tmp_path)), server, A_KEY, ["a" * 40])


def test_folder_that_takes_no_locks_uses_no_retry(server: CommandServer, tmp_path: Path, system: System) -> None:
    system.refuse(errno.ENOLCK, "fcntl.flock")
    with pytest.raises(Unavailable, match=f"^work.clones: {tmp_path}: takes no file locks: No locks available"):
        read(Clones(str(tmp_path)), server, A_KEY, ["a" * 40])


def test_folder_that_takes_no_locks_is_refused_at_start(tmp_path: Path, system: System) -> None:
    Clones(str(tmp_path)).prepare()
    system.refuse(errno.ENOLCK, "fcntl.flock")
    with pytest.raises(BadConfig, match=f"^work.clones: {tmp_path}: takes no file locks: No locks available"):
        Clones(str(tmp_path)).prepare()


def test_wait_for_another_process_ends_with_the_worker(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    with (tmp_path / ".poll-1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server.end()
        with pytest.raises(Unavailable, match="stopping"):
            read(Clones(str(tmp_path)), server, A_KEY, ["a" * 40])


# -- damage


def put_zeros(path: Path) -> None:
    path.write_bytes(bytes(max(path.stat().st_size, 50)))


def make_unrelated(clone: Path) -> None:
    shutil.rmtree(clone)
    hg("init", str(clone))
    hg("-R", str(clone), "debugbuilddag", "--new-file", "@other+1")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "requires": lambda clone: put_zeros(clone / ".hg/requires"),
    "phases": lambda clone: put_zeros(clone / ".hg/store/phaseroots"),
    "changelog": lambda clone: put_zeros(clone / ".hg/store/00changelog.i"),
    "names": lambda clone: put_zeros(clone / ".hg/store/fncache"),
    "another repository": make_unrelated,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_clone_is_made_anew_at_the_next_attempt_without_a_retry(
    server: CommandServer, host: HgHost, tmp_path: Path, damage: str
) -> None:
    name = f"damaged{list(DAMAGES).index(damage)}"
    nodes = host.add(name, 3)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, name), nodes)
    for _ in range(2):  # also a second time
        DAMAGES[damage](tmp_path / "poll-1")
        nodes = host.extend(name, 1)
        with contextlib.suppress(CloneUnavailable):
            read(kept, server, key_of(host, name), nodes)
        assert read(kept, server, key_of(host, name), nodes) == set(nodes)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".poll-1.lock", "poll-1"]


def fail_often(kept: Clones, server: CommandServer, key: RepositoryKey, nodes: list[str]) -> None:
    for _ in range(4):
        with pytest.raises(HgFailed):
            read(kept, server, key, nodes)


def test_clone_stays_while_its_host_has_no_such_changeset(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    nodes = host.add("behind", 1)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "behind"), nodes)
    before = (tmp_path / "poll-1").stat().st_ino
    fail_often(kept, server, key_of(host, "behind"), ["e" * 40])
    assert (tmp_path / "poll-1").stat().st_ino == before


def test_clone_whose_new_one_cannot_be_made_is_used_again(
    server: CommandServer, host: HgHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = host.add("slow", 1)
    kept, key = Clones(str(tmp_path)), key_of(host, "slow")
    read(kept, server, key, nodes)
    later = host.extend("slow", 1)
    with monkeypatch.context() as patch:
        patch.setattr(kept, "_pull", lambda *_: None)  # from a host of several that is behind
        for error in (HgFailed, CloneUnavailable):
            with pytest.raises(error):
                read(kept, server, key, later)
    with monkeypatch.context() as patch:
        patch.setattr(kept, "_pull", fail_to_pull)
        with pytest.raises(HgFailed, match="did not end"):
            read(kept, server, key, later)
    before = (tmp_path / "poll-1").stat().st_ino
    assert read(kept, server, key, later) == set(later)
    assert (tmp_path / "poll-1").stat().st_ino == before


def fail_to_pull(*_: object) -> NoReturn:
    raise HgFailed("hg pull: did not end within 1200 s")


def test_clone_stays_while_its_host_is_away(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    nodes = host.add("away", 1)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "away"), nodes)
    before = (tmp_path / "poll-1").stat().st_ino
    fail_often(kept, server, A_KEY, ["e" * 40])
    assert (tmp_path / "poll-1").stat().st_ino == before


def test_damaged_clone_whose_host_is_broken_is_replaced_by_no_other(
    server: CommandServer, host: HgHost, tmp_path: Path
) -> None:
    nodes = host.add("broken", 3)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "broken"), nodes)
    before = (tmp_path / "poll-1").stat().st_ino
    put_zeros(tmp_path / "poll-1/.hg/store/phaseroots")
    nodes = host.extend("broken", 1)
    manifest = host.folder / "broken/.hg/store/00manifest.i"
    good = manifest.read_bytes()
    put_zeros(manifest)
    with pytest.raises(CloneUnavailable, match="damaged, re-created at the next attempt"):
        read(kept, server, key_of(host, "broken"), nodes)
    fail_often(kept, server, key_of(host, "broken"), nodes)
    assert (tmp_path / "poll-1").stat().st_ino == before
    manifest.write_bytes(good)
    assert read(kept, server, key_of(host, "broken"), nodes) == set(nodes)


def test_clone_that_is_whole_stays_if_its_host_shows_another_repository(
    server: CommandServer, host: HgHost, tmp_path: Path
) -> None:
    nodes = host.add("whole", 2)
    host.add("different", 1)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "whole"), nodes)
    before = (tmp_path / "poll-1").stat().st_ino
    nodes = host.extend("whole", 1)
    for expected in (CloneUnavailable, HgFailed) * 2:
        with pytest.raises(expected):
            read(kept, server, key_of(host, "different"), nodes)
    assert read(kept, server, key_of(host, "whole"), nodes) == set(nodes)
    assert (tmp_path / "poll-1").stat().st_ino == before


def test_damaged_clone_is_replaced_even_if_its_host_lacks_a_changeset(
    server: CommandServer, host: HgHost, tmp_path: Path
) -> None:
    nodes = host.add("lags", 3)
    kept = Clones(str(tmp_path))
    read(kept, server, key_of(host, "lags"), nodes)
    put_zeros(tmp_path / "poll-1/.hg/requires")
    for expected in (CloneUnavailable, HgFailed):
        with pytest.raises(expected):
            read(kept, server, key_of(host, "lags"), ["e" * 40])
    assert read(kept, server, key_of(host, "lags"), nodes) == set(nodes)


class CuttingProxy(socketserver.BaseRequestHandler):
    """Passes on what a host answers, but its first bytes only."""

    server: Any
    most = 20_000

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as host:
            threading.Thread(target=self._pass_on, args=(host,), daemon=True).start()
            left = self.most
            while data := host.recv(min(left, 1 << 16)):
                self.request.sendall(data)
                left -= len(data)
                if not left:
                    self.server.cut(self)
                    return

    def _pass_on(self, host: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(1 << 16):
                self.server.asked.append(data)
                host.sendall(data)

    def stall(self) -> None:
        self.server.ending.wait()

    def reset(self) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.request.close()

    def end(self) -> None:
        self.request.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(
    host: HgHost, cut: Callable[[CuttingProxy], None], proxy_class: type[CuttingProxy] = CuttingProxy
) -> Iterator[Any]:
    """Have a proxy that cuts the host's answers; it notes in `asked` what passed to the host."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), proxy_class) as proxy:
        state: Any = proxy
        state.daemon_threads, state.cut, state.ending, state.asked = True, cut, threading.Event(), []
        state.target = ("127.0.0.1", int(host.root.split(":")[2].rstrip("/")))
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield proxy
        finally:
            state.ending.set()
            proxy.shutdown()
            thread.join()


@pytest.mark.parametrize("cut", [CuttingProxy.stall, CuttingProxy.reset, CuttingProxy.end])
def test_clone_stays_while_the_network_cuts_its_pulls(
    host: HgHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    warm_pulls: None,
    cut: Callable[[CuttingProxy], None],
) -> None:
    monkeypatch.setitem(commandserver._OPTIONS, "http.timeout", "1")
    name = f"cut{cut.__name__}"
    nodes = host.add(name, 1)
    kept = Clones(str(tmp_path))
    with closing(CommandServer(timeout=60.0, memory=4 * 1024**3)) as server:
        read(kept, server, key_of(host, name), nodes)
        before = (tmp_path / "poll-1").stat().st_ino
        (host.folder / name / "large").write_bytes(os.urandom(1_000_000))
        nodes = host.extend(name, 1)
        with cutting(host, cut) as proxy:
            url = f"http://127.0.0.1:{proxy.server_address[1]}/{name}"
            fail_often(kept, server, RepositoryKey(source="poll", number=1, url=url), nodes)
        asked = b"".join(proxy.asked)
        assert b"cmd=getbundle" in asked
        assert b"common=" + b"0" * 40 not in asked  # none of a whole repository
        assert (tmp_path / "poll-1").stat().st_ino == before
        assert read(kept, server, key_of(host, name), nodes) == set(nodes)


def test_clone_stays_while_a_pull_takes_too_much_memory() -> None:
    assert not HgFailed("hg pull: exit code 255: abort: out of memory", 255).may_be_the_clone


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[" * 3000, "7", "null", "[]", "{}"),
        *(LINE.replace('"a"', "7"), LINE.replace("[]", "7"), LINE.replace("[]", "[7]"), LINE.replace('"0 0"', "0")),
        *(LINE.replace("0 0", "x 0"), LINE.replace("0 0", "9" * 5000)),
    ],
)
def test_a_changeset_in_another_form_is_refused_in_a_line(line: str) -> None:
    with pytest.raises(MalformedEvent, match="another form"):
        clones.read_record(line)
