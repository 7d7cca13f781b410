# SPDX-License-Identifier: GPL-2.0-or-later
"""The embedded log that a master's relay, or its pushes, write to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import Log, topics
from hgext.vcsreplicator.log.opening import open_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
        yield log
