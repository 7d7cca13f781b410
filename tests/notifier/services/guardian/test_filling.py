# SPDX-License-Identifier: GPL-2.0-or-later
"""What the size of a queue means, without a broker."""

from typing import Any

import pytest

from notifier.services.guardian.filling import Filling, QueueStep, WatchedQueue, next_step, read_queue
from notifier.services.guardian.settings import Deletion
from tests.notifier.services.guardian.conftest import some_settings

WARN, REPORT, DELETE, NOTHING = QueueStep.WARN, QueueStep.REPORT, QueueStep.DELETE, QueueStep.NOTHING


def a_queue(messages: int | None, consumers: int = 0) -> WatchedQueue:
    return read_queue({"name": "queue/a/b", "messages": messages, "consumers": consumers})


def steps(*sizes: int | None, **changed: Any) -> list[QueueStep]:
    """What follows from a queue that has these sizes, one after the other; warn at 100, limit 200."""
    settings = some_settings(**{"warn_at": 100, "limit": 200, **changed})
    level, found = Filling.FINE, []
    for size in sizes:
        level, step = next_step(a_queue(size), level, settings)
        found.append(step)
    return found


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((99, 100), [NOTHING, WARN]),
        ((200, 201), [WARN, REPORT]),
        ((201, 200, 201), [REPORT, NOTHING, NOTHING]),
        ((100, 99, 100, 75, 100), [WARN, NOTHING, NOTHING, NOTHING, NOTHING]),  # near it, not across it
        ((100, 74, 100), [WARN, NOTHING, WARN]),
        ((201, 149, 201), [REPORT, NOTHING, REPORT]),
        ((201, 149, 100), [REPORT, NOTHING, NOTHING]),  # on the way down the owner knows
        ((100, None, 100), [WARN, NOTHING, NOTHING]),
    ],
)
def test_each_level_is_reported_once_until_the_queue_has_recovered(
    sizes: tuple[int, ...], expected: list[QueueStep]
) -> None:
    assert steps(*sizes) == expected


def test_a_queue_is_deleted_beyond_its_limit_only() -> None:
    assert steps(200, 201, delete=Deletion.YES) == [WARN, DELETE]
    assert steps(200, 201, delete=Deletion.UNUSED) == [WARN, DELETE]


def test_a_queue_with_a_consumer_is_deleted_only_if_the_setting_says_so() -> None:
    used = a_queue(9, consumers=1)
    assert next_step(used, Filling.FINE, some_settings(delete=Deletion.UNUSED))[1] is REPORT
    assert next_step(used, Filling.FINE, some_settings(delete=Deletion.YES))[1] is DELETE


@pytest.mark.parametrize(
    ("row", "is_bounded"),
    [
        ({}, None),
        ({"arguments": []}, False),
        ({"arguments": {"x-max-length": 5}}, True),
        ({"arguments": {"x-max-length-bytes": 5}}, True),
        ({"arguments": {"x-message-ttl": 5}}, False),
        ({"effective_policy_definition": {"max-length": 5}}, True),
        ({"effective_policy_definition": []}, None),
        ({"arguments": {"x-queue-type": "stream"}}, False),
        ({"arguments": {"x-queue-type": "stream", "x-max-age": "1D"}}, True),
        ({"arguments": "nonsense"}, False),
    ],
)
def test_a_queue_is_bounded_by_its_arguments_or_its_policy(row: dict[str, Any], is_bounded: bool | None) -> None:
    assert read_queue({"name": "q", **row}).is_bounded is is_bounded
