# SPDX-License-Identifier: GPL-2.0-or-later
"""A running master hands over what the log has of it, and may go on until the new master sends."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli import handover
from hgext.vcsreplicator.log import EVENTS, SERVICES, STATE, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror.jobs.promotion import HandedHgrc, Handover
from hgext.vcsreplicator.relay.lacking import find_trouble
from hgext.vcsreplicator.relay.mastership import read_master
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.records import MASTER_KEY, MasterRecord, ServiceReport
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.states import state_of
from testing.builders.master.pushing import RECORDED, UNRELAYED, Master, new_master, running_relay

pytestmark = pytest.mark.processes

PROMOTED = MasterRecord(source="hg://alpha", mirror="alpha", replaces=("hg://master",), time=1.0)


@dataclass
class Installation:
    """A master with a repository, its log, and the verb."""

    master: Master
    log: Log
    config: Path

    @property
    def file(self) -> Path:
        return self.config.with_name("handed")

    def hand_over(self, *options: str) -> str:
        """What `vcsreplicator handover` prints."""
        words = [*(options or ("--output", str(self.file))), "--wait", "0", "--config", str(self.config)]
        return CliRunner().invoke(handover.command, words, catch_exceptions=False, standalone_mode=False).output

    def promote_another(self, record: MasterRecord = PROMOTED) -> None:
        self.log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(record))])


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Installation]:
    url, config = f"sqlite://{tmp_path}/log.db", tmp_path / "services.toml"
    with open_log(url, creates=True) as log, new_master() as master:
        log.create(topics())
        config.write_text(
            f'log = "{url}"\n[relay]\nsocket = "{master.socket}"\nsource = "hg://master"\n'
            f'[relay.roots]\n"{master.root}" = ""\n'
        )
        yield Installation(master, log, config)


def test_a_master_is_handed_over_once_the_log_has_all_of_its_events(it: Installation) -> None:
    master = it.master
    with running_relay(master.settings(), it.log):
        for name in ("one", "two"):
            master.create(name)
            master.commit(name, "sent")
            assert RECORDED in master.push(name)
    hgrc = master.root / "one" / ".hg" / "hgrc"
    hgrc.write_bytes(b"[hooks]\nx = \xff\n")
    hgrc.chmod(0o640)
    foreign = master.root / "two" / ".hg" / "hgrc"
    foreign.symlink_to("elsewhere")
    master.commit("one", "unsent")
    assert UNRELAYED in master.push("one")
    with pytest.raises(
        Refused, match=rf"pushes to 1 repository are still accepted:\n{master.root}/one: events are not in the"
    ):
        it.hand_over()
    assert not it.file.exists()
    master.commit("two", "refused at first")
    refusal = "this repository refuses changes: its master is being handed over; push again later, to the new master"
    assert refusal in master.push("two", check=False)
    with running_relay(master.settings(), it.log):
        master.commit("one", "sent with the one before")
        master.push("one")
        for _ in range(2):
            printed = it.hand_over()
            assert "pushes to 2 repositories are refused, and the log has all events" in printed
            assert f"{foreign}: not handed over, because other users may have written it" in printed
    assert it.file.stat().st_mode & 0o077 == 0
    handed = from_json(Handover, it.file.read_bytes())
    assert {each.path: (each.fingerprint.seq, each.hgrc) for each in handed.repositories} == {
        "one": (4, HandedHgrc(content="[hooks]\nx = \xff\n", mode=0o640)),
        "two": (2, None),
    }
    trouble = find_trouble(str(master.root / "one"), master.outbox("one"), 0.0, "")
    assert trouble is not None
    assert "promote the mirror" in trouble.text
    assert "pushes to 2 repositories are accepted again" in it.hand_over("--undo")
    made = read_master(it.log)
    assert made is not None, "the file is void from now on"
    with running_relay(master.settings(), it.log):
        assert RECORDED in master.push("two")


@pytest.mark.parametrize("is_announced", [False, True])
def test_a_repository_that_comes_behind_the_last_look_is_not_handed_over(
    it: Installation, monkeypatch: pytest.MonkeyPatch, is_announced: bool
) -> None:
    """It accepts pushes, which the mirror would not have."""
    close_all = handover._close_all

    def close_and_create(*arguments: Any) -> None:
        close_all(*arguments)
        if is_announced:
            it.master.create("late")
        else:
            it.master.operate("init", "--config", "extensions.vcsreplicator=!", str(it.master.root / "late"))

    monkeypatch.setattr(handover, "_close_all", close_and_create)
    said = "/late: accepts pushes again, or is new; run this again"
    with running_relay(it.master.settings(), it.log), pytest.raises(Refused, match=said):
        it.hand_over()
    assert not it.file.exists()


def require_unknown(repository: Path) -> None:
    (repository / ".hg" / "requires").write_text("novelty\n")


def cut_changelog(repository: Path) -> None:
    os.truncate(repository / ".hg" / "store" / "00changelog.i", 63)


def damage_outbox(repository: Path) -> None:
    [segment] = (repository / ".hg" / "store").glob("outbox.0*.log")
    segment.write_bytes(segment.read_bytes().replace(b"dana", b"xxxx"))


@pytest.mark.parametrize("spoil", [require_unknown, cut_changelog, damage_outbox])
def test_a_repository_that_an_account_spoilt_is_named(it: Installation, spoil: Callable[[Path], None]) -> None:
    master = it.master
    with running_relay(master.settings(), it.log):
        for name in ("one", "two"):
            master.create(name)
            master.commit(name, "sent")
            master.push(name)
    spoil(master.root / "one")
    with pytest.raises(Refused, match=rf"{master.root}/one: \S"):
        it.hand_over()
    assert not it.file.exists()
    assert "is the master; " in it.hand_over("--undo")
    assert master.outbox("two").fork() is None


@pytest.mark.timeout(60)
def test_no_lock_that_an_account_keeps_holds_up_a_handover(it: Installation) -> None:
    master = it.master
    with running_relay(master.settings(), it.log):
        for name in ("one", "two"):
            master.create(name)
    it.hand_over()
    with master.outbox("one").sending(wait=True):
        with pytest.raises(Refused, match=rf"{master.root}/one: events are not in the log, or a push is on its way"):
            it.hand_over()
        said = rf"pushes to 1 repository may be refused; remove each cause, run this again:\n{master.root}/one: another process"
        with pytest.raises(Refused, match=said):
            it.hand_over("--undo")
        assert master.outbox("two").fork() is None
    assert "pushes to 1 repository are accepted again" in it.hand_over("--undo")


def test_what_a_false_promotion_left_is_cleared_once_the_master_is_taken_back(it: Installation) -> None:
    master = it.master
    with running_relay(master.settings(), it.log):
        master.create("one")
        master.commit("one", "first")
        it.promote_another()
        said = master.push("one", check=False)
        if "the push is kept and is not sent" in said:  # the relay read of the promotion after the commit
            master.commit("one", "again")
            said = master.push("one", check=False)
        assert "this repository refuses changes: hg://alpha is the master now" in said
    with pytest.raises(Refused, match="hg://alpha is the master now"):
        it.hand_over()
    assert "pushes to 1 repository are accepted again" in it.hand_over("--undo")
    made = read_master(it.log)
    assert made is not None
    assert (made.source, made.replaces) == ("hg://master", ("hg://alpha",))
    with running_relay(master.settings(), it.log):
        master.commit("one", "second")  # the first may have been kept, until the relay read of the promotion
        assert RECORDED in master.push("one")


@pytest.mark.parametrize(("name", "copy"), [("one", "one/copy"), ("copy/one", "copy")])
def test_of_two_folders_with_one_id_the_older_decides(it: Installation, name: str, copy: str) -> None:
    """Either may be an account's, whichever is found last: a search finds a folder before what is in it."""
    with running_relay(it.master.settings(), it.log):
        it.master.create(name)
    older = it.master.outbox(name).newest()
    assert older is not None
    low = it.master.root / copy
    shutil.copytree(it.master.root / name / ".hg", low / ".hg")
    it.master.commit(name, "more")
    assert UNRELAYED in it.master.push(name)
    state = replace(state_of(older), seq=older.seq + 1, source="hg://beta")
    it.log.append([NewRecord(topic=STATE, key=state.repository, value=to_json(state))])
    it.promote_another(replace(PROMOTED, replaces=("hg://beta", "hg://master")))
    said = f"{name}: {low} is at event 1, and hg://beta sent event 2 of it: .*; if {low} is only a copy, move it out of the root"
    with pytest.raises(Refused, match=said):
        it.hand_over("--undo")


