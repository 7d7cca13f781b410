# SPDX-License-Identifier: GPL-2.0-or-later
"""A queue of pushes in a real RabbitMQ."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from notifier.services.work import commandserver
from testing.builders.notifier.working import HgQueueSender
from testing.warm_hg import shared_hg


@pytest.fixture
def broker(rabbitmq: Any) -> Iterator[HgQueueSender]:
    made = HgQueueSender(rabbitmq.vhost())
    yield made
    made.close()


@pytest.fixture
def warm_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a worker in this process start `hg` warm; the limits that it sets are those of the caller then."""

    def start(command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([shared_hg(env), *command[1:]], env=env, **options)

    names = ("PIPE", "DEVNULL", "TimeoutExpired")
    others = {name: getattr(subprocess, name) for name in names}
    monkeypatch.setattr(commandserver, "subprocess", SimpleNamespace(Popen=start, **others))
