# SPDX-License-Identifier: GPL-2.0-or-later
"""The steps of one event: what a notice proves, and without one what is missing and where."""

from dataclasses import replace

from hgext.vcsreplicator.log import EVENTS, NOTICES, NewRecord, topics
from hgext.vcsreplicator.status.timeline import Stage, TimelineStep, find_event, find_notice, list_steps
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.records import MirrorHeartbeat, MirrorProof, Notice
from hgext.vcsreplicator.words.roster import Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from tests.status.test_status import Installation


def list_all(
    installation: Installation, seq: int, *, later: float = 0.0, released: float | None = None
) -> list[TimelineStep]:
    state, picture = installation.state, installation.picture()
    found = find_event(installation.log, state, None, seq)
    assert found is not None
    notice = find_notice(installation.log, state, found[0])
    return list_steps(picture, state, *found, notice, installation.clock.now() + later, released=released)


def prepare(*, noticed: int) -> Installation:
    """An installation whose three events are in the log, and whose notices are written up to `noticed`."""
    installation = Installation()
    chain: Chain = installation.chain
    installation.log = type(installation.log)(clock=installation.clock)
    installation.log.create(topics(partitions=1))
    for event in chain.events:
        installation.log.append([NewRecord(topic=EVENTS, key=chain.repository, value=wire.encode(event))])
    for event in chain.events[:noticed]:
        proofs = (MirrorProof(mirror="alpha", applied_at=event.time + 1, served_at=event.time + 2),)
        notice = Notice(event=event, time=event.time + 3, roster=7, acks=proofs, previous={})
        again = replace(notice, replay="dana, today")
        installation.log.append(
            [NewRecord(topic=NOTICES, key=chain.repository, value=to_json(each)) for each in (again, notice)]
        )
    installation.state = replace(installation.state, released=noticed, noticed=noticed)
    return installation


def test_an_announced_event_has_each_stage_with_its_time() -> None:
    installation = prepare(noticed=2)
    installation.ack(3)
    steps = list_all(installation, 2)
    assert {step.stage for step in steps} == set(Stage) - {Stage.PASSED}
    assert all(step.is_done and (step.at is not None or step.stage is Stage.RELEASED) for step in steps)
    assert {step.mirror for step in steps} == {None, "alpha"}
    [announced] = [step for step in steps if step.stage is Stage.ANNOUNCED]
    assert announced.text == "notice written: offset 3, roster version 7"


def test_a_release_whose_time_is_not_known_says_by_when_it_was() -> None:
    installation = prepare(noticed=2)
    [release] = [step for step in list_all(installation, 2) if step.stage is Stage.RELEASED]
    assert (release.at, release.is_done) == (None, True)
    assert release.text == "released to mirrors, at a time that is not known: by 2 s, when alpha served it"
    assert Stage.RELEASED not in {step.stage for step in list_all(installation, 3)}
    installation.state = replace(installation.state, released=3)
    [release] = [step for step in list_all(installation, 3) if step.stage is Stage.RELEASED]
    assert release.text == "released to mirrors, at a time that is not known"


def test_no_release_is_shown_after_the_notice_of_its_event() -> None:
    installation = prepare(noticed=2)
    written = installation.clock.now()
    for released, shown in ((written - 1, written - 1), (written + 441, None)):
        steps = list_all(installation, 2, released=released)
        assert [step.at for step in steps if step.stage is Stage.RELEASED] == [shown]


def test_what_an_event_waits_for_comes_last_and_is_not_done() -> None:
    installation = prepare(noticed=2)
    installation.ack(2)
    missing = [step for step in list_all(installation, 3) if not step.is_done]
    assert [step.stage for step in missing] == [Stage.APPLIED, Stage.ANNOUNCED]
    assert missing[0].text == "alpha: not applied (applied 2, serving 2)"
    assert missing[1].text.startswith("no notice yet, ")


def test_a_level_of_a_replaced_history_is_no_step_of_the_present_one() -> None:
    installation = prepare(noticed=0)
    former = replace(installation.chain.ack("alpha", 3), incarnation="0" * 32)
    installation.write("acks", f"alpha/{installation.chain.repository}", former)
    [level] = [step for step in list_all(installation, 3) if step.mirror == "alpha"]
    assert not level.is_done
    assert level.text.startswith("alpha: not applied")


def test_a_mirror_at_just_this_event_says_since_when() -> None:
    installation = prepare(noticed=2)
    time = installation.chain.events[2].time + 9
    installation.write(
        "acks", f"alpha/{installation.chain.repository}", installation.chain.ack("alpha", 3, 2, time=time)
    )
    [level] = [step for step in list_all(installation, 3) if step.mirror == "alpha"]
    assert (level.stage, level.at, level.is_done) == (Stage.APPLIED, time, True)


