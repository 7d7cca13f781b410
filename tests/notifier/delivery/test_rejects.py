# SPDX-License-Identifier: GPL-2.0-or-later
"""Whose fault an exception is decides whether a message is retried or kept in `errors`."""

import errno
import time

import pytest

from hgext.vcsreplicator.log import ERRORS, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import MalformedEvent, Rejected, ReplicationError, Unavailable
from hgext.vcsreplicator.words.records import ErrorRecord
from hgext.vcsreplicator.words.shape import from_json
from notifier.delivery.rejects import Rejects, judged
from testing.services.kafka import Kafka

pytestmark = pytest.mark.processes


def no_such_time() -> Exception:
    try:
        time.gmtime(1e18)
    except (OSError, OverflowError) as error:
        return error
    raise AssertionError("this machine's calendar has every time")


@pytest.mark.parametrize(
    "error",
    [
        no_such_time(),
        OSError(errno.EOVERFLOW, "too large"),
        OverflowError("too large"),
        ValueError("no"),
        KeyError("x"),
    ],
    ids=repr,
)
def test_what_a_message_causes_is_a_reject_of_it_with_its_traceback(error: Exception) -> None:
    found = judged(error)
    assert isinstance(found, Rejected)
    assert type(error).__name__ in str(found)


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(getattr(errno, name), name) for name in ("ENOSPC", "EIO", "EMFILE", "ECONNRESET", "EHOSTUNREACH", "EINVAL")),
        ConnectionResetError(),
        TimeoutError(),
        OSError("no number"),
        MemoryError(),
    ],
    ids=repr,
)  # fmt: skip
def test_what_the_machine_or_a_connection_causes_is_tried_again(error: Exception) -> None:
    assert isinstance(judged(error), Unavailable)


@pytest.mark.parametrize("error", [Unavailable("away"), MalformedEvent("no event"), Rejected("too large")])
def test_what_is_judged_already_stays_so(error: ReplicationError) -> None:
    assert judged(error) is error


def test_a_reject_refused_for_its_size_is_kept_without_its_value(kafka: Kafka, unique_name: str) -> None:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}-") as log:
        log.create(topics(partitions=1))
        kafka.set_largest(f"{unique_name}-{ERRORS}", 20_000)
        Rejects("file", log, SystemClock()).keep("no", b"." * 50_000, 7, "k")
        [kept] = read_records(log, find_beginnings(log, ERRORS))
        found = from_json(ErrorRecord, kept.value or b"")
        assert (found.reason, found.offset, found.destination, found.value) == ("no", 7, "file", "")
