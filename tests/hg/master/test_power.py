# SPDX-License-Identifier: GPL-2.0-or-later
"""The power goes at any sync of a push or a strip: for any part of the rest on disk, it is there whole or rolled back whole.

It runs, traced. At each of its syncs the disk is rebuilt as a cut just before it may leave it: with nothing but what was
synced, with names and no content, with content and no names, with zeros, and as chance will have it. Then a relay comes up, and
what must hold after a kill must hold: changelog, pushlog and events agree, and what the pusher was told to be accepted is there.
"""

import itertools
import random
import shutil
import sqlite3
from contextlib import closing

import pytest

from testing.builders.master.pushing import HG
from testing.faults import SEED, told_with_seed
from testing.faults.powercut import Disk, Trace, write
from tests.hg.master.test_crash import SCENARIOS, Site, looks, site, strike

pytestmark = pytest.mark.processes

__all__ = ["site"]

UNSENT = ["--config", "vcsreplicator.log=", "--config", "vcsreplicator.relay=/nowhere"]
# Exit codes: 1 says that no changesets were pushed.
DONE = (0, 1)
SCENARIO = {
    name: [*SCENARIOS[name][0], *UNSENT]
    for name in ("changesets, bookmarks, phases and markers", "a bookmark", "a push in a share", "markers", "strip")
}


def cuts(site: Site, scenario: str, *, by_chance: int, sample: int | None) -> int:
    """Cuts the power at every sync, or as often as `sample` says; the number of cuts."""
    site.reset()
    before, folder, trace = looks(site), str(site.work / "repos"), Trace(log=site.template / "trace")
    disk = Disk.of(folder)
    assert site.run([*trace.argv(), *SCENARIO[scenario]]) in DONE
    chance = random.Random(f"{SEED} {scenario}")
    left = []
    for call in trace.calls():
        if call.is_sync:
            left += [(f"before {call.name} of {call.place}", state, False) for state in disk.cuts(chance, by_chance)]
        disk.take(call)
    left += [("at the end", state, True) for state in disk.cuts(chance, by_chance)]
    assert disk.present() == Disk.of(folder).present(), "the replay is not what happened"
    site.restart()
    after = looks(site)
    assert after != before
    chosen = left if sample is None else chance.sample(left, sample)
    for what, state, accepted in chosen:
        shutil.copy2(site.start / "log.db", site.work / "log.db")
        for rest in ("log.db-wal", "log.db-shm"):
            (site.work / rest).unlink(missing_ok=True)
        write(state, folder)
        with told_with_seed(f"{scenario}: power cut {what}"):
            strike(site, before, after, accepted=accepted)
    return len(chosen)


@pytest.mark.timeout(600)
def test_one_sync_of_the_journal_protects_index_pushlog_and_outbox(site: Site) -> None:
    site.reset()
    trace = Trace(log=site.template / "trace")
    assert site.run([*trace.argv(), *SCENARIO["changesets, bookmarks, phases and markers"]]) in DONE
    steps = [
        (call.name, call.place.rpartition("/store/")[2], b"".join(call.texts))
        for call in trace.calls()
        if "/store/" in call.place
    ]
    written = [name if what == "write" else "" for what, name, _ in steps]
    index, outbox = written.index("00changelog.i"), written.index("outbox.0001.log")
    synced = max(place for place, step in enumerate(steps[:index]) if step[:2] == ("fdatasync", "journal"))
    journal = b"".join(text for what, name, text in steps[:synced] if (what, name) == ("write", "journal"))
    assert b"00changelog.i\0" in journal
    assert b"pushlog.log\0" in journal
    assert b"outbox.0001.log\0" in journal
    assert "journal" not in written[synced:outbox]  # so nothing else waits for a sync of it


@pytest.mark.timeout(600)
def test_one_sync_of_the_journal_protects_all_files_of_a_push(site: Site) -> None:
    """Else a power cut could leave a part of what was appended, and no index of such a file can be read."""
    site.reset()
    for name in ("x", "y", "z"):
        (site.work / "clone" / name).write_text(name)
    assert site.run([HG, "-R", "clone", "commit", "-q", "-A", "-m", "several"]) == 0
    trace = Trace(log=site.template / "trace")
    assert site.run([*trace.argv(), HG, "-R", "clone", "push", "-f", "-r", "tip", "repos/one", *UNSENT]) in DONE
    steps = [(call.name, call.place.rpartition("/store/")[2]) for call in trace.calls() if "/store/" in call.place]
    manifests = steps.index(("write", "00manifest.i"))
    files = [place for place, step in enumerate(steps) if step[0] == "write" and step[1].startswith("data/")]
    assert len({steps[place] for place in files}) > 3
    assert manifests < files[0]
    between = [step for step in steps[manifests : files[-1]] if step[1] == "journal"]
    assert between == []
    assert ("fdatasync", "journal") in steps[:manifests]


