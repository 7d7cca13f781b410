# SPDX-License-Identifier: GPL-2.0-or-later
"""Hosts that turned hostile, and clones whose pull was interrupted."""

import contextlib
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from hgext.vcsreplicator.words.errors import Unavailable
from notifier.services.work.clones import Clones, CloneUnavailable
from notifier.services.work.commandserver import CommandServer, HgFailed
from notifier.services.work.database import ChangesetRecord, RepositoryKey
from testing.builders.notifier.hostile import HostileHost, backup_files, bundle, interrupted, part
from testing.builders.notifier.working import HgHost, hg
from testing.waiting import eventually

from .test_clones import READ, CuttingProxy, cutting

pytestmark = pytest.mark.processes

# What a rollback with these files puts in place of a file beside the folder of clones.
VICTIM = b"../../../victim/authorized_keys"
FILES = {b"payload": b"theirs\n", b"journal.backupfiles": backup_files((b"plain", VICTIM, b"store/payload"))}
HOSTILE = {b"journal": b"payload\x007\n", **FILES}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file beside the folder of clones."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "authorized_keys").write_text("ours\n")
    return folder / "authorized_keys"


@pytest.fixture
def hasty() -> Iterator[CommandServer]:
    with closing(CommandServer(timeout=60.0, memory=4 * 1024**3)) as server:
        server.run("version")  # its start may take longer than a pull
        server._timeout = 3.0
        yield server


@pytest.fixture
def server() -> Iterator[CommandServer]:
    with closing(CommandServer(timeout=60.0, memory=4 * 1024**3)) as server:
        yield server


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HgHost]:
    with HgHost(tmp_path_factory.mktemp("host")) as running:
        yield running


def key_of(url: str) -> RepositoryKey:
    return RepositoryKey(source="poll", number=1, url=url)


def read(folder: Path, server: CommandServer, url: str, nodes: list[str]) -> set[str]:
    found: list[ChangesetRecord] = []
    Clones(str(folder)).read(server, key_of(url), nodes, found.extend)
    return {each.node for each in found}


def attempt(folder: Path, server: CommandServer, url: str) -> list[str]:
    """Try three times to read a changeset that is not there; return the reasons."""
    reasons = []
    for _ in range(3):
        with pytest.raises((HgFailed, CloneUnavailable)) as failure:
            read(folder, server, url, ["a" * 40])
        reasons.append(str(failure.value))
    return reasons


def test_host_that_streams_overwrites_no_file_of_the_worker(
    server: CommandServer, tmp_path: Path, victim: Path
) -> None:
    with HostileHost(files=HOSTILE) as hostile:
        attempt(tmp_path / "clones", server, hostile.url)
    assert victim.read_text() == "ours\n"
    assert "stream_out" not in hostile.asked
    assert not list((tmp_path / "clones").rglob("payload"))


PARTS = ["stream2", "remote-changegroup", "obsmarkers", "pushvars", "pushkey", "hgtagsfnodes", "cache:rev-branch-cache"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PARTS)
def test_pull_takes_no_part_that_it_does_not_need(server: CommandServer, tmp_path: Path, name: str) -> None:
    with HostileHost(bundle=bundle(part(name.encode(), {}))) as hostile:
        reasons = attempt(tmp_path / "clones", server, hostile.url)
    assert f"missing support for {name}" in reasons[0]


def test_host_has_no_files_of_a_store_read_by_answering_with_a_page(server: CommandServer, tmp_path: Path) -> None:
    with HostileHost() as hostile:
        hostile.content_type, hostile.answers["capabilities"] = "text/html", b""
        [reason, *_] = attempt(tmp_path / "clones", server, hostile.url)
    assert "does not appear to be an hg repository" in reason
    assert set(hostile.asked) == {"capabilities"}, "nothing is asked without a command"


def test_a_long_refusal_of_a_host_takes_no_memory_beyond_its_size(server: CommandServer, tmp_path: Path) -> None:
    with HostileHost() as hostile:
        hostile.content_type, hostile.answers["capabilities"] = "application/hg-error", b"no " * 5_000_000
        server.run("version")
        tracemalloc.start()
        try:
            [reason, *_] = attempt(tmp_path / "clones", server, hostile.url)
            assert tracemalloc.get_traced_memory()[1] < 50_000_000
        finally:
            tracemalloc.stop()
    assert reason.endswith("no no")
    assert len(reason) < 400


