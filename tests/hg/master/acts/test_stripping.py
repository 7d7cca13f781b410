# SPDX-License-Identifier: GPL-2.0-or-later
"""What the event of a strip says of heads, and a strip that Mercurial refuses."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.event import Event
from testing.builders.master.pushing import Master

pytestmark = pytest.mark.processes

# A command of a site's extension that strips where Mercurial lets no one strip.
INSIDE = """
from mercurial import registrar, repair
cmdtable = {}
command = registrar.command(cmdtable)
@command(b"stripinside")
def inside(ui, repo):
    with repo.lock(), repo.transaction(b"inside"):
        repair.strip(ui, repo, [repo[b"tip"].node()])
"""


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


def test_a_strip_inside_a_transaction_is_refused_for_good(master: Master) -> None:
    extension = master.folder / "inside.py"
    extension.write_text(INSIDE)
    master.create("one")
    master.commit("one", "a")
    master.push("one")
    one = ("-R", str(master.root / "one"))
    said = master.operate(*one, "stripinside", "--config", f"extensions.inside={extension}", check=False)
    assert "cannot strip from inside a transaction" in said
    master.operate(*one, "bookmark", "-r", "tip", "here")
    assert newest(master).after.length == 1