@pytest.mark.timeout(600)
def test_a_commit_of_the_pushlogs_database_cannot_be_undone_in_part(site: Site) -> None:
    site.reset()
    trace = Trace(log=site.template / "trace")
    assert site.run([*trace.argv(), *SCENARIO["changesets, bookmarks, phases and markers"]]) in DONE
    steps = [(call.name, call.place.rpartition("/.hg/")[2]) for call in trace.calls()]
    turns = [turn for turn, _ in itertools.groupby(step for step in steps if step[1].startswith("pushlog2.db"))]
    journal, database = "pushlog2.db-journal", "pushlog2.db"
    begun = turns.index(("pwrite64", database))
    assert turns[begun - 2 : begun] == [("pwrite64", journal), ("fdatasync", journal)]
    assert turns[begun + 1 :] == [("fdatasync", database), ("close", journal), ("close", database)]


# The push, and what was before it, are of another boot than what comes after the power cut.
ANOTHER_BOOT = """\
from pushlog.store import boot
boot.number = lambda: 1 << 30
"""


@pytest.mark.timeout(600)
def test_a_power_cut_takes_no_push_out_of_a_pushlog_that_is_not_synced(site: Site) -> None:
    site.reset()
    folder, trace = str(site.work / "repos" / "one"), Trace(log=site.template / "trace")
    with closing(sqlite3.connect(f"{folder}/.hg/pushlog2.db")) as database:
        database.execute(f"PRAGMA user_version = {1 << 30}")
    extension = site.template / "another_boot.py"
    extension.write_text(ANOTHER_BOOT)
    options = ["--config", "vcsreplicator.durability=outbox", "--config", f"extensions.another_boot={extension}"]
    disk = Disk.of(folder)
    assert site.run([*trace.argv(), *SCENARIO["changesets, bookmarks, phases and markers"], *options]) in DONE
    for call in trace.calls():
        assert not (call.is_sync and "pushlog2.db" in call.place)
        disk.take(call)
    present, after = disk.present(), looks(site)["one"]
    prefix = f"{folder}/.hg/pushlog2.db"
    others = {path: content for path, content in present.items() if not path.startswith(prefix)}
    chance = random.Random(SEED)
    left = [{path: node for path, node in cut.items() if path.startswith(prefix)} for cut in disk.cuts(chance, 20)]
    assert any(files != left[0] for files in left)
    for number, files in enumerate(left):
        write({**others, **files}, folder)
        with told_with_seed(f"cut {number}"):
            assert looks(site)["one"] == after


def test_a_repaired_pushlog_is_on_disk_before_it_has_its_name(site: Site) -> None:
    site.reset()
    trace = Trace(log=site.template / "trace")
    assert site.run([*trace.argv(), HG, "-R", "repos/one", "repairpushlog"]) == 0
    calls = list(trace.calls())
    names = [(call.name, call.place.rpartition("/.hg")[2]) for call in calls]
    [renamed] = [
        place for place, call in enumerate(calls) if call.name.startswith("rename") and "pushlog2" in str(call.texts)
    ]
    assert ("fdatasync", "/pushlog2.db.new") in names[:renamed]
    assert ("fsync", "") in names[renamed:]


@pytest.mark.sample(1, keep=("[changesets", "[strip"))
@pytest.mark.parametrize("scenario", SCENARIO)
def test_a_power_cut_at_a_sync_leaves_a_push_whole_or_undone(site: Site, scenario: str) -> None:
    assert cuts(site, scenario, by_chance=2, sample=6) == 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", SCENARIO)
def test_a_power_cut_at_any_sync_leaves_a_push_whole_or_undone(site: Site, scenario: str) -> None:
    assert cuts(site, scenario, by_chance=10, sample=None) > 50
