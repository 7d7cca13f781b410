# SPDX-License-Identifier: GPL-2.0-or-later
"""A summary is made once, travels as JSON, and is checked where it arrives."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import ACKS, NOTICES, ROSTER, SERVICES, STATE, NewRecord
from hgext.vcsreplicator.log.reports import ServiceReporter
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.status.findings import as_data, findings
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.status.summary import Summary, make_summary
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.records import Lag, MirrorHeartbeat, ServiceReport, ServiceTrouble
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorRole, MirrorState, Roster
from hgext.vcsreplicator.words.shape import from_json, to_json
from tests.status.test_status import ALPHA, Installation


@pytest.fixture
def busy() -> Installation:
    """A mirror that is behind, one that is not in the roster, one that is silent, and a destination that is behind."""
    made = Installation()
    beta = Mirror(name="beta", state=MirrorState.ACTIVE)
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA, beta)))
    made.ack(2)
    made.write(ACKS, f"gone/{made.chain.repository}", made.chain.ack("gone", 1))
    made.delivered(1)
    return made


def test_a_summary_is_the_same_after_its_way_as_json(busy: Installation) -> None:
    picture = busy.picture(after=100.0)
    made = make_summary(picture, busy.clock.now(), Expectations(destinations=("lines", "pulse"), relay="hg://master"))
    assert len(made.mirrors) == 2
    assert {line.name for line in made.services} == {"relay hg://master", "destination lines"}
    assert len(made.findings) > 2
    assert from_json(Summary, to_json(made)) == made


def test_a_summary_that_is_not_one_is_refused(busy: Installation) -> None:
    whole = to_json(make_summary(busy.picture(), busy.clock.now(), Expectations()))
    for good, bad in ((b'"errors":0', b'"errors":"0"'), (b'"name":"alpha"', b'"name":7'), (b'"now":', b'"then":')):
        assert good in whole
        with pytest.raises(MalformedEvent):
            from_json(Summary, whole.replace(good, bad))


def test_a_summary_finds_what_findings_find_with_the_same_limits(busy: Installation) -> None:
    picture, now = busy.picture(after=100.0), busy.clock.now()
    trouble = ServiceTrouble(text="failing", since=now - 100.0)
    picture.reports["destination lines"] = ServiceReport(time=now, version="1", count=1, troubles=(trouble,))
    seen = set()
    for limits in ({}, {"warn": 1}, {"warn": 1, "critical": 1}, {"patience": 200.0}, {"relay": "x"}):
        for names in (None, ("lines", "pulse")):
            expected = Expectations(destinations=names, **limits)  # type: ignore[arg-type]
            wanted = findings(picture, now, expected)
            assert list(make_summary(picture, now, expected).findings) == wanted
            seen.add(tuple(wanted))
    assert len(seen) == 10, "each limit makes a difference"


def test_the_lags_of_a_mirror_are_measured_once(busy: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    picture, measured = busy.picture(after=100.0), Counter[str]()
    measure = Picture._find_lags

    def count(self: Picture, mirror: str, repositories: Iterable[str]) -> Iterator[tuple[str, tuple[object, Lag]]]:
        measured[mirror] += 1
        return measure(self, mirror, repositories)

    monkeypatch.setattr(Picture, "_find_lags", count)
    made = make_summary(picture, busy.clock.now(), Expectations())
    assert any("makes no progress" in finding.text for finding in made.findings)
    assert measured == {"alpha": 1, "beta": 1}


def test_a_service_that_never_reported_is_silent_for_long(busy: Installation) -> None:
    made = make_summary(busy.picture(), busy.clock.now(), Expectations(relay="hg://master"))
    assert made.measure_silence("relay hg://master") > 1e9
    assert made.measure_silence("destination lines") == 0.0
    later = replace(made, now=made.now + 5.0)
    assert later.measure_silence("destination lines") == 5.0
    assert replace(made, now=made.now - 5.0).measure_silence("destination lines") == 5.0


def test_a_summary_says_what_was_looked_at() -> None:
    made = Installation()
    made.ack(3)
    summary = make_summary(made.picture(), made.clock.now(), Expectations(destinations=("lines",)))
    assert summary.watched == "aggregator, 1 mirror and 1 destination"
    inactive = Mirror(name="gone", state=MirrorState.INACTIVE)
    beta, removed = Mirror(name="beta", state=MirrorState.JOINING), Mirror(name="old", state=MirrorState.REMOVED)
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA, beta, inactive, removed)))
    made.reporting += ["pulse", "other"]
    expected = Expectations(destinations=("lines", "pulse"), relay="hg://master")
    summary = make_summary(made.picture(), made.clock.now(), expected)
    assert summary.watched == "aggregator, relay, 2 mirrors and 2 destinations"
    made.write(ROSTER, KEY, Roster())
    summary = make_summary(made.picture(), made.clock.now(), Expectations(destinations=()))
    assert summary.watched == "aggregator"


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (0, "aggregator, 1 mirror and 1 destination are caught up"),
        (1, "aggregator, 1 mirror and 1 destination are within their limits: 1 notice waits"),
        (2, "aggregator, 1 mirror and 1 destination are within their limits: 2 notices wait"),
    ],
)
def test_a_summary_without_findings_counts_the_notices_that_wait(events: int, told: str) -> None:
    made = Installation()
    made.ack(3)
    made.write(STATE, made.chain.repository, replace(made.state, noticed=3 - events))
    summary = make_summary(made.picture(), made.clock.now(), Expectations(destinations=("lines",)))
    assert (summary.findings, summary.describe_well()) == ((), told)


def test_nothing_is_called_caught_up_that_lacks_something_however_little() -> None:
    made = Installation()
    made.ack(1)
    made.delivered(2)
    made.log.acknowledge("notifier-removed", NOTICES, {0: 0})
    summary = make_summary(made.picture(), made.clock.now(), Expectations(destinations=("lines",)))
    assert (summary.findings, summary.describe_well()) == (
        (),
        "aggregator, 1 mirror and 1 destination are within their limits: "
        "mirror alpha is 2 events behind; destination lines is 1 notice behind",
    )


def test_a_destination_that_just_fails_is_named_and_later_a_finding() -> None:
    made = Installation()
    made.ack(3)
    picture, now = made.picture(), made.clock.now()
    trouble = ServiceTrouble(text="destination lines is failing: refused; see: X", since=now - 11.0)
    picture.reports["destination lines"] = ServiceReport(time=now, version="1", count=1, troubles=(trouble,))
    expected = Expectations(destinations=("lines",))
    summary = make_summary(picture, now, expected)
    assert summary.findings == ()
    told = summary.describe_well()
    assert told.startswith(
        "aggregator, 1 mirror and 1 destination are within their limits: destination lines is failing:"
    )
    assert told.endswith("see: X (for 11 s, since 2023-11-14 22:13:09 UTC)")
    later = make_summary(picture, now + 14.0, replace(expected, patience=24.0))
    assert ([finding.level for finding in later.findings], later.recent) == ([1], ())
    permanent = replace(trouble, is_permanent=True)
    picture.reports["destination lines"] = ServiceReport(time=now, version="1", count=1, troubles=(permanent,))
    summary = make_summary(picture, now, expected)
    assert ([finding.level for finding in summary.findings], summary.recent) == ([1], ()), "waiting does not end it"


def test_of_many_services_that_just_fail_some_are_named() -> None:
    made = Installation()
    made.ack(3)
    picture, now = made.picture(), made.clock.now()
    for number in range(1, 18):
        trouble = ServiceTrouble(text=f"destination d{number:02} is failing", since=now)
        report = ServiceReport(time=now, version="1", count=1, troubles=(trouble,) if number > 2 else ())
        picture.reports[f"destination d{number:02}"], picture.heard[f"destination d{number:02}"] = report, (1, now)
    told = make_summary(picture, now, Expectations()).describe_well()
    assert "18 destinations are within their limits: destination d03 is failing (for 0 s" in told
    assert told.endswith("; 10 more")
    assert "d08" not in told


def test_a_summary_without_findings_says_whose_heartbeat_is_late() -> None:
    made = Installation()
    made.ack(3)
    picture = made.picture()
    for name, age in (("relay hg://one", 40.0), ("relay hg://two", 20.0), ("relay hg://former", 8 * 86400.0)):
        picture.reports[name] = ServiceReport(time=1.0, version="1")
        picture.heard[name] = (1, made.clock.now() - age)
    summary = make_summary(picture, made.clock.now(), Expectations())
    assert summary.describe_well().endswith(" within their limits: relay hg://one was last seen 40 s ago")
    picture.heard |= {"alpha": (1, made.clock.now() - 16.0), "aggregator": (1, made.clock.now() - 17.0)}
    picture.heard["destination lines"] = 1, made.clock.now() - 26.0
    summary = make_summary(picture, made.clock.now(), Expectations())
    assert (summary.findings, summary.recent) == (
        (),
        (
            "the aggregator was last seen 17 s ago",
            "mirror alpha was last seen 16 s ago",
            "destination lines was last seen 26 s ago",
            "relay hg://one was last seen 40 s ago",
        ),
    )


def test_unnamed_services_that_reported_this_week_are_looked_at() -> None:
    made = Installation()
    picture = made.picture()
    for name, age in (("relay hg://one", 50.0), ("relay hg://two", 50.0), ("relay hg://former", 8 * 86400.0)):
        picture.reports[name] = ServiceReport(time=1.0, version="1")
        picture.heard[name] = (1, made.clock.now() - age)
    summary = make_summary(picture, made.clock.now(), Expectations())
    assert summary.watched == "aggregator, 2 relays, 1 mirror and 1 destination"


def test_a_removed_mirror_is_shown_while_it_runs_and_once_added() -> None:
    made = Installation()
    made.ack(3)
    removed, chain = Mirror(name="old", state=MirrorState.REMOVED), made.chain
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA, removed)))
    expected = Expectations(destinations=("lines",))

    def summary() -> Summary:
        return make_summary(made.picture(), made.clock.now(), expected)

    assert [line.name for line in summary().mirrors] == ["alpha"]
    made.write(ACKS, "old", MirrorHeartbeat(mirror="old", time=made.clock.now(), positions={}, version="1"))
    made.write(ACKS, f"old/{chain.repository}", replace(chain.ack("old", 3), detached="locked"))
    assert [(line.name, line.state) for line in summary().mirrors] == [("alpha", "active"), ("old", "removed")]
    [warning, _] = sorted(summary().findings, key=lambda finding: finding.text, reverse=True)
    assert warning.level == 1
    assert warning.text == (
        "mirror old runs although it was removed from the roster, so no notice waits for it and its clients may lack what is "
        "announced; stop it: systemctl disable --now vcsreplicator-mirror@old, or: vcsreplicator roster add old"
    )
    made.clock.advance(61.0)
    made.log.append([NewRecord(topic=ACKS, key=f"old/{'0' * 32}", value=None)])  # the aggregator forgets a level
    silent = summary()
    assert ([line.name for line in silent.mirrors], silent.findings) == (["alpha"], ()), "it was stopped"
    data = as_data(made.picture(), made.clock.now(), Expectations(destinations=("lines",)))
    assert ([each["name"] for each in data["mirrors"]], data["detached"]) == (["alpha"], [])  # type: ignore[attr-defined]
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA, replace(removed, state=MirrorState.JOINING))))
    assert [line.name for line in summary().mirrors] == ["alpha", "old"]


def test_a_mirror_stopped_before_its_removal_is_not_shown() -> None:
    made = Installation()
    made.ack(3)
    expected, roster = (
        Expectations(destinations=("lines",)),
        Roster(mirrors=(ALPHA, Mirror(name="old", state=MirrorState.REMOVED))),
    )

    def beat() -> None:
        made.write(ACKS, "old", MirrorHeartbeat(mirror="old", time=made.clock.now(), positions={}, version="1"))

    beat()
    made.clock.advance(20.0)
    made.write(ROSTER, KEY, roster)
    made.clock.advance(20.0)
    summary = make_summary(made.picture(), made.clock.now(), expected)
    assert ([line.name for line in summary.mirrors], summary.findings) == (["alpha"], ())
    beat()
    summary = make_summary(made.picture(), made.clock.now(), expected)
    assert [line.name for line in summary.mirrors] == ["alpha", "old"]
    assert [finding.text[:16] for finding in summary.findings] == ["mirror old runs "]


def test_a_removed_mirror_that_runs_is_shown_after_a_clock_went_back() -> None:
    made = Installation()
    made.ack(3)
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA, Mirror(name="old", state=MirrorState.REMOVED))))
    made.clock.set_back(1000.0)
    made.write(ACKS, "old", MirrorHeartbeat(mirror="old", time=made.clock.now(), positions={}, version="1"))
    assert [line.name for line in make_summary(made.picture(), made.clock.now(), Expectations()).mirrors] == [
        "alpha",
        "old",
    ]


def test_a_mirror_that_the_roster_lacks_is_a_warning_once_it_runs() -> None:
    made = Installation()
    made.ack(3)
    removed = Mirror(name="removed", state=MirrorState.REMOVED)
    backup = Mirror(name="backup", state=MirrorState.INACTIVE, role=MirrorRole.BACKUP)
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA, removed, backup)))
    expected = Expectations(destinations=("lines",), mirrors=("alpha", "backup", "gamma", "removed"))
    text = "section [mirror.gamma] of the file is not in the roster, so no notice waits for it"
    command = "to add it: vcsreplicator roster add gamma"
    summary = make_summary(made.picture(), made.clock.now(), expected)
    assert (summary.notes, summary.findings) == ((f"{text}; {command}",), ())
    made.write(ACKS, "gamma", MirrorHeartbeat(mirror="gamma", time=made.clock.now(), positions={}, version="1"))
    summary = make_summary(made.picture(), made.clock.now(), expected)
    assert summary.notes == ()
    [found] = summary.findings
    assert (found.level, found.text) == (
        1,
        f"mirror gamma runs and is not in the roster, so no notice waits for it; {command}",
    )
    made.clock.advance(61.0)
    summary = make_summary(made.picture(), made.clock.now(), expected)
    assert (len(summary.notes), summary.findings) == (1, ()), "it was stopped"


def test_an_inactive_mirror_is_a_note_with_the_command_to_gate_again() -> None:
    made = Installation()
    made.ack(3)
    since = made.clock.now() - 600.0
    beta = Mirror(name="beta", state=MirrorState.INACTIVE, since=since)
    backup = Mirror(name="copy", state=MirrorState.INACTIVE, role=MirrorRole.BACKUP)
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA, beta, backup)))
    expected = Expectations(destinations=("lines",), mirrors=("alpha", "beta"))
    summary = make_summary(made.picture(), made.clock.now(), expected)
    [note] = summary.notes
    assert note.startswith("mirror beta is inactive (for 10 min, since ")
    assert note.endswith("UTC), so no notice waits for it; to change that: vcsreplicator roster join beta")
    assert summary.findings == ()


def test_a_deactivation_for_one_repository_is_a_note_until_undone() -> None:
    made = Installation()
    made.ack(1)
    beta = Mirror(name="beta", state=MirrorState.ACTIVE, deactivated=(made.chain.repository, "0" * 32))
    gone = replace(beta, name="gone", state=MirrorState.REMOVED)
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA, beta, gone)))
    expected = Expectations(destinations=("lines",), mirrors=("alpha", "beta"))
    [note] = make_summary(made.picture(), made.clock.now(), expected).notes
    path = made.chain.path
    assert note.startswith(f"mirror beta is deactivated for {path}, so no notice there waits for it")
    assert note.endswith(f"to end that: vcsreplicator roster activate beta --repository {path}")
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA, replace(beta, deactivated=()))))
    assert make_summary(made.picture(), made.clock.now(), expected).notes == ()


def test_a_setting_of_the_master_that_a_mirror_does_not_know_is_a_note() -> None:
    made = Installation()
    made.ack(3, assumed=True)
    expected = Expectations(destinations=("lines",), mirrors=("alpha",))
    [note] = make_summary(made.picture(), made.clock.now(), expected).notes
    assert note == (
        f"mirror alpha does not know whether the master is publishing, and does not publish, in {made.chain.path}; "
        "to have it follow the master, push to them, or run hg replicatesync in them there"
    )
    made.ack(3)
    assert make_summary(made.picture(), made.clock.now(), expected).notes == ()


def test_notices_without_a_mirror_are_a_note_with_the_command_to_hold() -> None:
    made = Installation()
    made.ack(3)
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA,), allow_empty=True))
    expected = Expectations(destinations=("lines",), mirrors=("alpha",))
    summary = make_summary(made.picture(), made.clock.now(), expected)
    [note] = summary.notes
    assert note == (
        "notices of a repository that no mirror gates go out; to hold them again: vcsreplicator roster allow-empty no --yes"
    )
    assert as_data(made.picture(), made.clock.now(), expected)["notes"] == (note,)


@pytest.mark.parametrize(
    ("count", "told"), [(1, "1 reject is in topic errors: "), (12, "12 rejects are in topic errors: ")]
)
def test_rejects_are_a_note_with_the_commands_that_show_and_send_them(count: int, told: str) -> None:
    made = Installation()
    made.ack(3)
    expected = Expectations(destinations=("lines",), mirrors=("alpha",))
    picture = made.picture()
    picture.errors = 0
    assert make_summary(picture, made.clock.now(), expected).notes == ()
    picture.errors = count
    summary = make_summary(picture, made.clock.now(), expected)
    [note] = summary.notes
    assert note.startswith(told)
    for command in ("vcsreplicator errors list", "vcsreplicator replay", "vcsreplicator errors retry"):
        assert command in note
    assert summary.findings == ()
    assert as_data(picture, made.clock.now(), expected)["notes"] == (note,)


def test_what_an_operator_paused_is_a_note_for_as_long_as_it_is_reported() -> None:
    made = Installation()
    made.ack(3)
    text = "subscription ci of hooks is paused: by an operator; vcsreplicator subscription resume ci"
    meant = ServiceTrouble(text=text, since=made.clock.now() - 1e6, is_meant=True)
    report = ServiceReport(time=made.clock.now(), version="1", count=1, troubles=(meant,))
    made.write(SERVICES, "destination hooks", report)
    expected = Expectations(destinations=("lines", "hooks"), mirrors=("alpha",))
    summary = make_summary(made.picture(), made.clock.now(), expected)
    assert summary.notes == (text,)
    assert not any(text in found.text for found in summary.findings)
    assert text not in "".join(summary.recent)


def test_more_than_a_report_names_of_what_operators_made_are_notes() -> None:
    made = Installation()
    made.ack(3)
    meant = [ServiceTrouble(text=f"subscription {each} is unsigned", since=0.0, is_meant=True) for each in range(25)]
    ServiceReporter(made.log, "destination hooks").report(meant, now=made.clock.now())
    expected = Expectations(destinations=("lines", "hooks"), mirrors=("alpha",))
    summary = make_summary(made.picture(), made.clock.now(), expected)
    assert not any("more" in found.text for found in summary.findings)
    assert summary.notes[-1] == (
        "destination hooks: 5 more that operators paused or left unsigned; see: vcsreplicator subscription list"
    )
