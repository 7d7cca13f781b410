# SPDX-License-Identifier: GPL-2.0-or-later
"""Edges in this process, over an embedded log; those that are no tests' own are shared by the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.notifier.submitting import Edge


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Edge, Log]]:
    folder = tmp_path_factory.mktemp("edge")
    with (
        open_log(f"sqlite://{folder}/log.db", creates=True) as log,
        Edge(
            log,
            folder,
            max_body_bytes=10_000,
            max_uri_bytes=300,
            max_connections=50,
            idle_timeout=1.0,  # a test asks all at once, and reads until the end
            without_id=("eng-workflow.build-anonymous",),
        ) as edge,
    ):
        yield edge, log


@pytest.fixture(scope="module")
def impatient_edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """An edge that soon closes a connection on which nothing comes: no test may be late that wants to use one."""
    folder = tmp_path_factory.mktemp("impatient")
    with (
        open_log(f"sqlite://{folder}/log.db", creates=True) as log,
        Edge(log, folder, header_timeout=1.0, body_timeout=1.5, idle_timeout=1.0) as edge,
    ):
        yield edge


@pytest.fixture
def edge(shared: tuple[Edge, Log]) -> Edge:
    return shared[0]


@pytest.fixture
def taken_log(shared: tuple[Edge, Log]) -> Log:
    return shared[1]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        yield log
