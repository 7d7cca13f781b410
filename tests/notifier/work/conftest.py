# SPDX-License-Identifier: GPL-2.0-or-later
"""A queue of pushes in a real RabbitMQ."""

from collections.abc import Iterator
from typing import Any

import pytest

from testing.builders.working import HgQueueSender


@pytest.fixture
def broker(rabbitmq: Any) -> Iterator[HgQueueSender]:
    made = HgQueueSender(rabbitmq.vhost())
    yield made
    made.close()
