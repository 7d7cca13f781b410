# SPDX-License-Identifier: GPL-2.0-or-later
"""Recording takes memory for a portion of a push, however large the push is."""

import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from notifier.messages.pushes import QueuedPush
from notifier.services.work import clones
from notifier.services.work.clones import Clones
from notifier.services.work.commandserver import CommandServer, HgFailed
from notifier.services.work.database import RepositoryKey, WorkDatabase
from notifier.services.work.recording import record_pushes
from testing.builders.notifier.working import HgHost, hg, recorded

pytestmark = pytest.mark.processes

# A URL where no repository is, and what allows it.
A_FORMER, ALLOWED = "http://127.0.0.1:1/former", ("http://127.0.0.1:1/",)

# An extension with the command `bulk COUNT SIZE`: changesets whose descriptions have so many characters.
BULK = """
from mercurial import context, registrar
cmdtable = {}

@registrar.command(cmdtable)(b"bulk", [], b"COUNT SIZE")
def bulk(ui, repo, count, size):
    with repo.lock(), repo.transaction(b"bulk"):
        for number in range(int(count)):
            text = b"%d " % number + b"x" * int(size)
            context.memctx(repo, (repo[b"tip"].node(), repo.nullid), text, [], lambda *_: None, b"dana").commit()
"""

