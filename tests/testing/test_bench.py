# SPDX-License-Identifier: GPL-2.0-or-later
"""The measured servers do what they are asked for, which shows only when something is measured."""

from pathlib import Path

import pytest

from testing.bench import serving

pytestmark = pytest.mark.processes


def test_a_measured_mirror_takes_changes_and_answers(tmp_path: Path) -> None:
    place = str(tmp_path / "made")
    serving.make(place, 5)
    with serving.Server(place, "mirror") as server:
        server.change(1)
        for request in server.requests:
            wall, spent = server.ask(request)
            assert wall > 0
            assert spent > 0
        assert server.release() > 0
