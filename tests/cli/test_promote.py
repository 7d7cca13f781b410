# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror becomes the master only with all that the log has."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli import promote
from hgext.vcsreplicator.log import EVENTS, ROSTER, STATE, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror.jobs.promotion import Handover
from hgext.vcsreplicator.relay.mastership import claim, read_master, take_back
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.records import AGGREGATOR, AggregatorHeartbeat, MasterRecord
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster, Verb
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.aggregating import ask
from testing.builders.aggregator.states import some_state
from testing.faults.system import System

# A repository that the former master deleted.
FORMER = some_state(source="hg://old", deleted=True)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The services' file of a machine with a mirror, and a log."""
    url, config, root = f"sqlite://{tmp_path}/log.db", tmp_path / "services.toml", tmp_path / "alpha"
    root.mkdir()
    config.write_text(
        f'log = "{url}"\n[relay]\nsocket = "{tmp_path}/relay.sock"\nsource = "hg://alpha"\n'
        f'[relay.roots]\n"{root}" = ""\n[mirror.alpha]\nroot = "{root}"\nmaster = "https://master/"\n'
    )
    with open_log(url, creates=True) as log:
        log.create(topics())
    return config


@pytest.fixture(autouse=True)
def former(config: Path) -> None:
    """What the log has of the former master."""
    with open_log(f"sqlite://{config.parent}/log.db") as log:
        log.append([NewRecord(topic=STATE, key=FORMER.repository, value=to_json(FORMER))])


def run(config: Path, *options: str) -> None:
    words = ["alpha", "--yes", *options, "--config", str(config)]
    CliRunner().invoke(promote.command, words, catch_exceptions=False, standalone_mode=False)


def test_no_mirror_is_promoted_while_the_log_knows_no_master(config: Path) -> None:
    """The promotion would name no master, so a master that was only cut off would be a second one."""
    with open_log(f"sqlite://{config.parent}/log.db") as log:
        log.append([NewRecord(topic=STATE, key=FORMER.repository, value=None)])
        with pytest.raises(Refused, match="the log names no master that alpha would replace"):
            run(config)
        assert read_master(log) is None


def test_what_a_former_master_sent_in_the_last_instant_is_not_left_out(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after the look at the log and before the promotion was recorded; to run the command again is no way round it."""

    def claim_late(log: Log, wanted: MasterRecord, expected: MasterRecord | None) -> None:
        log.append([NewRecord(topic=EVENTS, key="a" * 32, value=b"late")])
        claim(log, wanted, expected)

    monkeypatch.setattr(promote, "claim", claim_late)
    for _ in range(2):
        with pytest.raises(
            Refused, match="the mirror has not applied 1 record of the log; start it until it is caught up"
        ):
            run(config)


def test_a_handover_is_void_after_its_master_was_taken_back(config: Path) -> None:
    file = config.with_name("handed")
    file.write_bytes(to_json(Handover(source="hg://old", promotion=None, repositories=())))
    with open_log(f"sqlite://{config.parent}/log.db") as log:
        take_back(log, "hg://old", {})
    with pytest.raises(Refused, match=f"{file}: void, because its master was taken back or replaced since"):
        run(config, "--handover", str(file))


def test_a_file_that_is_no_handover_is_refused_in_one_line(config: Path) -> None:
    with pytest.raises(Refused, match=f"{config}: expected what vcsreplicator handover wrote: "):
        run(config, "--handover", str(config))


@pytest.mark.parametrize(("user", "mode"), [(1, 0o600), (0, 0o620), (0, 0o602)], ids=["owner", "group", "others"])
def test_a_handover_that_others_may_have_written_is_refused(config: Path, system: System, user: int, mode: int) -> None:
    file = config.with_name("handed")
    file.write_bytes(to_json(Handover(source="hg://old", promotion=None, repositories=())))
    file.chmod(mode)
    owner = file.stat().st_uid
    if user and not owner:
        os.chown(file, user, -1)
    system.become(owner + (user if owner else 0))
    with pytest.raises(Refused, match=f"{file}: other users may have written it, .*: chown root {file} && chmod go-w "):
        run(config, "--handover", str(file))


def test_a_mirror_without_repositories_becomes_the_master(config: Path) -> None:
    run(config)
    assert (config.parent / "alpha/.vcsreplicator/mirror").is_dir()


def test_a_mirror_that_an_operator_activates_meanwhile_leaves_the_roster(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No notice waits for the new master, which applies nothing any more."""
    with open_log(f"sqlite://{config.parent}/log.db") as log:

        def write_roster(version: int, state: MirrorState) -> None:
            roster = Roster(version=version, mirrors=(Mirror(name="alpha", state=state),))
            log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(roster))])

        write_roster(1, MirrorState.INACTIVE)
        monkeypatch.setattr(promote, "_continue_all", lambda *_: write_roster(2, MirrorState.ACTIVE))
        with pytest.raises(Refused, match="the aggregator has not decided within 0 s"):
            run(config, "--wait", "0")


def test_a_mirror_whose_activation_no_aggregator_has_decided_leaves_the_roster(config: Path) -> None:
    """The request to deactivate it stands behind the other one, so the new master never gates."""
    roster = Roster(version=1, mirrors=(Mirror(name="alpha", state=MirrorState.INACTIVE),))
    with open_log(f"sqlite://{config.parent}/log.db") as log:
        log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(roster))])
        ask(log, Verb.ACTIVATE, "alpha")
        with pytest.raises(Refused, match="the aggregator has not decided within 0 s"):
            run(config, "--wait", "0")


def test_no_mirror_is_promoted_by_a_roster_that_lost_its_newest_version(config: Path) -> None:
    """The lost one may have the mirror active: it would remain so, and notices would wait for it."""
    beat = to_json(AggregatorHeartbeat(time=1.0, roster=1, held=0))
    with open_log(f"sqlite://{config.parent}/log.db") as log:
        log.append([NewRecord(topic=STATE, key=AGGREGATOR, value=beat)])
        with pytest.raises(
            Refused, match="topic roster: expected version 1, as the aggregator has it, found 0; run this"
        ):
            run(config)
        assert read_master(log) is None


def test_a_promotion_that_another_one_replaced_meanwhile_says_so(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one began once this one was recorded, and before its relay was started."""

    def overtake(log: Log, *_arguments: object) -> None:
        known = read_master(log)
        claim(log, MasterRecord(source="hg://beta", mirror="beta", replaces=("hg://alpha",), time=1.0), known)

    monkeypatch.setattr(promote, "_leave_roster", overtake)
    with pytest.raises(Refused, match="alpha is not the master: hg://beta is the master now; do not start its relay"):
        run(config)


def test_no_other_promotion_that_began_before_the_end_of_this_one_succeeds(config: Path) -> None:
    """The first attempt may have recorded this one long ago; its relay has not had the time to start."""
    with open_log(f"sqlite://{config.parent}/log.db") as log:
        begun = MasterRecord(source="hg://alpha", mirror="alpha", replaces=("hg://old",), time=1.0)
        claim(log, begun, None)
        run(config)
        with pytest.raises(Refused, match="hg://alpha was promoted meanwhile"):
            claim(log, MasterRecord(source="hg://beta", mirror="beta", replaces=("hg://alpha",), time=2.0), begun)
