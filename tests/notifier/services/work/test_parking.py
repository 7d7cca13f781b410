# SPDX-License-Identifier: GPL-2.0-or-later
"""Parked messages come back in their order, and no more of them at once than fit into memory."""

from contextlib import closing
from pathlib import Path

import pytest

from notifier.messages.pushes import LARGEST, QueuedPush, to_body
from notifier.services.work.backlog import TakenMessage
from notifier.services.work.database import WorkDatabase
from notifier.services.work.parking import ParkedMessages
from notifier.services.work.recording import read_message

pytestmark = pytest.mark.processes

URL = "https://hg.example/x"


def a_message(push: int, size: int) -> TakenMessage:
    """Return a message of one push with about so many bytes."""
    nodes = tuple(f"{number:040x}" for number in range(1, size // 43))
    body = to_body(1, [QueuedPush(id=push, date=1, user="dana", changesets=nodes)]).encode()
    repository, message = read_message({"source": "poll", "repository": URL}, body, ("https://hg.example/",))
    return TakenMessage(tag=push, body=body, repository=repository, message=message)


def test_large_messages_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    with closing(WorkDatabase(f"sqlite:///{tmp_path}/work.db")) as database:
        database.migrate()
        parked = ParkedMessages(database, 2**40)
        parked.add(
            [a_message(push, size) for push, size in ((1, 100), (2, LARGEST // 2), (3, LARGEST - 1000), (4, 100))], 1
        )
        found = []
        while read := parked.read(("poll", 1), 100):
            found.append([push.id for message in read for push in message.message.pushes])
            parked.remove(read)
    assert found == [[1, 2], [3, 4]]
