# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror on a log of one partition, whose master can be asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.builders.mirror.mirroring import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, partitions=1) as bench:
        bench.serve_master()
        yield bench
