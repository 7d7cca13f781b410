# SPDX-License-Identifier: GPL-2.0-or-later
"""The client's own thread runs at any moment, even between two lines of ours."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.producer.transaction_manager import TransactionManager, TransactionState

from hgext.vcsreplicator.log.kafka.clients import commit_when_written, rim
from hgext.vcsreplicator.log.kafka.options import parse
from hgext.vcsreplicator.words.errors import Unavailable

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


def test_the_outcome_of_a_commit_that_is_there_at_once_is_returned() -> None:
    manager = Overtaken()
    ended = commit_when_written(cast(KafkaProducer, SimpleNamespace(_transaction_manager=manager)), [], lambda: None)
    manager.sender.join()
    assert ended.succeeded


@pytest.mark.parametrize(
    ("failure", "step"),
    [
        (
            "Handshake failed: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1)",
            "the broker's certificate is not accepted; check its dates and names, and ssl_cafile",
        ),
        ("[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate (_ssl.c:1)", "check ssl_certfile"),
        ("[SSL: SSLV3_ALERT_CERTIFICATE_UNKNOWN] sslv3 alert certificate unknown (_ssl.c:1)", "check ssl_certfile"),
        ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required", "check ssl_certfile"),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:1)", "check ssl_certfile"),
    ],
)
def test_a_certificate_that_one_side_refuses_is_no_missing_answer(failure: str, step: str) -> None:
    options = parse("kafka://127.0.0.1:1?security_protocol=SSL")
    with pytest.raises(Unavailable, match=step) as caught, rim(options, "list the topics"):
        raise kafka_errors.KafkaConnectionError(failure)
    assert "no answer" not in str(caught.value)