class Counted(BaseHTTPRequestHandler):
    """Counts who asks here."""

    server: Any

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[Any]:
    """Another server, which the worker may not ask."""
    with HTTPServer(("127.0.0.1", 0), Counted) as running:
        state: Any = running
        state.asked = 0
        thread = Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield state
        running.shutdown()
        thread.join()


def test_host_sends_the_worker_to_no_clone_bundle(server: CommandServer, tmp_path: Path, elsewhere: Any) -> None:
    with HostileHost(bundle=bundle()) as hostile:
        address = f"http://127.0.0.1:{elsewhere.server_address[1]}/x.hg"
        for name in ("clonebundles", "clonebundles_manifest"):
            hostile.answers[name] = f"{address} BUNDLESPEC=none-v2\n".encode()
        attempt(tmp_path / "clones", server, hostile.url)
    assert "getbundle" in hostile.asked
    assert elsewhere.asked == 0


@pytest.mark.parametrize("is_within", [False, True], ids=["alone", "within another part"])
def test_host_sends_the_worker_to_no_other_address(
    server: CommandServer, tmp_path: Path, elsewhere: Any, is_within: bool
) -> None:
    url = f"http://127.0.0.1:{elsewhere.server_address[1]}/x".encode()
    bad = part(b"remote-changegroup", {b"url": url, b"size": b"1"})
    content = interrupted(part(b"changegroup", {b"version": b"02"}), bad) if is_within else bad
    with HostileHost(bundle=bundle(content)) as hostile:
        attempt(tmp_path / "clones", server, hostile.url)
    assert "getbundle" in hostile.asked
    assert elsewhere.asked == 0