def test_no_mirror_serves_an_event_before_its_commit() -> None:
    installation = prepare(noticed=3)
    event = installation.chain.events[2]
    found = find_event(installation.log, installation.state, None, 3)
    notice = find_notice(installation.log, installation.state, event)
    assert found is not None
    assert notice is not None
    stale = MirrorProof(mirror="alpha", applied_at=event.time + 1, served_at=event.time - 17)
    notice = replace(notice[0], acks=(stale,)), notice[1]
    steps = list_steps(installation.picture(), installation.state, *found, notice, installation.clock.now())
    assert {step.stage: step.at for step in steps if step.mirror} == {
        Stage.APPLIED: event.time + 1,
        Stage.SERVED: None,
    }
    installation.write("acks", f"alpha/{event.repository}", installation.chain.ack("alpha", 3, time=event.time - 17))
    assert [step.at for step in list_steps(
        installation.picture(), installation.state, *found, None, installation.clock.now()
    ) if step.mirror] == [None]  # fmt: skip


def test_a_mirror_that_detached_the_repository_says_why_and_since_when() -> None:
    installation = prepare(noticed=2)
    ack = replace(installation.chain.ack("alpha", 2), detached="locked", note="locked by vm/1:2")
    ack = replace(ack, detached_since=installation.clock.now())
    installation.write("acks", f"alpha/{installation.chain.repository}", ack)
    installation.clock.advance(50.0)
    [level] = [step for step in list_all(installation, 3) if step.mirror == "alpha"]
    since = "for 50 s, since 2023-11-14 22:13:20 UTC"
    assert level.text == f"alpha: not applied (applied 2, serving 2, detached: locked ({since}): locked by vm/1:2)"


def test_a_notice_names_the_mirrors_and_the_aggregator_it_waits_for() -> None:
    installation = prepare(noticed=2)
    installation.ack(2)
    installation.write("roster", "roster", Roster(mirrors=(active("alpha"), active("gamma"))))
    assert list_all(installation, 3)[-1].text.endswith("; waits for alpha, gamma (never seen)")
    [gamma] = [step for step in list_all(installation, 3) if step.mirror == "gamma"]
    assert (gamma.text, gamma.is_done) == ("gamma: not applied (it has reported nothing of this repository)", False)
    last = list_all(installation, 3, later=1000.0)[-1].text
    assert "; waits for the aggregator (silent for " in last


def test_a_notice_does_not_wait_for_a_mirror_with_an_unreleased_event() -> None:
    installation = prepare(noticed=2)
    repository = installation.chain.repository
    installation.write("roster", "roster", Roster(mirrors=(active("alpha"), active("gamma"))))
    installation.write("acks", f"alpha/{repository}", installation.chain.ack("alpha", 3, 2))
    installation.write("acks", f"gamma/{repository}", installation.chain.ack("gamma", 2))
    installation.write(
        "acks", "gamma", MirrorHeartbeat(mirror="gamma", time=installation.clock.now(), positions={}, version="1")
    )
    assert list_all(installation, 3)[-1].text.endswith("; waits for gamma")
    installation.write("acks", f"gamma/{repository}", installation.chain.ack("gamma", 3, 2))
    assert list_all(installation, 3)[-1].text.endswith("; waits for the aggregator")
    last = list_all(installation, 3, later=42.0)[-1].text
    assert last.endswith("; waits for the aggregator (silent for 42 s)")


def test_a_notice_of_a_released_event_waits_for_mirrors_not_serving_it() -> None:
    installation = prepare(noticed=2)
    repository = installation.chain.repository
    installation.write("state", repository, replace(installation.state, released=3))
    installation.state = replace(installation.state, released=3)
    installation.write("roster", "roster", Roster(mirrors=(active("alpha"), active("gamma"))))
    installation.write("acks", f"alpha/{repository}", installation.chain.ack("alpha", 3, 2))
    installation.write("acks", f"gamma/{repository}", installation.chain.ack("gamma", 3))
    assert list_all(installation, 3)[-1].text.endswith("; waits for alpha")


def active(name: str) -> Mirror:
    return Mirror(name=name, state=MirrorState.ACTIVE)


def test_a_removed_mirror_is_no_step() -> None:
    installation = prepare(noticed=2)
    installation.ack(1)
    assert "alpha" in {step.mirror for step in list_all(installation, 3)}
    removed = Mirror(name="alpha", state=MirrorState.REMOVED)
    installation.write("roster", "roster", Roster(version=8, mirrors=(removed,)))
    assert "alpha" not in {step.mirror for step in list_all(installation, 3)}
