# SPDX-License-Identifier: GPL-2.0-or-later
"""A promotion that is killed at any line is completed by the next one, which a third one leaves as it is."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import SERVICES, NewRecord
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.outbox.file import outbox_of
from hgext.vcsreplicator.relay.mastership import read_master
from hgext.vcsreplicator.words.event import OFFERS_NO_MARKERS, MasterSettings, Type
from hgext.vcsreplicator.words.records import ServiceReport
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.mirror.mirroring import NAME, Bench
from testing.faults import PythonSteps, first_visits
from testing.waiting import eventually
from testing.warm import CLI, PROGRAM, warm_starts

pytestmark = [pytest.mark.processes, pytest.mark.hunt]

WATCHED = ("cli/promote.py", "hg/promoting.py", "relay/mastership.py", "mercurial/transaction.py")


class Promotion:
    """A stopped mirror with all that its lost master had sent, and the command; `begin` makes all as it was before."""

    def __init__(self, folder: Path) -> None:
        self._made, self._kept, self._config = folder / "made", folder / "kept", folder / "services.toml"
        with Bench(self._made) as bench:
            author = bench.author("x")
            author.push(count=2)
            author.event(Type.SYNC, settings=MasterSettings(evolution=OFFERS_NO_MARKERS, publishing=False))
            bench.send(author)
            with bench.mirror():
                bench.wait_applied(author)
                bench.release(author, source="hg://old")
                bench.wait_served(author)
                eventually(bench.everything_passed, "all positions stored")
            self.root, self._url = bench.root, bench.url
        self._config.write_text(
            f'log = "{self._url}"\n[relay]\nsocket = "{folder}/relay.sock"\nsource = "hg://alpha"\n'
            f'[relay.roots]\n"{self.root}" = ""\n[mirror.{NAME}]\nroot = "{self.root}"\nmaster = "https://master/"\n'
        )
        self._made.rename(self._kept)

    def begin(self) -> None:
        shutil.rmtree(self._made, ignore_errors=True)
        shutil.copytree(self._kept, self._made, symlinks=True)

    def run(self, environment: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
        words = [*PROGRAM, CLI, "promote", NAME, "--yes", "--config", str(self._config)]
        report = NewRecord(topic=SERVICES, key="notifier here", value=to_json(ServiceReport(time=1.0, version="1")))
        with open_log(self._url) as log:
            log.append([report])  # so that the command knows the time, and does not wait for a record
        with warm_starts():
            return subprocess.run(words, env=dict(environment), capture_output=True, text=True, check=False)

    def describe(self) -> dict[str, object]:
        """What the new master goes on with."""
        box, hgrc = outbox_of(str(self.root / "x")), self.root / "x" / ".hg" / "hgrc"
        with open_log(self._url) as log:
            master = read_master(log)
        return {
            "master": master and (master.source, master.replaces),
            "newest": box.newest(),
            "sent": not box.has_unsent(),
            "entries": len(list(box.kept())),
            "fork": box.fork(),
            "journal": (self.root / "x" / ".hg" / "store" / "journal").exists(),
            "hgrc": hgrc.read_text() if hgrc.exists() else None,
            "notes": sorted(path.name for path in (self.root / ".vcsreplicator").iterdir()),
        }


@pytest.fixture
def promotion(tmp_path: Path) -> Promotion:
    return Promotion(tmp_path)


def kill_everywhere(promotion: Promotion, record: Path, *, every: int) -> None:
    steps = PythonSteps(files=WATCHED, argument="promote", record=record)
    promotion.begin()
    places = steps.taken(promotion.run)
    expected = promotion.describe()
    for step in first_visits(places)[::every]:
        promotion.begin()
        place = steps.taken(promotion.run, kill_at=step)[-1]
        for _ in range(2):
            done = promotion.run()
            assert done.returncode == 0, f"killed at {place}: {done.stderr}"
            assert promotion.describe() == expected, f"killed at {place}"


def test_a_promotion_that_cannot_write_a_file_names_it_and_is_completed(promotion: Promotion) -> None:
    promotion.begin()
    obstacle = promotion.root / "x" / ".hg" / "hgrc.new"
    obstacle.mkdir()
    said = f"{promotion.root}/x: [Errno 21] Is a directory: '{obstacle}'; remove the cause, then run this again\n"
    assert promotion.run().stderr.endswith(said)
    obstacle.rmdir()
    assert promotion.run().returncode == 0
    assert promotion.describe()["sent"]


def test_a_promotion_killed_at_a_few_lines_is_completed(promotion: Promotion, tmp_path: Path) -> None:
    kill_everywhere(promotion, tmp_path / "steps", every=30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_promotion_killed_at_each_line_is_completed(promotion: Promotion, tmp_path: Path) -> None:
    kill_everywhere(promotion, tmp_path / "steps", every=1)
