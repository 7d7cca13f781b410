# SPDX-License-Identifier: GPL-2.0-or-later
"""What `status` and `check` make of the log: nothing is called caught up that is not."""

from dataclasses import replace
from typing import Any

import pytest

from hgext.vcsreplicator import status
from hgext.vcsreplicator.dashboard.recent import RecentEvents
from hgext.vcsreplicator.dashboard.view import make_view
from hgext.vcsreplicator.log import ACKS, NOTICES, ROSTER, SERVICES, STATE, WATCHES, NewRecord, Topic, topics
from hgext.vcsreplicator.log.reports import INTERVAL
from hgext.vcsreplicator.status.findings import REFUSES, findings
from hgext.vcsreplicator.status.follower import Follower, look_at_destinations
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.status.summary import list_services, make_summary
from hgext.vcsreplicator.words.records import (
    DECODE_GROUP,
    AggregatorHeartbeat,
    MirrorHeartbeat,
    RepositoryState,
    ServiceReport,
    ServiceTrouble,
)
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorRole, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock

ALPHA = Mirror(name="alpha", state=MirrorState.ACTIVE)


class Installation:
    """A log with one repository of three events, one mirror and one destination; everything is level unless said otherwise."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.reporting = ["lines"]
        self.log = MemoryLog(clock=self.clock)
        self.log.create(topics(partitions=1))
        self.chain = Chain("group/one")
        self.chain.take(3)
        last = self.chain.events[-1]
        self.state = state_of(last, released=3, noticed=3)
        self.write(ROSTER, KEY, Roster(mirrors=(ALPHA,)))
        self.write(STATE, last.repository, self.state)
        for number in range(3):
            self.log.append([NewRecord(topic=NOTICES, key=last.repository, value=b"%d" % number)])
        self.delivered(3)

    def write(self, topic: str, key: str, value: object) -> None:
        self.log.append([NewRecord(topic=topic, key=key, value=to_json(value))])

    def ack(self, applied: int, **members: Any) -> None:
        ack = replace(self.chain.ack("alpha", applied), **members)
        self.write(ACKS, f"alpha/{self.chain.repository}", ack)

    def delivered(self, count: int) -> None:
        self.log.acknowledge("notifier-lines", NOTICES, {0: count})

    def picture(self, after: float = 0.0) -> status.Picture:
        """What is seen after so many seconds; mirror and aggregator live."""
        self.clock.advance(after)
        now = self.clock.now()
        self.write(STATE, "aggregator", AggregatorHeartbeat(time=now, roster=1, held=0))
        self.write(ACKS, "alpha", MirrorHeartbeat(mirror="alpha", time=now, positions={}, version="1"))
        for name in self.reporting:
            self.write(SERVICES, f"destination {name}", ServiceReport(time=now, version="1"))
        picture = Follower(self.log).update()
        look_at_destinations(self.log, picture)
        return picture

    def found(self, after: float = 0.0, destinations: tuple[str, ...] = ("lines",)) -> list[tuple[int, str]]:
        found = findings(self.picture(after), self.clock.now(), Expectations(destinations=destinations))
        return [(finding.level, finding.text) for finding in found]

    def undecoded(self, after: float) -> list[tuple[int, str]]:
        """What is found with decoders in the file."""
        picture = self.picture(after)
        look_at_destinations(self.log, picture, "raw")
        found = findings(picture, self.clock.now(), Expectations(destinations=("lines",), raw="raw"))
        return [(finding.level, finding.text) for finding in found]


@pytest.fixture
def installation() -> Installation:
    return Installation()


def test_a_mirror_that_is_caught_up_needs_no_operator(installation: Installation) -> None:
    installation.ack(3)
    assert installation.found(after=10_000.0) == []


def test_a_mirror_that_never_acked_is_behind_by_all(installation: Installation) -> None:
    assert installation.picture().behind("alpha") == 3


def test_what_a_mirror_does_not_carry_is_none_of_its_lag(installation: Installation) -> None:
    rules = Rules(exclude=("path:group/one",))
    installation.write(ROSTER, KEY, Roster(mirrors=(replace(ALPHA, rules=rules),)))
    assert installation.picture().behind("alpha") == 0
    installation.write(ROSTER, KEY, Roster(mirrors=(replace(ALPHA, deactivated=(installation.chain.repository,)),)))
    assert installation.picture().behind("alpha") == 0


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, []),
        ({"rules": Rules(exclude=("path:group/one",))}, ["its rules leave out group/one; let it carry all: vcsrep"]),
        ({"state": MirrorState.INACTIVE}, ["it is inactive, so its lag is not watched; run vcsreplicator roster join"]),
        ({"state": MirrorState.REMOVED}, []),
    ],
)
def test_a_candidate_that_could_not_become_the_master_is_named(
    installation: Installation, members: dict[str, object], expected: list[str]
) -> None:
    installation.ack(3)
    alpha = replace(ALPHA, candidate=True, **members)  # type: ignore[arg-type]
    installation.write(ROSTER, KEY, Roster(mirrors=(alpha,)))
    found = [text.partition(", but ")[2][:48] for _, text in installation.found() if "become the master" in text]
    assert found == [each[:48] for each in expected]


def test_an_older_releases_bad_rule_is_named_with_what_to_type(
    installation: Installation,
) -> None:
    installation.ack(3)
    rules = Rules(include=("re:(?!private/)", "re:users/.*$"), exclude=("path:a b",))
    gone = Mirror(name="gone", state=MirrorState.REMOVED, rules=rules)
    installation.write(ROSTER, KEY, Roster(mirrors=(replace(ALPHA, rules=rules), gone)))
    [(level, text)] = installation.found()
    assert level == 1
    assert text.startswith("mirror alpha: rule 're:(?!private/)' leaves nothing out, because it cannot be evaluated: ")
    command = "vcsreplicator roster rules alpha --include RULE --include 're:users/.*$' --exclude 'path:a b' --yes"
    assert text.endswith(f"; give it other rules: {command}")


def test_a_mirror_that_does_not_get_on_is_named(installation: Installation) -> None:
    assert installation.found(after=59.0) == []
    [(level, text)] = installation.found(after=2.0)
    assert level == 1
    since = "for 61 s, since 2023-11-14 22:13:20 UTC"
    assert text == f"mirror alpha makes no progress on group/one ({since}); see: vcsreplicator trace group/one"


def test_a_mirror_that_was_just_added_lacks_progress_since_then_only(installation: Installation) -> None:
    added = replace(ALPHA, since=installation.clock.now() + 30.0)
    installation.write(ROSTER, KEY, Roster(mirrors=(added,)))
    assert installation.found(after=89.0) == []
    [(_, text)] = installation.found(after=2.0)
    assert "makes no progress on group/one (for 61 s, since 2023-11-14 22:13:50 UTC)" in text


def test_a_time_of_the_roster_to_come_is_no_lack_of_progress(installation: Installation) -> None:
    installation.write(ROSTER, KEY, Roster(mirrors=(replace(ALPHA, since=installation.clock.now() + 3600.0),)))
    assert installation.found(after=59.0) == []


def test_a_mirror_that_does_not_serve_what_is_released_is_named(installation: Installation) -> None:
    installation.write(ACKS, f"alpha/{installation.chain.repository}", installation.chain.ack("alpha", 3, serving=2))
    assert "makes no progress on" in installation.found(after=61.0)[0][1]


def test_a_mirror_that_stays_before_an_adopted_history_is_named(installation: Installation) -> None:
    installation.ack(3)
    adopted = replace(installation.state, incarnation="f" * 32, seq=1, released=0, noticed=0)
    installation.write(STATE, installation.chain.repository, adopted)
    assert installation.picture().behind("alpha") == 1
    assert "makes no progress on" in installation.found(after=61.0)[0][1]


def test_a_repository_whose_history_forks_is_critical_until_an_adoption(installation: Installation) -> None:
    installation.ack(3)
    installation.write(STATE, installation.chain.repository, replace(installation.state, fork="f" * 32))
    [(level, text)] = installation.found()
    assert level == 2
    assert text.startswith("group/one is forked: ")
    assert "`hg replicateadopt`" in text
    installation.write(STATE, installation.chain.repository, replace(installation.state, fork="f" * 32, deleted=True))
    assert installation.found() == [], "there is nothing left that could be adopted"


def test_many_forked_repositories_are_one_finding_that_names_some(installation: Installation) -> None:
    for number in range(9):
        state = replace(installation.state, repository=f"{number}" * 32, path=f"group/{number}", fork="f" * 32)
        installation.write(STATE, state.repository, state)
    [text] = [text for _, text in installation.found() if "forked" in text]
    assert text.startswith("group/0, group/1, group/2 and 6 more are forked: ")


@pytest.mark.parametrize(
    ("topic", "key", "dead"),
    [
        (ACKS, "aggregator/x", "aggregator"),
        (ACKS, "aggregator", "aggregator"),
        (SERVICES, "aggregator", "aggregator"),
        (ACKS, "destination lines", "destination lines"),
        (SERVICES, "alpha", "alpha"),
    ],
)
def test_a_writer_of_another_topic_gives_no_sign_of_life(
    installation: Installation, topic: str, key: str, dead: str
) -> None:
    now = installation.clock.now()
    installation.picture()
    follower = Follower(installation.log)
    seen = follower.update().seen(dead)
    installation.clock.advance(100.0)
    if topic == SERVICES:
        installation.write(topic, key, ServiceReport(time=now, version="1"))
    elif "/" in key:
        installation.write(topic, key, replace(installation.chain.ack("aggregator", 3), repository="x"))
    else:
        installation.write(topic, key, MirrorHeartbeat(mirror=key, time=now, positions={}, version="1"))
    assert follower.update().seen(dead) == seen > 0.0


@pytest.mark.parametrize(
    "names", [{"repository": "../../other"}, {"path": "../other"}, {"repository": "e" * 32}], ids=["id", "path", "key"]
)
def test_a_state_whose_names_lead_elsewhere_is_no_repository(installation: Installation, names: dict[str, str]) -> None:
    state = replace(installation.state, **{"repository": "f" * 32, **names})
    key = "f" * 32 if names == {"repository": "e" * 32} else state.repository
    installation.write(STATE, key, state)
    assert set(installation.picture().states) == {installation.chain.repository}


@pytest.mark.parametrize(("marked", "is_named"), [("group/one", False), ("one", True)])
def test_a_forked_repository_is_not_named_again_if_the_relay_names_it(
    installation: Installation, marked: str, is_named: bool
) -> None:
    for name, path in (("a" * 32, "one"), (installation.chain.repository, "group/one")):
        fork = "f" * 32 if path == marked else None
        installation.write(STATE, name, replace(installation.state, repository=name, path=path, fork=fork))
    seen, now = installation.picture(), installation.clock.now()
    refuses = ServiceTrouble(text="/repos/group/one: refuses pushes: the log has event 3", since=now, is_urgent=True)
    seen.reports["relay hg"] = ServiceReport(time=now, version="1", count=1, troubles=(refuses,))
    seen.heard["relay hg"] = (1, now)
    texts = [found.text for found in findings(seen, now, Expectations()) if found.level == 2]
    assert texts[0].startswith(refuses.text)
    assert [text.partition(":")[0] for text in texts[1:]] == ([f"{marked} is forked"] if is_named else [])


def test_a_mirror_whose_disk_is_full_is_critical_at_once_with_the_path(installation: Installation) -> None:
    installation.ack(3)
    seen = installation.picture()
    full = replace(
        seen.heartbeats["alpha"], trouble="/repos/~vcsreplicator: the mirror's notes: database or disk is full"
    )
    seen.heartbeats["alpha"] = replace(full, trouble_since=full.time - 100)
    [found] = findings(seen, installation.clock.now(), Expectations(destinations=("lines",)))
    text = f"mirror alpha cannot write to its disk, make room there: {full.trouble}"
    since = "for 100 s, since 2023-11-14 22:11:40 UTC"
    assert (found.level, found.text) == (2, f"{text} ({since}); see `disk` in docs/runbook.md")


def test_a_mirror_with_read_only_notes_is_not_told_to_make_room(installation: Installation) -> None:
    installation.ack(3)
    seen = installation.picture()
    trouble = "/repos/~vcsreplicator: the mirror's notes: attempt to write a readonly database"
    seen.heartbeats["alpha"] = replace(seen.heartbeats["alpha"], trouble=trouble)
    [found] = findings(seen, installation.clock.now(), Expectations(destinations=("lines",)))
    assert found.text == (
        f"mirror alpha cannot write to its disk: {trouble}; see `disk` in docs/runbook.md; "
        "restore that folder, or make it writable, then: systemctl restart vcsreplicator-mirror@alpha"
    )


def test_a_destination_that_stands_still_is_named(installation: Installation) -> None:
    installation.ack(3)
    installation.delivered(2)
    assert installation.found(after=60.0) == []
    [(level, text)] = installation.found(after=60.0)
    assert (level, text.partition(";")[0]) == (
        1,
        "destination lines is stalled: 1 notice waits for 2 min, since 2023-11-14 22:13:20 UTC",
    )
    assert installation.found(after=3600.0)[0][0] == 2


@pytest.mark.parametrize("is_running", [True, False], ids=["failing", "silent"])
def test_the_cause_of_a_stalled_destination_is_said_once_and_is_as_severe(
    installation: Installation, is_running: bool
) -> None:
    installation.ack(3)
    installation.delivered(2)
    seen, start = installation.picture(), installation.clock.now()
    trouble = ServiceTrouble(text="destination lines is failing: refused; see: X", since=start)
    seen.reports["destination lines"] = ServiceReport(time=start, version="1", count=1, troubles=(trouble,))
    cause = "destination lines is failing: refused" if is_running else "destination lines has sent no heartbeat for"
    for after, level in ((100.0, 1 if is_running else 2), (4000.0, 2)):
        now = start + after
        if is_running:
            seen.heard["destination lines"] = (1, now)
            late = replace(trouble, since=now - 100)  # a restarted notifier says since when it knows
            seen.reports["destination lines"] = ServiceReport(time=now, version="1", count=1, troubles=(late,))
        found = findings(seen, now, Expectations(destinations=("lines",)))
        [own] = [each for each in found if each.text.startswith("destination lines ")]
        assert own.text.startswith(cause)
        assert own.level == level


def test_a_destination_never_served_is_named_and_a_removed_one_is_not(installation: Installation) -> None:
    installation.ack(3)
    installation.delivered(0)
    assert [text.partition(";")[0] for _, text in installation.found(after=5000.0, destinations=("pulse",))] == [
        "destination pulse has never sent a heartbeat",
    ]


def test_a_destination_that_stops_reporting_is_critical_since_then(
    installation: Installation,
) -> None:
    installation.ack(3)
    assert installation.found() == []
    installation.reporting.clear()
    assert installation.found(after=60.0) == []
    [(level, text)] = installation.found(after=1.0)
    assert level == 2
    assert text.startswith("destination lines has sent no heartbeat for 61 s, since ")
    assert text.endswith("UTC; start its notifier: systemctl start vcsreplicator-notifier")
    assert installation.found(destinations=()) == [], "one that the configuration does not name may stop"


@pytest.mark.parametrize("kind", ["aggregator", "notifier", "guardian", "poll"])
def test_a_process_that_no_longer_stands_by_is_named(installation: Installation, kind: str) -> None:
    def report(host: str, *works: str) -> None:
        is_standby = not works
        made = ServiceReport(time=installation.clock.now(), version="1", is_standby=is_standby, works=works)
        installation.write(topic, f"{kind} {host}", made)

    topic = WATCHES if kind in ("guardian", "poll") else SERVICES

    installation.ack(3)
    report("first", "lines")
    report("spare")
    assert installation.found() == []
    installation.clock.advance(61.0)
    report("first", "lines")
    [(level, text)] = installation.found()
    assert level == 1
    assert text.startswith(f"the {kind} on spare has sent no heartbeat for 61 s, since ")
    assert text.endswith(f"UTC and does not stand by; start it there: systemctl start vcsreplicator-{kind}")
    titles = [line.title for line in list_services(installation.picture(), None)]
    assert {f"{kind} first (active)", f"{kind} spare (standby)"} <= set(titles)
    installation.log.append([NewRecord(topic=topic, key=f"{kind} spare", value=None)])
    assert installation.found() == []


def test_a_guardian_that_none_replaced_is_critical(installation: Installation) -> None:
    installation.ack(3)
    for name in ("one", "other"):
        report = ServiceReport(time=installation.clock.now(), version="1", works=(name,))
        installation.write(WATCHES, f"guardian host {name}", report)
    installation.clock.advance(61.0)
    installation.write(WATCHES, "guardian host other", report)
    [(level, text)] = installation.found()
    assert level == 2
    assert text.startswith("the guardian on host one has sent no heartbeat for 61 s, since ")
    assert text.endswith("and no other works in its place; start it there: systemctl start vcsreplicator-guardian")


def test_invented_processes_are_not_compared_with_each_other(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer of the topic can invent any number: those of 2 MB, compared in pairs, would keep `check` busy for minutes."""
    looks, measure = list[str](), status.Picture.silence

    def silence(picture: status.Picture, name: str, now: float) -> float:
        looks.append(name)
        return measure(picture, name, now)

    monkeypatch.setattr(status.Picture, "silence", silence)
    report = ServiceReport(time=installation.clock.now(), version="1", works=("x",))
    for number in range(300):
        installation.write(WATCHES, f"poll host-{number} x", report)
    found = installation.found(after=61.0)
    assert sum("no other works in its place" in text for _, text in found) == 300
    assert len(looks) < 10 * 300


