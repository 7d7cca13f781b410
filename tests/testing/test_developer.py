# SPDX-License-Identifier: GPL-2.0-or-later
"""A developer's hg that is kept open."""

import os
import sys
from pathlib import Path

import pytest

from testing.builders.developer import Developer, Killed

pytestmark = pytest.mark.processes


def test_a_killed_hg_is_a_process_no_more(tmp_path: Path) -> None:
    """Mercurial takes a zombie for alive, and waits ten minutes for a lock that it left."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with Developer(tmp_path, {**os.environ, "HGRCPATH": "", "PATH": path}, is_warm=False) as dana:
        dana.hg("version")
        pid = dana.pid
        assert pid is not None
        dana.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(Killed):
            dana.hg("version")
        assert dana.hg("version")[0] == 0
