# SPDX-License-Identifier: GPL-2.0-or-later
"""A log of each adapter, with the topics of the contract suite."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.log.log_storage import TOPICS, Storage, kafka_storage, sqlite_storage
from testing.services.kafka import Kafka


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.services)])
def storage(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Storage:
    """A log of this test's own; on Kafka by the names of its topics."""
    if request.param == "kafka":
        return kafka_storage(request.getfixturevalue("kafka"), unique_name)
    (tmp_path / "log").mkdir()
    return sqlite_storage(tmp_path / "log")


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.services)])
def fragile(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A log that may be made to vanish: on Kafka a broker of this test's own."""
    if request.param == "kafka":
        return kafka_storage(request.getfixturevalue("own_service")(Kafka), "own")
    (tmp_path / "log").mkdir()
    return sqlite_storage(tmp_path / "log")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes at the end what a test opened."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def log(storage: Storage, opened: ExitStack) -> Log:
    log = opened.enter_context(open_log(storage.url, creates=True))
    log.create(TOPICS)
    return log
