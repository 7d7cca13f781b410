# SPDX-License-Identifier: GPL-2.0-or-later
"""A note of an interrupted act that names a place outside the roots moves nothing: neither the relay nor a push obeys it."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from hgext.vcsreplicator.hg.master import intents
from hgext.vcsreplicator.hg.master.intents import Intent
from testing.builders.master.pushing import Master, new_master

pytestmark = pytest.mark.processes

LOOK = """
import sys
from hgext.vcsreplicator.hg.relaying import MasterRepositories
print(MasterRepositories({sys.argv[1]: ""}, "hg://master").finish(sys.argv[1]))
"""


@pytest.fixture
def master() -> Iterator[Master]:
    with new_master("acknowledge-timeout = 0.1") as master:
        yield master


def test_the_note_of_an_act_stays_while_the_disk_does_not_show_its_repository(master: Master) -> None:
    master.create("one")
    level = master.outbox("one").newest()
    assert level is not None
    root = str(master.root)
    members = {"repository": level.repository, "seq": level.seq, "path": "one", "folder": f"{root}/one"}
    intents.write(root, Intent(kind="renamed", to=f"{root}/two", to_path="two", to_root=root, **members))
    (master.root / "one" / ".hg").rename(master.root / "hidden")
    (master.root / "one" / ".hg").symlink_to(".hg")  # who looks gets ELOOP
    done = subprocess.run([sys.executable, "-c", LOOK, root], capture_output=True, text=True, check=True)
    assert "rename not finished: " in done.stdout
    assert intents.read(root, "one") is not None


def test_a_hostile_note_moves_no_repository_out_of_the_roots(master: Master) -> None:
    master.create("one")
    level = master.outbox("one").newest()
    assert level is not None
    root, elsewhere = str(master.root), master.folder / "elsewhere"
    note = Intent(
        kind="renamed",
        repository=level.repository,
        seq=level.seq - 1,
        path="one",
        folder=f"{root}/one",
        to=str(elsewhere),
        to_path="two",
        to_root=root,
    )
    intents.write(root, note)
    done = subprocess.run([sys.executable, "-c", LOOK, root], capture_output=True, text=True, check=True)
    assert "Intent.to: expected a folder below" in done.stdout
    master.commit("one", "a")
    assert "Intent.to: expected a folder below" in master.push("one", check=False)
    assert (master.root / "one").is_dir()
    assert not elsewhere.exists()
