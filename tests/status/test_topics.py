# SPDX-License-Identifier: GPL-2.0-or-later
"""Topics that an administrator removed or changed are named at once, with what to do."""

from dataclasses import replace

from hgext.vcsreplicator.log import (
    ACKS,
    EVENTS,
    NOTICES,
    PENDING,
    ROSTER,
    Topic,
    TopicComparison,
    TopicDifference,
    topics,
)
from hgext.vcsreplicator.status import SILENT, Picture
from hgext.vcsreplicator.status.findings import as_data
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.status.summary import make_summary
from hgext.vcsreplicator.status.topics import find_topics
from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, MirrorHeartbeat, ServiceReport

NOW = 1000.0
REMEDY = "kafka-configs.sh --entity-name hg.roster --add-config cleanup.policy=compact"


def picture_of(**changed: TopicComparison) -> Picture:
    """A picture of a log in which these topics differ."""
    well = {topic.name: TopicComparison(name=topic.name, found=topic) for topic in topics()}
    return Picture(topics=tuple({**well, **changed}.values()))


def texts(picture: Picture) -> list[str]:
    return [f"{finding.level.name}: {finding.text}" for finding in find_topics(picture, NOW)]


def test_nothing_is_said_of_topics_as_they_were_created() -> None:
    assert texts(picture_of()) == []


def test_an_open_transaction_that_holds_up_readers_is_named() -> None:
    picture = replace(picture_of(), held_up=("topic hg.services: a transaction is open",))
    assert texts(picture) == [
        "WARNING: topic hg.services: a transaction is open; until then its readers see nothing newer (docs/log.md, Topics)"
    ]


def test_missing_topics_are_critical_with_the_command_that_makes_them() -> None:
    missing = {name: TopicComparison(name=name) for name in (EVENTS, PENDING)}
    assert texts(picture_of(pending=missing[PENDING])) == [
        "CRITICAL: the log lacks the topic pending; run: vcsreplicator topics create"
    ]
    assert texts(picture_of(**missing)) == [
        "CRITICAL: the log lacks the topics events, pending; run (with the --partitions of its first creation, if not 16): "
        "vcsreplicator topics create"
    ]


def test_a_topic_that_the_acls_hide_is_not_called_missing() -> None:
    picture = picture_of(pending=TopicComparison(name=PENDING, is_shown=False))
    assert texts(picture) == []
    note = "topic pending: not compared, its settings are hidden by ACLs (docs/log.md, Access)"
    assert make_summary(picture, 0.0, Expectations()).notes == (note,)


def test_a_log_of_an_older_release_has_one_finding_about_reports() -> None:
    picture = replace(picture_of(services=TopicComparison(name="services")), has_services=False)
    assert texts(picture) == []


def test_a_topic_that_is_not_kept_by_key_is_critical() -> None:
    policy = TopicDifference(setting="cleanup.policy", found="delete", needed="compact", is_must=True)
    other = TopicDifference(setting="retention.ms", found="1000", needed="-1", is_must=True)
    found = Topic(name=ROSTER)
    roster = TopicComparison(name=ROSTER, found=found, differences=(policy,), remedies=("# other", REMEDY))
    acks = TopicComparison(name=ACKS, found=found, differences=(other,), remedies=("# other",))
    assert texts(picture_of(roster=roster, acks=acks)) == [
        "CRITICAL: topic roster: cleanup.policy is delete, must be compact, so the log removes records that are needed; "
        f"fix it: {REMEDY}"
    ]


def test_settings_that_can_lose_records_are_one_warning_each() -> None:
    def differing(name: str, *settings: tuple[str, str, str]) -> TopicComparison:
        differences = (
            TopicDifference(setting=s, found=f, needed=n, is_must=s != "segment.bytes") for s, f, n in settings
        )
        return TopicComparison(name=name, found=Topic(name=name), differences=tuple(differences))

    clock = ("message.timestamp.type", "CreateTime", "LogAppendTime")
    small = ("max.message.bytes", "1048588", "8388608")
    others = (("compression.type", "producer", "uncompressed"), ("segment.bytes", "1073741824", "134217728"))
    picture = picture_of(events=differing(EVENTS, clock, small, *others), notices=differing(NOTICES, clock, *others))
    assert texts(picture) == [
        "WARNING: topics events, notices: message.timestamp.type is CreateTime, must be LogAppendTime: the clock of a client "
        "decides when records are removed and which service seems silent; for the remedy: vcsreplicator topics check",
        "WARNING: topic events: max.message.bytes is 1048588, must be 8388608: a repository that needs a "
        "larger record waits, and large pushes lose their bundle; for the remedy: vcsreplicator topics check",
    ]


def test_a_topic_that_keeps_records_for_a_moment_is_critical() -> None:
    def kept(seconds: float) -> list[str]:
        found, remedies = Topic(name=NOTICES, retention=seconds), ("# other", "alter retention.ms=2592000000")
        return texts(picture_of(notices=TopicComparison(name=NOTICES, found=found, remedies=remedies)))

    assert kept(0.01 * DAY) == []
    assert kept(1.0) == [
        "CRITICAL: topic notices: keeps records for 1 s, so the log removes records that are needed; "
        "fix it: alter retention.ms=2592000000"
    ]


def test_partitions_that_are_not_used_are_a_note() -> None:
    counts = {"found": "2", "needed": "1"}
    acks = TopicComparison(
        name=ACKS,
        found=Topic(name=ACKS, partitions=2),
        differences=(TopicDifference(setting="partitions", is_must=False, **counts),),
    )
    picture = picture_of(acks=acks)
    note = "more than one partition in topic acks: only partition 0 is used, so the others do no harm; Kafka cannot remove them"
    assert make_summary(picture, 0.0, Expectations()).notes == (note,)
    assert as_data(picture, 0.0, Expectations())["notes"] == (note,)
    assert texts(picture) == []


def test_services_that_began_with_fewer_partitions_are_named() -> None:
    events = TopicComparison(name=EVENTS, found=Topic(name=EVENTS, partitions=20))
    picture = picture_of(events=events)
    for name, count in (("alpha", 16), ("beta", 20), ("gone", 16), ("unknown", 0)):
        positions = {str(number): 0 for number in range(count)}
        picture.heartbeats[name] = MirrorHeartbeat(mirror=name, time=0.0, positions=positions, version="1")
    picture.reports["relay hg://a"] = ServiceReport(time=0.0, version="1", partitions=16)
    picture.reports["destination b"] = ServiceReport(time=0.0, version="1")
    picture.aggregator = AggregatorHeartbeat(time=0.0, roster=1, held=0, partitions=16)
    picture.heard |= dict.fromkeys(
        ("alpha", "beta", "unknown", "relay hg://a", "destination b", "aggregator"), (0, NOW)
    )
    picture.heard["gone"] = 0, NOW - SILENT - 1
    assert texts(picture) == [
        "CRITICAL: topic events has 20 partitions now, and some services began with another number: aggregator (16), "
        "mirror alpha (16), relay hg://a (16); repositories stall until each of them is restarted (docs/log.md, Topics): "
        "systemctl restart 'vcsreplicator-*'"
    ]
    picture.topics = picture_of(events=replace(events, found=Topic(name=EVENTS, partitions=16))).topics
    assert "mirror beta (20);" in texts(picture)[0]
