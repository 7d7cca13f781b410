# SPDX-License-Identifier: GPL-2.0-or-later
"""The outbox with which a mirror's repository goes on as the master's."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mercurial.utils import cborutil

from hgext.vcsreplicator.hg import observe
from hgext.vcsreplicator.hg.promoting import continue_outbox, keep_drafts, read_hgrc
from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.mirror.checkpoint import Checkpoint, before_first
from hgext.vcsreplicator.outbox.entry import NewestEvent
from hgext.vcsreplicator.outbox.file import Outbox, outbox_of
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.event import ClientSettings
from testing.builders.master.pushing import Master, new_master
from testing.checks.agreement import page
from testing.faults.system import System


@pytest.fixture
def hgrc(tmp_path: Path) -> Path:
    """The hgrc of a repository, which this user alone may write."""
    (tmp_path / ".hg").mkdir()
    (tmp_path / ".hg" / "hgrc").write_text("[hooks]\nx.y = true\n")
    (tmp_path / ".hg" / "hgrc").chmod(0o4640)
    return tmp_path / ".hg" / "hgrc"


def test_an_hgrc_is_handed_over_without_the_right_of_its_owner(hgrc: Path) -> None:
    handed = read_hgrc(str(hgrc.parent.parent))
    assert handed is not None
    assert (handed.content, handed.mode) == ("[hooks]\nx.y = true\n", 0o640)


@pytest.mark.parametrize("case", ["mode", "owner", "link"])
def test_an_hgrc_that_others_may_have_written_is_not_handed_over(hgrc: Path, case: str, system: System) -> None:
    """The new master's services own all that is handed over, so that its hooks would run."""
    if case == "mode":
        hgrc.chmod(0o660)
    elif case == "link":
        hgrc.rename(hgrc.with_name("other"))
        hgrc.symlink_to("other")
    elif os.geteuid() == 0:
        os.chown(hgrc, 12345, 12345)
    else:
        system.become(12345)
    assert read_hgrc(str(hgrc.parent.parent)) is None


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


@pytest.mark.processes
@pytest.mark.parametrize(
    ("publishing", "before", "after"),
    [
        (False, None, "no"),
        (False, "[web]\nallow-archive = zip\n", "no"),
        (False, "[phases]\npublish = yes\n", "yes"),
        (True, None, ""),
    ],
)
def test_a_promoted_master_keeps_drafts_as_the_former_one_did(
    publishing: bool, before: str | None, after: str, folder: Path
) -> None:
    checkpoint = replace(checkpoint_of(folder), settings=ClientSettings(publishing=publishing))
    hgrc = folder / ".hg/hgrc"
    if before is not None:
        hgrc.write_text(before)
    keep_drafts(str(folder), checkpoint)
    keep_drafts(str(folder), checkpoint)  # as after a kill
    text = hgrc.read_text() if hgrc.exists() else ""
    assert text.count("publish = ") == bool(after)
    assert f"publish = {after}" in text or not after
    assert (before or "") in text


@pytest.mark.processes
@pytest.mark.parametrize("case", ["link", "no settings"])
def test_an_hgrc_that_cannot_be_read_is_named_at_a_promotion(case: str, folder: Path) -> None:
    hgrc = folder / ".hg/hgrc"
    if case == "link":
        hgrc.symlink_to("other")
    else:
        hgrc.write_text("[phases\n")
    with pytest.raises(Refused, match=f"{hgrc}: .*expected a file that Mercurial can read"):
        keep_drafts(str(folder), replace(checkpoint_of(folder), settings=ClientSettings(publishing=False)))


@pytest.mark.processes
def test_a_promoted_master_shows_pushes_after_the_last_release() -> None:
    with new_master() as master:
        master.create("x")
        for text in ("released to the mirror", "pushed to the new master"):
            master.commit("x", text)
            master.push("x")
        released = cborutil.streamencode({b"heads": [], b"last_push_id": 1})
        (master.root / "x/.hg/replicated-data").write_bytes(b"".join(released))
        with master.serve("x") as url:
            assert '"lastpushid": 2' in page(f"{url}json-pushes?version=2")[1]
