# SPDX-License-Identifier: GPL-2.0-or-later
"""A supervisor over a log of one partition."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.supervising import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics(partitions=1))
        bench = Bench(tmp_path, log)
        yield bench
        bench.close()
