# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports of services, where the log does not take them."""

from collections.abc import Callable
from typing import Any

import pytest

from hgext.vcsreplicator.log import EVENTS, SERVICES, reports, topics
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import ServiceReport, ServiceTrouble
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock


class LogWithoutTopic:
    """A log that takes `TIMEOUT` seconds of the service's time to say that it has no such topic."""

    def __init__(self) -> None:
        self.now, self.asked, self.has_topic = 1000.0, 0, False
        self.on_asked: Callable[[], None] = lambda: None
        self.taken: list[float] = []

    def append(self, records: Any, *, timeout: float) -> list[tuple[int, int]]:
        if self.has_topic:
            self.taken.append(self.now)
            return [(0, 0)]
        self.asked += 1
        self.now += timeout / 2
        self.on_asked()
        self.now += timeout / 2
        raise Unavailable("no topic services")


def test_a_log_without_the_topic_costs_little_of_a_services_time() -> None:
    log = LogWithoutTopic()
    reporter = reports.ServiceReporter(log, "relay hg", monotonic=lambda: log.now)  # type: ignore[arg-type]
    for turn in range(120):
        # a trouble that is another one each time is reported at once where the log takes it
        reporter.report([ServiceTrouble(text=f"disk {'a' * turn} full", since=1.0)], now=log.now)
        log.now += 0.5
    assert 2 <= log.asked <= 4


@pytest.mark.parametrize("answers_meanwhile", [False, True], ids=["afterwards", "while a report fails"])
def test_a_report_follows_at_once_when_the_log_answers_again(answers_meanwhile: bool) -> None:
    log = LogWithoutTopic()
    reporter = reports.ServiceReporter(log, "relay hg", monotonic=lambda: log.now)  # type: ignore[arg-type]
    for _ in range(3):
        log.now += reports.REST
        if answers_meanwhile:
            log.on_asked = reporter.note_answer
        reporter.report([], now=log.now)
    assert log.asked == 3
    log.has_topic = True
    log.now += 0.1
    if not answers_meanwhile:
        reporter.report([], now=log.now)
        assert log.taken == []
        reporter.note_answer()
    assert reporter.due <= log.now
    reporter.report([], now=log.now)
    assert log.taken == [log.now]
    reporter.note_answer()
    reporter.report([], now=log.now)
    assert log.taken == [log.now]


def test_a_trouble_whose_text_differs_in_a_number_is_no_other_trouble() -> None:
    clock = HandClock()
    log = MemoryLog(clock=clock)
    log.create(topics())
    reporter = reports.ServiceReporter(log, "relay hg", monotonic=clock.monotonic)

    def report(*texts: str) -> int:
        """How many reports the log has afterwards."""
        clock.advance(0.5)
        reporter.report([ServiceTrouble(text=text, since=1.0) for text in texts], now=clock.now())
        return log.ends(SERVICES)[0]

    texts = ("/repos/1: cannot be read: 3 of 7 bytes at 0x7f3a", "/repos/1: cannot be read: 4 of 8 bytes at 0x81bc")
    assert [report(text) for text in texts] == [1, 1]
    assert report(texts[0], texts[1].replace("/repos/1", "/repos/2")) == 2, "another repository is another trouble"
    assert report("/repos/1: cannot be read: damaged", texts[1].replace("/repos/1", "/repos/2")) == 3
    clock.advance(reports.INTERVAL)
    assert report("/repos/1: cannot be read: damaged", texts[0].replace("/repos/1", "/repos/2")) == 4


def test_a_process_that_reports_as_the_same_service_is_found() -> None:
    clock = HandClock()
    log = MemoryLog(clock=clock)
    log.create(topics())
    former, first, second, destination = (
        reports.ServiceReporter(log, name, monotonic=clock.monotonic)
        for name in (*["relay hg"] * 3, "destination hooks")
    )
    reader = log.reader({(SERVICES, 0): 0})

    def report(seconds: float, *reporters: reports.ServiceReporter) -> list[bool]:
        """For so long, each by a clock of its own; whether each of them shares its name afterwards."""
        for _ in range(round(seconds / 5)):
            clock.advance(5)
            for number, reporter in enumerate((*reporters, destination)):
                reporter.look_for_rival()
                reporter.report([], now=clock.now() + number / 10)
            for record in reader.poll(0):
                for reporter in reporters:
                    reporter.note_record(record)
        return [reporter.is_shared for reporter in reporters]

    report(60, former)
    [late] = [record for record in log.records(SERVICES) if record.key == "relay hg"]
    report(5, first)
    first.note_record(late)
    assert report(reports.INTERVAL, first) == [False], "the reports of a former process are older than its own"
    assert report(3 * reports.INTERVAL, first, second) == [True, True]
    assert report(2 * reports.INTERVAL, second) == [False]


def test_the_same_trouble_of_two_paths_with_blanks_is_two_troubles() -> None:
    first, second = (f"/repos/my app{number}: cannot be read: 3 of 7 bytes" for number in (1, 2))
    assert reports.name_trouble(first) != reports.name_trouble(second)
    assert reports.name_trouble(first) == reports.name_trouble(first.replace("3", "4"))
    assert reports.name_trouble("/repos/app1") == "/repos/app1"


@pytest.mark.parametrize(
    "text",
    [
        "subscription s{} of hooks is failing, last: 503",
        "repository try-{} is not on the master any more (rm, mv?): put it back",
        "repository {}/try is not on the master any more (rm, mv?): put it back",
        "/repos/a: cannot be read: Permission denied: /repos/a/.hg/store/outbox.{}.log; as root, run: vcsreplicator rights",
        "destination pulse-{} is failing: away",
    ],
)
def test_names_that_differ_in_a_digit_are_two_troubles(text: str) -> None:
    assert reports.name_trouble(text.format(1)) != reports.name_trouble(text.format(2))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("7", "12"),
        ("0.5s", "17s"),
        ("-1", "85"),
        ("12:03:04", "12:03:05"),
        ("20261126T120304Z", "2026-11-26T12:03:05.2Z"),
        ("0123456789ab", "f" * 32),
        ("01234567-89ab-cdef-0123-456789abcdef", "01234567-89ab-cdef-0123-456789abcdee"),
        ("<lock at 0x7f3a>", "<lock at 0x81bc>"),
        ("offset=7", "offset=8"),
        ("kafka-1:9092", "kafka-2:9092"),
        ("[::1]:9092", "127.0.0.1:40001"),
        ("('127.0.0.1', 9092)", "('127.0.0.2', 9093)"),
    ],
)
def test_a_count_a_time_an_id_and_an_address_are_no_part_of_a_trouble(first: str, second: str) -> None:
    for text in ("destination pulse is failing: broken at {}", "destination pulse is failing: {}: broken, {}."):
        assert reports.name_trouble(text.format(first, first)) == reports.name_trouble(text.format(second, second))


def test_a_report_is_written_while_the_topic_it_counts_is_missing() -> None:
    log = MemoryLog()
    log.create([topic for topic in topics() if topic.name == SERVICES])
    reports.ServiceReporter(log, "relay hg", topic=EVENTS).report([], now=1.0)
    [record] = log.records(SERVICES)
    assert from_json(ServiceReport, record.value or b"").partitions is None
