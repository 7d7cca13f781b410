# SPDX-License-Identifier: GPL-2.0-or-later
"""What the event of a strip says of heads."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.event import Event
from testing.builders.master.pushing import Master

pytestmark = pytest.mark.processes


@pytest.fixture
def master() -> Iterator[Master]:
    folder = Path(tempfile.mkdtemp(prefix="push-"))
    yield Master(folder, f"relay = {folder}/relay.sock\nacknowledge-timeout = 0.1").set_up()
    shutil.rmtree(folder)


def nodes(master: Master, revisions: str) -> list[str]:
    return master.develop("-R", str(master.folder / "clone-one"), "log", "-T", "{node}\n", "-r", revisions).split()


def newest(master: Master) -> Event:
    return list(master.outbox("one").kept())[-1].entry.event


def test_heads_of_a_push_come_by_revision_and_those_of_a_strip_by_node(master: Master) -> None:
    master.create("one")
    clone = ("-R", str(master.folder / "clone-one"))
    for number in range(5):  # four changesets on the first
        master.develop(*clone, "update", "-q", "-r", "0" if number else "null")
        (master.folder / "clone-one" / f"file{number}").write_text("")
        master.develop(*clone, "commit", "-q", "-A", "-d", "0 0", "-m", str(number))
    master.push("one", "--force")
    heads = nodes(master, "1:4")
    assert heads != sorted(heads)
    assert list(newest(master).changes.heads_added) == heads
    for number in range(1, 4):  # all become one head
        master.develop(*clone, "merge", "-q", "-r", str(number))
        master.develop(*clone, "commit", "-q", "-d", "0 0", "-m", "merge")
    master.push("one")
    [first, _, last] = nodes(master, "5:7")
    master.operate("-R", str(master.root / "one"), "strip", "-q", "--no-backup", first)
    assert newest(master).changes.heads_added == tuple(sorted(heads))
    assert newest(master).changes.heads_removed == (last,)
