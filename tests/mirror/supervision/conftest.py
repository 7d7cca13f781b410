# SPDX-License-Identifier: GPL-2.0-or-later
"""A supervisor over a log of one partition."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror.supervision import boot, catchup
from testing.builders.mirror.supervising import Bench, Reader


@pytest.fixture(scope="session")
def empty_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a log with its topics, which each test copies: to make another takes twice as long."""
    folder = tmp_path_factory.mktemp("empty-log")
    with open_log(f"sqlite://{folder}/log.db", creates=True) as log:
        log.create(topics(partitions=1))
    return folder


@pytest.fixture
def bench(tmp_path: Path, empty_log: Path) -> Iterator[Bench]:
    shutil.copytree(empty_log, tmp_path, dirs_exist_ok=True)
    with open_log(f"sqlite://{tmp_path}/log.db") as log:
        bench = Bench(tmp_path, log)
        yield bench
        bench.close()


@pytest.fixture
def boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that names the machine's boot; nothing is known of any boot yet."""
    monkeypatch.setattr(boot, "BOOT_ID", tmp_path / "boot")
    monkeypatch.setattr(boot, "_whole", set())
    return tmp_path / "boot"


@pytest.fixture
def played_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What catches up is read by nothing; `Reader.running` says for what a thread would read."""
    Reader.running = []
    monkeypatch.setattr(catchup, "Source", Reader)
