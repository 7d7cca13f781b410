# SPDX-License-Identifier: GPL-2.0-or-later
"""What waits is counted in records, also where each transaction takes an offset of its own: on Kafka."""

import pytest

from hgext.vcsreplicator.log import ERRORS, NOTICES, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import FIRST_POLL, find_beginnings, read_records
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.status.findings import findings
from hgext.vcsreplicator.status.follower import Follower, look_at_destinations
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.status.wording import Severity
from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.records import SUBMITTED_KEY, UNREAD
from notifier.delivery.rejects import Rejects
from testing.builders.log.losinglog import LosingLog
from testing.builders.log.markedlog import MarkedLog
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock
from testing.services.kafka import Kafka

pytestmark = pytest.mark.processes


def test_markers_of_transactions_are_no_notices_and_no_errors(kafka: Kafka, unique_name: str) -> None:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}-") as log:
        log.create(topics(partitions=1))
        with_transactor = log.transactor("writer")
        for number in range(3):
            with_transactor.commit([NewRecord(topic=NOTICES, key="r", value=b"%d" % number)])
        with_transactor.commit([NewRecord(topic=ERRORS, key="r", value=b"x")])
        with_transactor.commit([NewRecord(topic=ERRORS, key=SUBMITTED_KEY, value=b"{}")])  # no reject
        with_transactor.close()
        offsets = [record.offset for record in read_records(log, find_beginnings(log, NOTICES))]
        assert log.ends(NOTICES)[0] > offsets[-1] + 1, "else there is nothing to tell apart"
        for name, settled in (("none", 0), ("some", offsets[0] + 1), ("all", offsets[-1] + 1)):
            log.acknowledge(f"notifier-{name}", NOTICES, {0: settled})
        log.acknowledge("something-else", NOTICES, {0: 0})
        follower = Follower(log)
        picture: Picture = follower.update()
        follower.close()
        look_at_destinations(log, picture)
        assert picture.lacking == {"none": 3, "some": 2, "all": 0}
        assert picture.oldest.keys() == {"none", "some"}
        assert picture.errors == 1


def test_a_destination_without_new_notices_is_counted_without_a_long_wait() -> None:
    marked, picture = MarkedLog(), Picture(positions={"hooks": 1})
    look_at_destinations(marked, picture)  # type: ignore[arg-type]
    assert picture.lacking == {"hooks": 0}
    assert max(marked.waits) <= 2 * FIRST_POLL


def test_notices_that_expired_before_a_destination_read_them_are_critical() -> None:
    log, picture, clock = MemoryLog(), Picture(), HandClock()
    log.create(topics(partitions=1))
    for name in ("hooks", "hooks", "removed"):
        reason = f"notices 10 to 15 {UNREAD} {name}"
        Rejects(name, log, clock).keep(reason, b"", 10, None)
    look_at_destinations(log, picture)
    now = picture.unread["hooks"][1]
    found = [each for each in findings(picture, now, Expectations(destinations=("hooks",))) if "lost" in each.text]
    assert [(each.level, each.text.partition(" notices")[0]) for each in found] == [
        (Severity.CRITICAL, "destination hooks lost up to 12")
    ]
    assert "vcsreplicator errors list" in found[0].text
    later = findings(picture, now + 2 * DAY, Expectations(destinations=("hooks",)))
    assert not any("lost" in each.text for each in later)


@pytest.mark.parametrize("topic", [NOTICES, ERRORS])
def test_counting_ends_though_the_log_loses_records_meanwhile(topic: str) -> None:
    log, picture = MemoryLog(), Picture(positions={"hooks": 0})
    log.create(topics(partitions=1))
    log.append([NewRecord(topic=name, key="r", value=b"{}") for name in (NOTICES, ERRORS) for _ in range(2)])
    look_at_destinations(LosingLog(log=log, topic=topic), picture)  # type: ignore[arg-type]
    assert picture.lacking == {"hooks": 1 if topic == NOTICES else 2}
    assert picture.errors == (1 if topic == ERRORS else 2)