class CountedStates(dict[str, RepositoryState]):
    """Counts how often all are looked at."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_invented_refusals_are_not_compared_with_each_repository(installation: Installation) -> None:
    installation.write(STATE, installation.chain.repository, replace(installation.state, fork="f" * 32))
    troubles = tuple(ServiceTrouble(text=f"/r/{number}{REFUSES}x", since=0.0, is_urgent=True) for number in range(1000))
    installation.write(SERVICES, "verify other", ServiceReport(time=1.0, version="1", troubles=troubles))
    picture = installation.picture()
    picture.states = states = CountedStates(picture.states)
    assert len(findings(picture, installation.clock.now(), Expectations())) > 1000
    assert states.looks < 100


def test_records_of_watches_that_are_no_reports_are_passed_over(installation: Installation) -> None:
    installation.ack(3)
    report = ServiceReport(time=installation.clock.now(), version="1")
    for key in ("relay master", "guardian/broker:5672/%2F/round"):
        installation.write(WATCHES, key, report)
    installation.clock.advance(600.0)
    assert not installation.picture().reports.keys() & {"relay master", "guardian/broker:5672/%2F/round"}


def test_decoders_are_listed_with_their_partitions_or_as_a_standby(installation: Installation) -> None:
    installation.log.shares = lambda beginning: {"b/2": [], "a/1": [("raw", 2), ("raw", 0)]}  # type: ignore[method-assign]
    picture = installation.picture()
    look_at_destinations(installation.log, picture)
    now = installation.clock.now()
    listed = {line.title: line.seen for line in make_summary(picture, now, Expectations()).services}
    assert listed["decode a/1 (raw/0, raw/2)"] == listed["decode b/2 (standby)"] == now
    rows = make_view(picture, RecentEvents(installation.log), now, Expectations()).services
    assert {row.name: row.is_silent for row in rows}["decode a/1 (raw/0, raw/2)"] is False


@pytest.mark.parametrize(
    ("had", "named"), [([], "raw/0, raw/1"), ([("raw", 0)], "raw/1"), ([("raw", 0), ("raw", 1)], "")]
)
def test_documents_that_wait_without_a_decoder_are_found(installation: Installation, had: Any, named: str) -> None:
    installation.ack(3)
    installation.log.create([Topic(name="raw", partitions=3)])
    for partition in (0, 0, 1, 2):
        installation.log.append([NewRecord(topic="raw", key=None, value=b"{}", partition=partition)])
    installation.log.acknowledge(DECODE_GROUP, "raw", {0: 1, 2: 1})
    installation.log.shares = lambda beginning: {"a/1": had}  # type: ignore[method-assign]
    assert installation.undecoded(after=60.0) == []
    found = installation.undecoded(after=1.0)
    command = "systemctl start vcsreplicator-decode"
    since = "for 61 s, since 2023-11-14 22:13:20 UTC"
    text = f"no decoder has {named}, where documents wait ({since}); start one: {command}"
    assert found == ([(1, text)] if named else [])


def test_no_document_waits_in_a_topic_that_is_not_there(installation: Installation) -> None:
    installation.ack(3)
    assert installation.undecoded(after=61.0) == []


def test_a_notifier_without_a_standby_is_missed_through_its_destinations(installation: Installation) -> None:
    installation.ack(3)
    for host, name in (("first", "lines"), ("other", "hooks")):
        made = ServiceReport(time=installation.clock.now(), version="1", works=(name,))
        installation.write(SERVICES, f"notifier {host}", made)
    installation.picture()
    installation.reporting.clear()
    installation.clock.advance(61.0)
    made = ServiceReport(time=installation.clock.now(), version="1", works=("hooks",))
    installation.write(SERVICES, "notifier other", made)
    [(level, text)] = installation.found()
    assert level == 2
    assert text.startswith("destination lines has sent no heartbeat for 61 s")


def test_a_service_is_not_silent_before_its_next_report_is_due(
    installation: Installation,
) -> None:
    installation.ack(3)
    seen, now = installation.picture(), installation.clock.now()
    for late, expected in ((INTERVAL + 4.0, 0), (2 * INTERVAL, 1)):
        told = findings(seen, now + late, Expectations(patience=0.0))
        assert (
            len([each for each in told if each.text.startswith("destination lines has sent no heartbeat")]) == expected
        )


def test_a_trouble_lasts_while_its_reporter_is_silent(
    installation: Installation,
) -> None:
    installation.ack(3)
    seen = installation.picture()
    now = installation.clock.now()
    passing = ServiceTrouble(text="passing", since=now - 50)
    urgent = ServiceTrouble(text="urgent", since=now, is_urgent=True)
    seen.reports["relay hg://other"] = ServiceReport(time=now, version="1", count=2, troubles=(passing, urgent))
    seen.heard["relay hg://other"] = (1, now)

    def texts(after: float) -> list[str]:
        return [finding.text[:7] for finding in findings(seen, now + after, Expectations(patience=60.0))]

    assert texts(0.0) == ["urgent "]
    assert set(texts(11.0)) == {"urgent ", "passing"}
    assert "the rel" in texts(61.0), "one that the configuration does not name is missed for a week"
    assert "the rel" not in texts(8 * 86400.0)


def test_a_mirror_that_was_just_added_is_not_silent_yet(installation: Installation) -> None:
    joining = Mirror(name="beta", state=MirrorState.JOINING, since=installation.clock.now())
    installation.write(ROSTER, KEY, Roster(mirrors=(joining,)))
    assert installation.found(after=60.0) == []
    assert "mirror beta is silent" in installation.found(after=1.0)[0][1]


def test_a_silent_mirror_is_named_also_just_after_the_roster_was_changed(installation: Installation) -> None:
    beta = Mirror(name="beta", state=MirrorState.ACTIVE, since=installation.clock.now())
    installation.write(ROSTER, KEY, Roster(mirrors=(ALPHA, beta)))
    installation.ack(3)
    assert len(installation.found(after=1000.0)) == 1
    joining = Mirror(name="gamma", state=MirrorState.JOINING, since=installation.clock.now())
    installation.write(ROSTER, KEY, Roster(mirrors=(ALPHA, beta, joining)))
    [(_, text)] = installation.found(after=1.0)
    assert text.startswith("mirror beta is silent since it was added")


def test_a_silent_mirror_comes_with_the_command_that_starts_it(installation: Installation) -> None:
    beta = Mirror(name="beta", state=MirrorState.ACTIVE)
    installation.write(ROSTER, KEY, Roster(mirrors=(ALPHA, beta)))
    [text] = [text for _, text in installation.found(after=1000.0) if "mirror beta is silent" in text]
    assert text.endswith(
        "; if it cannot start, deactivate it with `vcsreplicator roster deactivate beta --yes`; "
        "start it: systemctl start vcsreplicator-mirror@beta"
    )


def test_a_silent_backup_holds_nothing_and_a_mirror_what_it_gates(installation: Installation) -> None:
    backup = Mirror(name="backup", state=MirrorState.ACTIVE, role=MirrorRole.BACKUP)
    beta = Mirror(name="beta", state=MirrorState.ACTIVE, rules=Rules(exclude=("path:group/one",)))
    installation.write(ROSTER, KEY, Roster(mirrors=(ALPHA, backup, beta)))
    installation.write(STATE, installation.chain.repository, replace(installation.state, noticed=1))
    installation.ack(3)
    assert [(level, text.partition(";")[0]) for level, text in installation.found(after=61.0)] == [
        (2, "mirror beta is silent since it was added, and holds back the notices of new pushes"),
        (1, "mirror backup is silent since it was added"),
    ]


def test_a_silent_mirror_holds_back_only_what_it_does_not_serve(installation: Installation) -> None:
    """It may serve what others lack: to deactivate it would release none of that."""
    mirrors = tuple(Mirror(name=name, state=MirrorState.ACTIVE) for name in ("alpha", "beta", "gamma"))
    installation.write(ROSTER, KEY, Roster(mirrors=mirrors))
    installation.write(STATE, installation.chain.repository, replace(installation.state, released=1, noticed=1))
    for name, applied in (("alpha", 3), ("beta", 3), ("gamma", 1)):
        installation.write(ACKS, f"{name}/{installation.chain.repository}", installation.chain.ack(name, applied))
    silent = [text.partition(";")[0] for _, text in installation.found(after=61.0) if "is silent" in text]
    assert [text.rpartition(", ")[2] for text in silent] == [
        "and holds back the notices of new pushes",
        "and holds back 2 notices",
    ]


def test_what_holds_a_notice_back_are_mirrors_that_gate_it(installation: Installation) -> None:
    beta = Mirror(name="beta", state=MirrorState.ACTIVE)
    gone = Mirror(name="gone", state=MirrorState.INACTIVE)
    installation.write(ROSTER, KEY, Roster(mirrors=(ALPHA, beta, gone)))
    for name, applied in (("alpha", 3), ("gone", 1)):
        installation.write(ACKS, f"{name}/{installation.chain.repository}", installation.chain.ack(name, applied))
    assert installation.picture().holding(installation.state) == ["beta"]


def test_a_picture_holds_nothing_that_the_log_has_lost(installation: Installation) -> None:
    log, state = installation.log, installation.state
    older = log.copied(STATE)
    follower = Follower(log)
    installation.write(STATE, "f" * 32, replace(state, repository="f" * 32))
    assert len(follower.update().states) == 2
    log.restore(STATE, older)
    assert follower.update().states == {state.repository: state}
    installation.write(STATE, state.repository, replace(state, seq=4))
    assert follower.update().states[state.repository].seq == 4


def test_services_with_heartbeats_live_after_the_clock_went_back(
    installation: Installation,
) -> None:
    installation.ack(3)
    installation.picture()
    installation.clock.set_back(3600)
    installation.picture(after=5.0)
    follower = Follower(installation.log, installation.clock)
    now = follower.present(lambda _: installation.picture(after=5.0))
    assert now == installation.clock.now()
    look_at_destinations(installation.log, follower.picture)
    assert findings(follower.picture, now, Expectations(destinations=("lines",))) == []
    installation.picture(after=5.0)
    follower.update()
    assert follower.now() == installation.clock.now()


def test_a_service_that_stopped_before_the_clock_was_set_back_is_silent(installation: Installation) -> None:
    installation.ack(3)
    assert installation.found() == []
    installation.clock.set_back(3600)
    installation.reporting.clear()
    [(level, text)] = installation.found(after=61.0)
    assert level == 2
    assert text.startswith("destination lines has sent no heartbeat")


def test_after_reports_are_made_again_a_service_is_silent_only_later(
    installation: Installation,
) -> None:
    installation.ack(3)
    installation.write(STATE, installation.chain.repository, replace(installation.state, source="hg://master"))

    def found(after: float, relay: str = "hg://master") -> list[str]:
        picture, expected = installation.picture(after), Expectations(destinations=("lines",), relay=relay)
        return [finding.text for finding in findings(picture, installation.clock.now(), expected)]

    installation.reporting = ["other"]
    installation.picture()
    installation.reporting = ["lines"]
    assert found(50.0) == []
    [text] = found(0.0, relay="hg://never")
    assert text.startswith("the relay hg://never has never sent a heartbeat: ")
    [text] = found(11.0)
    assert text.startswith("the relay hg://master has sent no heartbeat since the topic `services` was made again: ")
