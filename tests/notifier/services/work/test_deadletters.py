# SPDX-License-Identifier: GPL-2.0-or-later
"""The dead-letter queue says of each letter which repository it is of."""

import pytest
import structlog

from hgext.vcsreplicator.words.clock import SystemClock
from notifier.delivery.destination import DeliveryOutcome
from notifier.services.work import deadletters
from notifier.services.work.database import RepositoryKey
from notifier.services.work.deadletters import DeadLetters
from notifier.services.work.recording import headers_of
from notifier.services.work.settings import WorkSettings

URL = "https://hg.example/x"


class ConfirmingChannel:
    """A channel whose broker confirms at once."""

    is_blocked = False

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, number: int, _message: object) -> None:
        self.sent.append(number)

    def outcomes(self, _timeout: float) -> list[DeliveryOutcome]:
        return [DeliveryOutcome(number=number) for number in self.sent]


def test_line_about_a_dead_letter_names_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletters, "open_queue", lambda *_: ConfirmingChannel())
    settings = WorkSettings(
        url="amqp://127.0.0.1", repositories=("https://hg.example/",), clones="/c", database_url="sqlite:////x"
    )
    letters = DeadLetters(settings, SystemClock())
    done: list[bool] = []
    repository = RepositoryKey(source="poll", number=1, url=URL)
    letters.keep(b"new", "not JSON", headers_of(repository), lambda: done.append(True))
    with structlog.testing.capture_logs() as lines:
        letters.send()
    assert lines == [
        {
            "event": "message kept in the dead-letter queue",
            "log_level": "error",
            "queue": settings.dead_queue,
            "repository": URL,
            "reason": "not JSON",
        }
    ]
    assert done
