# SPDX-License-Identifier: GPL-2.0-or-later
"""The client's own thread runs at any moment, even between two lines of ours."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import KafkaProducer
from kafka.producer.transaction_manager import TransactionManager, TransactionState

from hgext.vcsreplicator.log.kafka.clients import commit_when_written

pytestmark = pytest.mark.processes


class Overtaken(TransactionManager):  # type: ignore[misc]  # the client comes without types
    """A transaction whose caller falls asleep once the commit has begun, while the client's thread goes on."""

    def __init__(self) -> None:
        super().__init__(transactional_id="x", transaction_timeout_ms=1000)
        self._current_state = TransactionState.IN_TRANSACTION
        # It finds that there is nothing to write, and ends the request.
        self.sender = threading.Thread(target=self.next_request_handler, args=[False])

    def begin_commit(self) -> Any:
        result = super().begin_commit()
        self.sender.start()
        self.sender.join(0.1)
        return result


def test_the_outcome_of_a_commit_reaches_its_caller_though_it_is_there_at_once() -> None:
    manager = Overtaken()
    ended = commit_when_written(cast(KafkaProducer, SimpleNamespace(_transaction_manager=manager)), [])
    manager.sender.join()
    assert ended.succeeded