def test_a_master_is_not_taken_back_after_an_event_of_the_new_one(it: Installation) -> None:
    it.promote_another()
    it.log.append([NewRecord(topic=EVENTS, key="a" * 32, value=b"{}", headers={wire.SOURCE: "hg://alpha"})])
    with pytest.raises(Refused, match="hg://alpha is the master and has sent events: hand it over"):
        it.hand_over("--undo")
    assert read_master(it.log) == PROMOTED


def test_a_master_is_not_taken_back_over_the_events_of_one_between(it: Installation) -> None:
    """The newest master has sent none, but the one before it has: no machine would accept pushes then."""
    with running_relay(it.master.settings(), it.log):
        it.master.create("one")
    newest = it.master.outbox("one").newest()
    assert newest is not None
    state = replace(state_of(newest), seq=newest.seq + 1, source="hg://beta")
    it.log.append([NewRecord(topic=STATE, key=state.repository, value=to_json(state))])
    last = replace(PROMOTED, replaces=("hg://beta", "hg://master"))
    it.promote_another(last)
    with pytest.raises(Refused, match="/one is at event 1, and hg://beta sent event 2 of it: hand over the newest"):
        it.hand_over("--undo")
    assert read_master(it.log) == last


def test_a_master_is_not_taken_back_while_the_new_relay_reports(it: Installation) -> None:
    it.promote_another()
    report = ServiceReport(time=time.time(), version="1")
    it.log.append([NewRecord(topic=SERVICES, key="relay hg://alpha", value=to_json(report))])
    with pytest.raises(Refused, match=r"the relay of hg://alpha reported \d+ s ago: stop it, or its machine, and wait"):
        it.hand_over("--undo")
    assert read_master(it.log) == PROMOTED


def test_the_printed_command_quotes_the_name_of_the_file(it: Installation) -> None:
    said = it.hand_over("--output", str(it.config.with_name("handed over; x")))
    assert "promote NAME --handover 'handed over; x' --yes" in said
