# SPDX-License-Identifier: GPL-2.0-or-later
"""A master that comes back after a mirror was promoted: what it accepted and did not send is saved."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli import demote
from hgext.vcsreplicator.log import EVENTS, SERVICES, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.records import MASTER_KEY, MasterRecord
from hgext.vcsreplicator.words.shape import to_json
from hgext.vcsreplicator.words.wire import ID
from testing.builders.master.pushing import RECORDED, UNRELAYED, new_master, running_relay


@pytest.mark.processes
def test_pushes_that_a_former_master_did_not_send_can_be_pushed_again(tmp_path: Path) -> None:
    url, config = f"sqlite://{tmp_path}/log.db", tmp_path / "services.toml"
    with open_log(url, creates=True) as log, new_master() as master:
        log.create(topics())
        config.write_text(
            f'log = "{url}"\n[relay]\nsocket = "{master.socket}"\nsource = "hg://master"\n'
            f'[relay.roots]\n"{master.root}" = ""\n'
        )
        with running_relay(master.settings(), log):
            master.create("one")
            master.commit("one", "sent")
            master.push("one")
            master.create("moved")
            master.commit("moved", "sent too")
            master.push("moved")
        master.commit("one", "unsent")
        assert UNRELAYED in master.push("one")
        shutil.copytree(master.root / "one", master.root / "zcopy")
        shutil.copytree(master.root / "one", master.root / "damaged")
        [segment] = (master.root / "damaged" / ".hg" / "store").glob("outbox.0*.log")
        segment.write_bytes(segment.read_bytes().replace(b"dana", b"xxxx"))
        shutil.copytree(master.root / "one", master.root / "spoilt")
        (master.root / "spoilt" / ".hg" / "requires").write_text("shared\nstore\n")
        (master.root / "spoilt" / ".hg" / "sharedpath").write_bytes(b"a\0b")
        master.operate("-R", str(master.root / "moved"), "replicaterename", "--yes", str(master.root / "three"))
        master.operate("init", str(master.root / "two"))
        master.operate("-R", str(master.root / "two"), "replicatedelete", "--yes")
        words = ["--output", str(tmp_path / "saved"), "--config", str(config)]
        with pytest.raises(Refused, match="no mirror was promoted in place of hg://master"):
            CliRunner().invoke(demote.command, words, catch_exceptions=False, standalone_mode=False)
        record = MasterRecord(source="hg://alpha", mirror="alpha", replaces=("hg://master",), time=1.0)
        log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(record))])
        result = CliRunner().invoke(demote.command, words, standalone_mode=False)
        said = result.output
        assert said.count("one: event 3: push 2 of dana, ") == 3
        assert "two: event 2: deleted, " in said
        assert "three: event 3: renamed, " in said
        bundles = sorted((tmp_path / "saved").iterdir())
        assert len(bundles) == 2, "a rename adds no changesets"
        assert all(f"hg unbundle {each} && hg push" in said for each in bundles)
        assert "not sent: 6 events" in said
        assert f"{master.root}/spoilt: not saved: lstat: embedded null character in path" in said
        assert f"{master.root}/damaged: not saved: " in said
        assert "look at 2 repositories before you remove anything" in str(result.exception)
        with pytest.raises(Refused, match="/saved: File exists; expected the path of a new folder"):
            CliRunner().invoke(demote.command, words, catch_exceptions=False, standalone_mode=False)
        copy = str(tmp_path / "copy")
        master.develop("clone", "-q", "-r", "0", str(master.folder / "clone-one"), copy)
        master.develop("-R", copy, "unbundle", str(bundles[0]))
        assert master.develop("-R", copy, "log", "-T", "{desc} ") == "unsent sent "


@pytest.mark.processes
def test_what_a_log_lost_of_a_former_master_is_named(tmp_path: Path) -> None:
    """Its relay would have sent it again; the mirror may have been promoted without it."""
    file, config = tmp_path / "log.db", tmp_path / "services.toml"
    with new_master() as master:
        config.write_text(
            f'log = "sqlite://{file}"\n[relay]\nsocket = "{master.socket}"\nsource = "hg://master"\n'
            f'[relay.roots]\n"{master.root}" = ""\n'
        )
        with open_log(f"sqlite://{file}", creates=True) as log:
            log.create(topics())
            with running_relay(master.settings(), log):
                for name in ("kept", "lost"):
                    master.create(name)
        copy = shutil.copy(file, tmp_path / "copy.db")
        with open_log(f"sqlite://{file}") as log, running_relay(master.settings(), log):
            master.commit("lost", "sent")
            assert RECORDED in master.push("lost")
        shutil.copy(copy, file)
        with open_log(f"sqlite://{file}") as log:
            _send_later(log, master.outbox("kept"), master.outbox("lost"))
            record = MasterRecord(source="hg://alpha", mirror="alpha", replaces=("hg://master",), time=1.0)
            log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(record))])
        words = ["--output", str(tmp_path / "saved"), "--config", str(config)]
        result = CliRunner().invoke(demote.command, words, standalone_mode=False)
        assert f"{master.root}/lost: the log has lost its newest event" in result.output
        assert "kept" not in result.output
        assert "look at 1 repository before you remove anything" in str(result.exception)


def _send_later(log: Log, box: Outbox, lost: Outbox) -> None:
    """Let a newer event of one repository stand in the partition that lost the newest one of another."""
    mark, gone = box.sent(), lost.sent()
    assert mark is not None
    assert gone is not None
    assert gone.offset is not None
    offset = -1
    while offset <= gone.offset:
        record = NewRecord(topic=EVENTS, key="", value=b"", headers={ID: "later"}, partition=gone.partition)
        [(_, offset)] = log.append([record])
    box.mark_sent(replace(mark, id="later", partition=gone.partition, offset=offset))
