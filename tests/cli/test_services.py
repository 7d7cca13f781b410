# SPDX-License-Identifier: GPL-2.0-or-later
"""What a verb that runs for long imports, since its memory is that of the machine."""

import subprocess
import sys

import pytest

from hgext.vcsreplicator.cli import SERVICES

pytestmark = pytest.mark.processes

LOAD = """
import sys
from hgext.vcsreplicator.cli import program
program.get_command(None, sys.argv[1])
import structlog
print("rich" in sys.modules)
import rich.console
"""


@pytest.mark.parametrize("verb", sorted(SERVICES))
def test_a_service_does_not_load_what_draws_tables(verb: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", LOAD, verb], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_worker_loads_nothing_for_log_lines() -> None:
    load = "import sys, hgext.vcsreplicator.hg.replica.nursery; print('structlog' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", load], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
