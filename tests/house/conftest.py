# SPDX-License-Identifier: GPL-2.0-or-later
"""The sources of the product are parsed once for all workers of a run."""

import pytest

from tests.house.sources import parse_product


def pytest_collection_finish(session: pytest.Session) -> None:
    """Parse them where tests are only collected: in the process whose forks the workers are (`testing/warm_workers.py`)."""
    if session.config.option.collectonly:
        parse_product()
