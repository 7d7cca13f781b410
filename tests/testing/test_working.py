# SPDX-License-Identifier: GPL-2.0-or-later
"""The host of the worker's tests."""

import urllib.request
from pathlib import Path

import pytest

from testing.builders.notifier.working import HgHost

pytestmark = pytest.mark.processes


def test_a_host_answers_more_than_a_pipe_would_hold_of_its_log(tmp_path: Path) -> None:
    with HgHost(tmp_path / "host") as host:
        host.add("r", 1)
        for _ in range(12):  # lines of 10 kB, and a pipe holds 64
            urllib.request.urlopen(f"{host.url('r')}?cmd=heads&and={'x' * 10_000}", timeout=60).close()
