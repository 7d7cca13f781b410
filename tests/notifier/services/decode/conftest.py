# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoder's tools, with a small database of places."""

from pathlib import Path

import pytest

from hgext.vcsreplicator.log import Log
from notifier.decode.decoding import Tools
from notifier.decode.documents import load_schemas
from notifier.decode.geo import open_geo
from notifier.decode.settings import SHIPPED
from notifier.raw import raw_topic
from testing.builders.notifier.submissions import write_cities, write_geo


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `geo.mmdb` and `cities.txt`."""
    folder = tmp_path_factory.mktemp("places")
    write_geo(folder / "geo.mmdb")
    write_cities(folder / "cities.txt")
    return folder


@pytest.fixture(scope="session")
def tools(places: Path) -> Tools:
    geo = open_geo(str(places / "geo.mmdb"), str(places / "cities.txt"), 15000, 0)
    return Tools(schemas=load_schemas(SHIPPED), geo=geo, largest=100_000)


@pytest.fixture
def log(log: Log) -> Log:
    """The log, with the topics of a decoder."""
    log.create([raw_topic("raw"), raw_topic("decoded")])
    return log
