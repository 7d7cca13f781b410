# SPDX-License-Identifier: GPL-2.0-or-later
"""A folder of clones that cannot be used is trouble of the installation, not of a repository."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.errors import Unavailable
from notifier.work import clones
from notifier.work.clones import Clones
from notifier.work.commandserver import CommandServer, HgFailed
from notifier.work.database import RepositoryKey

pytestmark = pytest.mark.processes

A_KEY = RepositoryKey(source="poll", number=1, url="http://127.0.0.1:1/x")


@pytest.fixture
def server() -> Iterator[CommandServer]:
    with closing(CommandServer(timeout=60.0, memory=4 * 1024**3)) as server:
        yield server


@pytest.mark.parametrize(
    "folder",
    ["/proc", "/proc/missing", "{}/a file", "{}/a file/clones"],  # no user, not even root, can make a file in any
    ids=["nothing can be written", "missing", "a file", "below a file"],
)
def test_a_folder_that_cannot_be_written_uses_no_retry(
    server: CommandServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setattr(clones, "LEAST_FREE", 0)
    with pytest.raises(Unavailable, match=f"^work.clones: {folder.format(tmp_path)}: "):
        Clones(folder.format(tmp_path)).read(server, A_KEY, ["a" * 40])


def test_a_host_that_is_away_uses_a_retry(server: CommandServer, tmp_path: Path) -> None:
    with pytest.raises(HgFailed):
        Clones(str(tmp_path)).read(server, A_KEY, ["a" * 40])
    assert [each.name for each in tmp_path.iterdir()] == ["poll-1"]
