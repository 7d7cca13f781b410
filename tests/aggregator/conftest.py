# SPDX-License-Identifier: GPL-2.0-or-later
"""Each kind of log, for tests of what an aggregator writes."""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> str:
    if request.param == "kafka":
        return f"{request.getfixturevalue('kafka').url}?topic-prefix={unique_name}."
    return f"sqlite://{tmp_path / 'log.db'}"
