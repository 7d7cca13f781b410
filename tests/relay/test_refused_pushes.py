# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes that a master refuses for a reason of its own: the relay reports each before its next round, for `check`."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import SERVICES, Log, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.records import ServiceReport
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.master.pushing import HG, RECORDED, Master, new_master, running_relay
from testing.waiting import eventually

pytestmark = pytest.mark.processes

# Root must lose its powers to be refused anything.
POWERLESS = [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
        yield log


@pytest.fixture
def master() -> Iterator[Master]:
    """A master with a repository of two pushes, of which a copy has one."""
    with new_master("acknowledge-timeout = 20") as master:
        yield master


def reported(log: Log) -> list[str]:
    """What the relay's newest report says."""
    record = read_table(log, SERVICES).value(SERVICES, "relay hg://master")
    return [] if record is None else [trouble.text for trouble in from_json(ServiceReport, record).troubles]


def push_locally(master: Master, *, before: Sequence[str] = ()) -> str:
    """Push to the folder as a process with other limits."""
    done = subprocess.run(
        [*before, HG, "-R", str(master.folder / "clone-one"), "push", "-q", str(master.root / "one")],
        env={**os.environ, "HGRCPATH": str(master.folder / "master.hgrc")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def restore(master: Master) -> None:
    shutil.rmtree(master.root / "one")
    shutil.copytree(master.folder / "backup", master.root / "one")


def damage_outbox(master: Master) -> None:
    with (master.root / "one/.hg/store/outbox.0001.log").open("r+b") as outbox:
        outbox.seek(-30, os.SEEK_END)
        outbox.write(b"?")


def cut_changelog(master: Master) -> None:
    os.truncate(master.root / "one/.hg/store/00changelog.i", 50)


def bring_back(copy: Path, file: Path) -> None:
    """Put a copy in a file's place at once: the relay reads it at any time."""
    shutil.copy2(copy, file.with_name(f"{file.name}.new"))
    file.with_name(f"{file.name}.new").replace(file)


def bring_older_pushlog(master: Master) -> None:
    bring_back(master.folder / "backup/.hg/store/pushlog.log", master.root / "one/.hg/store/pushlog.log")


def move(master: Master) -> None:
    (master.root / "one").rename(master.root / "two")
    (master.root / "one").symlink_to("two")


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        # Who is faster than the relay keeps its push, and reads that it is not sent.
        (restore, "one: refuses pushes: the log has "),
        (damage_outbox, "one: its outbox cannot be read: outbox.0001.log: damaged record"),
        (bring_older_pushlog, "one: a push was refused: pushlog.log lacks push 2, which pushlog2.db has"),
        (move, "two: a push was refused: this repository was one and is two now"),
    ],
)
def test_what_the_master_refuses_is_reported_before_the_next_round(
    master: Master, log: Log, break_it: Callable[[Master], None], said: str
) -> None:
    with running_relay(master.settings(scan=3600), log):
        prepare(master)
        break_it(master)
        master.commit("one", "c")
        answer = master.push("one", check=False)
        assert "abort: " in answer or (break_it is restore and "is kept and is not sent" in answer)
        assert eventually(lambda: [text for text in reported(log) if f"/{said}" in text])


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (damage_outbox, "one: its outbox cannot be read: outbox.0001.log: damaged record"),
        (bring_older_pushlog, "one: pushes are refused: pushlog.log lacks push 2, which pushlog2.db has"),
        (
            cut_changelog,
            "one: pushes are refused: a file of its history cannot be read: index 00changelog is corrupted",
        ),
    ],
)
def test_what_would_refuse_each_push_is_reported_without_one(
    master: Master, log: Log, break_it: Callable[[Master], None], said: str
) -> None:
    with running_relay(master.settings(scan=0.1), log):
        prepare(master)
        eventually(lambda: reported(log) == [])
        shutil.copytree(master.root / "one", master.folder / "sound")
        break_it(master)
        assert eventually(lambda: [text for text in reported(log) if f"/{said}" in text])
        for file in ("outbox.0001.log", "pushlog.log", "00changelog.i"):
            # The relay may look at half of it: that is no fork for long.
            shutil.copy2(master.folder / "sound/.hg/store" / file, master.root / "one/.hg/store" / file)
        eventually(lambda: reported(log) == [])
        master.commit("one", "c")
        assert RECORDED in master.push("one")


def prepare(master: Master) -> None:
    """A repository of two pushes, and a copy of it with one."""
    master.create("one")
    for text in "ab":
        master.commit("one", text)
        assert RECORDED in master.push("one")
        if text == "a":
            shutil.copytree(master.root / "one", master.folder / "backup")


def test_a_store_that_takes_no_lock_is_reported_until_a_push_is_sent(master: Master, log: Log) -> None:
    with running_relay(master.settings(scan=3600), log):
        prepare(master)
        master.commit("one", "c")
        store = master.root / "one/.hg/store"
        store.chmod(0o555)
        assert "Permission denied" in push_locally(master, before=POWERLESS)
        store.chmod(0o755)
        [text] = eventually(lambda: [text for text in reported(log) if "a push was refused" in text])
        assert "Permission denied" in text
        assert RECORDED in master.push("one")
        eventually(lambda: not reported(log))


def test_a_disk_that_fails_in_the_middle_of_a_push_is_reported(master: Master, log: Log) -> None:
    with running_relay(master.settings(scan=3600), log):
        prepare(master)
        clone = master.folder / "clone-one"
        (clone / "large").write_bytes(os.urandom(200_000))
        master.commit("one", "c")
        push_locally(master, before=["prlimit", "--fsize=100000"])
        [text] = eventually(lambda: [text for text in reported(log) if "a push was refused" in text])
        assert "File too large" in text


@pytest.mark.parametrize("hook", ["pretxnopen", "pretxnclose"])
def test_a_push_that_a_hook_refuses_is_no_trouble_of_the_master(master: Master, log: Log, hook: str) -> None:
    with running_relay(master.settings(scan=3600), log):
        prepare(master)
        master.configure(f"[hooks]\n{hook}.no = false\n")
        master.commit("one", "c")
        assert f"{hook}.no hook" in master.push("one", check=False)
        master.create("two")
        master.commit("two", "a")
        (master.root / "two").rename(master.root / "three")
        (master.root / "two").symlink_to("three")
        assert "abort: " in master.push("two", check=False)
        [text] = eventually(lambda: reported(log))
        assert "/three: a push was refused" in text