# An extension with the command `names COUNT SIZE`: a changeset that names so many files, of which it has none.
NAMES = """
from mercurial import metadata, registrar
cmdtable = {}

@registrar.command(cmdtable)(b"names", [], b"COUNT SIZE")
def names(ui, repo, count, size):
    files = metadata.ChangingFiles(touched={b"%0*d" % (int(size), number) for number in range(int(count))})
    with repo.lock(), repo.transaction(b"names") as transaction:
        repo.changelog.add(repo.nullid, files, b"text", transaction, repo.nullid, repo.nullid, b"dana", b"0 0")
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HgHost]:
    with HgHost(tmp_path_factory.mktemp("host")) as running:
        yield running


@pytest.fixture
def server(warm_pulls: None) -> Iterator[CommandServer]:
    with closing(CommandServer(timeout=60.0, memory=4 * 1024**3)) as server:
        yield server


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/work.db"


@pytest.fixture
def database(url: str) -> Iterator[WorkDatabase]:
    with closing(WorkDatabase(url)) as database:
        database.migrate()
        yield database


@pytest.fixture
def portion(monkeypatch: pytest.MonkeyPatch) -> int:
    """A quarter of the usual one, of which pushes of a quarter of the size show the same."""
    monkeypatch.setattr(clones, "PORTION", clones.PORTION // 4)
    return clones.PORTION


def make_bulk(host: HgHost, name: str, count: int, size: int) -> list[str]:
    """Make a repository with large descriptions; return all changesets."""
    host.add(name, 1)
    extension = host.folder.parent / "bulk.py"
    extension.write_text(BULK)
    hg("-R", str(host.folder / name), "--config", f"extensions.bulk={extension}", "bulk", str(count), str(size))
    return hg("-R", str(host.folder / name), "log", "-r", "all()", "-T", "{node}\n").split()


def a_push(nodes: list[str]) -> QueuedPush:
    return QueuedPush(id=1, date=1, user="dana", changesets=tuple(nodes))


def test_large_push_takes_the_memory_of_a_portion(
    host: HgHost, server: CommandServer, url: str, database: WorkDatabase, tmp_path: Path, portion: int
) -> None:
    nodes = make_bulk(host, "bulk", 200, 100_000)
    key = RepositoryKey(source="poll", number=1, url=host.url("bulk"))
    tracemalloc.start()
    try:
        record_pushes(database, Clones(str(tmp_path / "clones")), server, key, [a_push(nodes)], (host.root,))
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert recorded(url) == {host.url("bulk"): {1: nodes}}


def test_changeset_that_is_larger_than_a_portion_is_recorded(
    host: HgHost, server: CommandServer, url: str, database: WorkDatabase, tmp_path: Path, portion: int
) -> None:
    nodes = make_bulk(host, "huge", 3, portion + 1)
    key = RepositoryKey(source="poll", number=1, url=host.url("huge"))
    record_pushes(database, Clones(str(tmp_path / "clones")), server, key, [a_push(nodes)], (host.root,))
    assert recorded(url) == {host.url("huge"): {1: nodes}}


def test_a_changeset_that_names_countless_files_is_refused(server: CommandServer, tmp_path: Path) -> None:
    """Its names take fourteen times the bytes that Mercurial prints."""
    clone = tmp_path / "clones/poll-1"
    hg("init", str(clone))
    (tmp_path / "names.py").write_text(NAMES)
    hg("-R", str(clone), "--config", f"extensions.names={tmp_path}/names.py", "names", "70000", "1000")
    node = hg("-R", str(clone), "log", "-T", "{node}")
    key = RepositoryKey(source="poll", number=1, url=A_FORMER)
    with pytest.raises(HgFailed) as raised:
        Clones(str(tmp_path / "clones")).read(server, key, [node], lambda _: None)
    assert str(raised.value) == f"changeset {node}: text and names of more than 67108864 bytes"
    assert clone.exists()


def push_at(date: int, number: int, nodes: list[str]) -> QueuedPush:
    return QueuedPush(id=number, date=date, user="dana", changesets=tuple(nodes))


def test_old_message_is_pulled_from_the_present_url_of_its_repository(
    host: HgHost, server: CommandServer, url: str, database: WorkDatabase, tmp_path: Path
) -> None:
    nodes = host.add("moved", 2)
    there = Clones(str(tmp_path / "clones"))
    present = RepositoryKey(source="poll", number=1, url=host.url("moved"))
    record_pushes(database, there, server, present, [push_at(5, 5, [])], (host.root,))
    former = replace(present, url=A_FORMER)
    record_pushes(database, there, server, former, [push_at(1, 1, nodes)], (*ALLOWED, host.root))
    assert recorded(url) == {host.url("moved"): {1: nodes}}


def test_a_message_is_pulled_from_its_url_if_the_host_is_older(
    host: HgHost, server: CommandServer, url: str, database: WorkDatabase, tmp_path: Path
) -> None:
    nodes = host.add("own", 2)
    there = Clones(str(tmp_path / "clones"))
    newer = RepositoryKey(source="poll", number=1, url=host.url("gone"))
    record_pushes(database, there, server, newer, [push_at(2**33, 5, [])], (host.root,))  # of a wrong clock
    record_pushes(database, there, server, replace(newer, url=host.url("own")), [push_at(7, 6, nodes)], (host.root,))
    assert recorded(url) == {host.url("gone"): {6: nodes}}


def test_later_push_with_a_smaller_number_is_pulled_from_its_own_url(
    host: HgHost, server: CommandServer, url: str, database: WorkDatabase, tmp_path: Path
) -> None:
    nodes = host.add("renamed", 2)
    there = Clones(str(tmp_path / "clones"))
    former = RepositoryKey(source="poll", number=1, url=A_FORMER)
    record_pushes(database, there, server, former, [push_at(1, 1000, [])], ALLOWED)
    renamed = replace(former, url=host.url("renamed"))
    record_pushes(database, there, server, renamed, [push_at(2, 901, nodes)], (*ALLOWED, host.root))
    assert recorded(url) == {host.url("renamed"): {901: nodes}}


def test_present_url_that_is_no_longer_allowed_is_not_pulled(
    host: HgHost, server: CommandServer, url: str, database: WorkDatabase, tmp_path: Path
) -> None:
    nodes = host.add("allowed", 2)
    there = Clones(str(tmp_path / "clones"))
    former = RepositoryKey(source="poll", number=1, url=A_FORMER)
    record_pushes(database, there, server, former, [push_at(5, 5, [])], ALLOWED)
    allowed = replace(former, url=host.url("allowed"))
    record_pushes(database, there, server, allowed, [push_at(1, 1, nodes)], (host.root,))
    assert recorded(url) == {A_FORMER: {1: nodes}}
