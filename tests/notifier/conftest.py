# SPDX-License-Identifier: GPL-2.0-or-later
"""An embedded log and a notifier at work on it, in this process; a small database of places."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.notifier.notices import with_topics
from testing.builders.notifier.notifying import Notifier
from testing.builders.notifier.submissions import write_cities, write_geo


@pytest.fixture(autouse=True)
def attentive_everywhere(attentive: None) -> None:
    """All destinations of these tests."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        yield with_topics(log)


@pytest.fixture
def notifier(log: Log, tmp_path: Path) -> Iterator[Notifier]:
    running = Notifier(log, tmp_path)
    yield running
    running.stop()
    running.state.close()


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `geo.mmdb` and `cities.txt`."""
    folder = tmp_path_factory.mktemp("places")
    write_geo(folder / "geo.mmdb")
    write_cities(folder / "cities.txt")
    return folder
