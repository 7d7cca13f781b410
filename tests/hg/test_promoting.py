# SPDX-License-Identifier: GPL-2.0-or-later
"""The outbox with which a mirror's repository goes on as the master's."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.hg import observe
from hgext.vcsreplicator.hg.promoting import continue_outbox
from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.mirror.checkpoint import Checkpoint, before_first
from hgext.vcsreplicator.outbox.entry import NewestEvent
from hgext.vcsreplicator.outbox.file import Outbox, outbox_of
from hgext.vcsreplicator.words.errors import Refused
from testing.builders.master.pushing import Master, new_master


@pytest.fixture
def folder() -> Iterator[Path]:
    """A repository without an outbox."""
    with new_master() as master:
        yield _make(master)


def _make(master: Master) -> Path:
    master.operate("init", str(master.root / "x"), "--config", "extensions.vcsreplicator=!")
    return master.root / "x"


def checkpoint_of(folder: Path) -> Checkpoint:
    """What a mirror recorded at its fifth event, which has expired in the log."""
    tip = observe.tip(MasterRepositories({str(folder.parent): ""}, "hg://alpha").open(str(folder)))
    before = before_first("a" * 32, "b" * 32, "x", 2)
    return replace(before, seq=5, id="c" * 32, digest="d" * 64, length=tip.length, tip=tip.node)


@pytest.mark.processes
def test_an_outbox_goes_on_after_the_checkpoint_also_after_a_kill(folder: Path) -> None:
    repositories, checkpoint = MasterRepositories({str(folder.parent): ""}, "hg://alpha"), checkpoint_of(folder)
    box = outbox_of(str(folder))

    def promote() -> Outbox:
        continue_outbox(repositories.open(str(folder)), checkpoint, None)
        return box

    promote()
    newest = box.newest()
    assert newest == NewestEvent(**{name: getattr(checkpoint, name) for name in NewestEvent.list_members()})
    assert not box.has_unsent()
    (folder / ".hg" / "store" / "outbox.sent").unlink()  # as after a kill before it was written
    assert not promote().has_unsent()
    assert len(list(box.kept())) == 1
    checkpoint = replace(checkpoint, incarnation="f" * 32)
    with pytest.raises(Refused, match="an outbox of another history"):
        promote()