# Makes a repository with a file whose name leads out of it.
LEADING_OUT = """
import sys
from mercurial import context, ui
from pushlog.versions import factory, initialize

initialize()
repo = factory.repository(ui.ui.load(), sys.argv[1].encode(), create=True)
name = sys.argv[2].encode()
file = lambda repo, ctx, path: context.memfilectx(repo, ctx, path, b"theirs")
parents = [repo.nodeconstants.nullid] * 2
repo.commitctx(context.memctx(repo, parents, b"out", [name], file, user=b"dana", date=b"0 0"))
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["../../../../../victim/authorized_keys", "../../.hg/hgrc", "/etc/x"])
def test_names_of_files_in_changesets_lead_nowhere(
    server: CommandServer, host: HgHost, tmp_path: Path, victim: Path, name: str
) -> None:
    repository = f"out{len(name)}"
    subprocess.run([sys.executable, "-c", LEADING_OUT, host.folder / repository, name], check=True)
    before = set(tmp_path.rglob("*"))
    nodes = [*host.changesets(repository)]
    with contextlib.suppress(HgFailed, CloneUnavailable):
        read(tmp_path / "clones", server, host.url(repository), nodes)
    made = set(tmp_path.rglob("*")) - before - {tmp_path / "clones"}
    assert all(path.is_relative_to(tmp_path / "clones") for path in made)
    assert not list((tmp_path / "clones").rglob("hgrc"))
    assert victim.read_text() == "ours\n"


# -- interrupted clones


def interrupt(clone: Path, files: Mapping[bytes, bytes] = HOSTILE) -> None:
    """Leave the files of a host, and an abandoned transaction, in a clone."""
    for name, content in files.items():
        (clone / ".hg" / "store" / os.fsdecode(name)).write_bytes(content)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["poll-1", ".poll-1.new"])
def test_interrupted_clone_is_made_anew_and_never_rolled_back(
    server: CommandServer, host: HgHost, tmp_path: Path, victim: Path, name: str
) -> None:
    nodes = host.add(f"again{len(name)}", 2)
    clone = tmp_path / "clones" / name
    hg("init", str(clone))
    interrupt(clone)
    assert read(tmp_path / "clones", server, host.url(f"again{len(name)}"), nodes) == set(nodes)
    assert victim.read_text() == "ours\n"
    assert sorted(each.name for each in (tmp_path / "clones").iterdir()) == [".poll-1.lock", "poll-1"]
    assert not (tmp_path / "clones/poll-1/.hg/store/payload").exists()


def test_interrupted_clone_stays_until_the_new_one_is_complete(
    server: CommandServer, host: HgHost, tmp_path: Path
) -> None:
    nodes = host.add("stays", 2)
    read(tmp_path, server, host.url("stays"), nodes)
    interrupt(tmp_path / "poll-1")
    before = (tmp_path / "poll-1").stat().st_ino
    with pytest.raises(HgFailed):
        read(tmp_path, server, "http://127.0.0.1:1/stays", nodes)
    assert (tmp_path / "poll-1").stat().st_ino == before
    assert read(tmp_path, server, host.url("stays"), nodes) == set(nodes)
    assert not (tmp_path / "poll-1/.hg/store/journal").exists()


class LateProxy(CuttingProxy):
    """Cuts an answer once Mercurial has begun to write."""

    most = 500_000


def grow(host: HgHost, name: str) -> list[str]:
    """Make a repository longer by more than passes through the proxy."""
    (host.folder / name / "large").write_bytes(os.urandom(1_000_000))
    return host.extend(name, 1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("has_clone", [True, False], ids=["pull", "clone"])
def test_worker_killed_within_a_pull_makes_the_clone_anew(
    server: CommandServer, host: HgHost, tmp_path: Path, has_clone: bool
) -> None:
    name = f"killed{has_clone}"
    nodes, before = host.add(name, 1), 0
    if has_clone:
        read(tmp_path, server, host.url(name), nodes)
        before = (tmp_path / "poll-1").stat().st_ino
    nodes = grow(host, name)
    journal = tmp_path / ("poll-1" if has_clone else ".poll-1.new") / ".hg/store/journal"
    with cutting(host, CuttingProxy.stall, LateProxy) as proxy:
        url = f"http://127.0.0.1:{proxy.server_address[1]}/{name}"
        worker = subprocess.Popen([sys.executable, "-c", READ, str(tmp_path), url, *nodes])
        eventually(journal.exists, "the transaction of the pull")
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        with contextlib.suppress(ProcessLookupError):
            eventually(lambda: not is_held(journal), "the end of Mercurial")
    assert journal.exists()
    assert read(tmp_path, server, host.url(name), nodes) == set(nodes)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".poll-1.lock", "poll-1"]
    assert (tmp_path / "poll-1").stat().st_ino != before


def is_held(journal: Path) -> bool:
    """Return whether the process lives that holds the lock of a clone."""
    pid = os.readlink(journal.with_name("lock")).rpartition(":")[2]
    return Path(f"/proc/{pid}").exists()


def test_pull_that_takes_too_long_is_undone_and_its_clone_stays(
    hasty: CommandServer, server: CommandServer, host: HgHost, tmp_path: Path
) -> None:
    nodes = host.add("long", 1)
    read(tmp_path, server, host.url("long"), nodes)
    before = (tmp_path / "poll-1").stat().st_ino
    nodes = grow(host, "long")
    with cutting(host, CuttingProxy.stall, LateProxy) as proxy, pytest.raises(HgFailed, match="did not end within 3 s"):
        read(tmp_path, hasty, f"http://127.0.0.1:{proxy.server_address[1]}/long", nodes)
    assert not (tmp_path / "poll-1/.hg/store/journal").exists()
    assert read(tmp_path, server, host.url("long"), nodes) == set(nodes)
    assert (tmp_path / "poll-1").stat().st_ino == before


def test_worker_that_stops_within_a_pull_undoes_it(server: CommandServer, host: HgHost, tmp_path: Path) -> None:
    nodes = host.add("stopped", 1)
    read(tmp_path, server, host.url("stopped"), nodes)
    nodes = grow(host, "stopped")
    journal = tmp_path / "poll-1/.hg/store/journal"
    with cutting(host, CuttingProxy.stall, LateProxy) as proxy:
        url = f"http://127.0.0.1:{proxy.server_address[1]}/stopped"
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read, tmp_path, server, url, nodes)
            eventually(journal.exists, "the transaction of the pull")
            server.end()
            assert isinstance(reading.exception(), HgFailed | Unavailable)
    assert not journal.exists()
