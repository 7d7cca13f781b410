# SPDX-License-Identifier: GPL-2.0-or-later
"""What a power cut took, or a lost disk, stays refused until it is served again, or until nothing says that it ever comes."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.mirror import MirrorSettings
from hgext.vcsreplicator.mirror.checkpoint import before_first
from hgext.vcsreplicator.mirror.supervision import boot
from hgext.vcsreplicator.mirror.supervision.life import Following
from hgext.vcsreplicator.mirror.supervision.losses import PowerLosses
from hgext.vcsreplicator.mirror.supervision.state import RepositoryTable
from hgext.vcsreplicator.words.records import Ack
from testing.builders.mirror.lives import put
from testing.faults.system import System


class Machine:
    """A mirror's root, its repository at `project/repo`, and the boots of the machine."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.root = folder, folder / "root"
        self.root.mkdir()
        self.boot("first")
        self.table = RepositoryTable()
        self.repo = self.table.get_or_add("id", "project/repo")

    def boot(self, name: str) -> None:
        (self._folder / "boot").write_text(name)
        boot._whole.clear()

    def lose_disk(self) -> None:
        """Let the root be filled anew, on another machine."""
        (self.root / boot.FILE).unlink()
        self.boot("another machine's")

    def start(self, *, acked: int, serving: int, released: int = 9, incarnation: str | None = "inc") -> PowerLosses:
        """Start the service, which served up to `acked` before."""
        self.find(serving=serving, released=released, incarnation=incarnation, master_path="project/repo")
        settings = MirrorSettings(name="alpha", root=str(self.root))
        losses = PowerLosses(cast(Any, SimpleNamespace(settings=settings, table=self.table)))
        level: dict[str, Any] = {"applied": acked, "serving": acked, "applied_at": 1.0, "served_at": 1.0}
        losses.compare({"id": Ack(mirror="alpha", repository="id", incarnation="inc", event="e", digest="d", **level)})
        return losses

    def find(self, **members: Any) -> Following:
        put(self.repo, **members)
        return self.repo

    @property
    def is_refused(self) -> bool:
        return boot.is_behind(f"{self.root}/project/repo")


@pytest.fixture
def machine(boot_id: Path) -> Machine:
    machine = Machine(boot_id.parent)
    machine.start(acked=5, serving=5)
    return machine


def test_a_repository_is_refused_until_it_serves_what_was_acknowledged(machine: Machine) -> None:
    assert not machine.is_refused
    machine.boot("second")
    assert machine.is_refused
    losses = machine.start(acked=5, serving=3)
    for serving, is_refused in ((3, True), (4, True), (5, False)):
        machine.find(serving=serving)
        losses.look()
        assert machine.is_refused is is_refused


def test_a_service_killed_while_it_restores_still_knows_what_lacked(machine: Machine) -> None:
    machine.boot("second")
    machine.start(acked=5, serving=3)
    for name in ("second", "third"):  # its new ack has the lower level
        machine.boot(name)
        losses = machine.start(acked=3, serving=3)
        assert machine.is_refused
    losses.end()
    machine.boot("fourth")
    assert machine.is_refused
    machine.start(acked=3, serving=5)
    assert not machine.is_refused


def test_a_mirror_says_why_it_serves_less_than_it_acknowledged(machine: Machine) -> None:
    """A root that was filled anew is no power cut, and clients wait only for what it lacks."""
    with capture_logs() as lines:
        machine.boot("second")
        machine.start(acked=5, serving=3)
        machine.start(acked=3, serving=3)  # killed, and started again
        machine.lose_disk()
        machine.start(acked=5, serving=5)
        machine.lose_disk()
        machine.start(acked=5, serving=4)
    found = [line["reason"] for line in lines if line["event"] == "less served than acknowledged"]
    assert found == ["power cut", "not restored yet", "the root is new"]


@pytest.mark.parametrize(
    "lost", [{"released": 3}, {"incarnation": None}, {"incarnation": "next"}], ids=["releases", "states", "incarnation"]
)
def test_nothing_is_waited_for_that_the_log_lost(machine: Machine, lost: dict[str, Any]) -> None:
    machine.boot("second")
    losses = machine.start(acked=5, serving=3)
    assert machine.is_refused
    machine.find(**lost)
    losses.look()
    assert not machine.is_refused


def test_a_power_cut_that_brings_an_older_incarnation_back_is_a_loss(machine: Machine) -> None:
    for incarnation, is_refused in (("former", True), ("inc", False)):
        machine.boot(f"second, {incarnation}")
        machine.find(checkpoint=before_first("id", incarnation, "project/repo", 1))
        machine.start(acked=5, serving=9)
        assert machine.is_refused is is_refused


def test_looks_at_what_lacks_ask_the_disk_once(machine: Machine, system: System) -> None:
    machine.boot("second")
    losses = machine.start(acked=5, serving=3)
    system.watch(lambda path: pytest.fail(f"{path}: five looks a second, at perhaps 10,000 repositories"), "os.lstat")
    losses.look()


def test_a_repository_that_leaves_the_mirror_is_waited_for_no_more(machine: Machine) -> None:
    machine.boot("second")
    losses = machine.start(acked=5, serving=3)
    machine.table.remove(machine.repo)
    losses.look()
    assert not machine.is_refused


def test_an_orderly_restart_of_the_machine_refuses_nothing(machine: Machine) -> None:
    machine.start(acked=5, serving=5).end()
    machine.boot("second")
    assert not machine.is_refused


def test_a_restored_backup_in_the_same_boot_is_no_power_cut(machine: Machine) -> None:
    machine.start(acked=5, serving=3)
    assert not machine.is_refused


def test_a_service_that_starts_again_in_the_same_boot_needs_no_room(machine: Machine, system: System) -> None:
    machine.boot("second")
    machine.start(acked=5, serving=3)
    system.refuse(errno.ENOSPC, "os.rename", at=f"{machine.root}/*")  # then the service would end
    machine.start(acked=3, serving=3)
    found = boot.read(str(machine.root))
    assert found is not None
    assert (machine.is_refused, list(found.lacking)) == (True, ["id"])


def test_a_full_disk_keeps_a_repository_refused_until_there_is_room(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.boot("second")
    losses = machine.start(acked=5, serving=3)
    machine.find(serving=5)
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(boot, "write", fail)
        losses.look()
    assert machine.is_refused
    losses.look()
    assert not machine.is_refused
