# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoder's tools, with a small database of places."""

from pathlib import Path

import pytest

from hgext.vcsreplicator.log import Log
from notifier.messages.raw import raw_topic
from notifier.services.decode.decoding import Tools
from notifier.services.decode.documents import load_schemas
from notifier.services.decode.geo import open_geo
from notifier.services.decode.settings import SHIPPED


@pytest.fixture(scope="session")
def tools(places: Path) -> Tools:
    geo = open_geo(str(places / "geo.mmdb"), str(places / "cities.txt"), 15000, 0)
    return Tools(schemas=load_schemas(SHIPPED), geo=geo, largest=100_000)


@pytest.fixture
def log(log: Log) -> Log:
    """The log, with the topics of a decoder."""
    log.create([raw_topic("raw"), raw_topic("decoded")])
    return log
