# SPDX-License-Identifier: GPL-2.0-or-later
"""A browser of tests leaves nothing behind."""

from pathlib import Path

import pytest

from testing.builders.browser import open_browser
from testing.waiting import eventually


@pytest.mark.processes
def test_a_browser_ends_with_its_block_and_all_its_processes_do() -> None:
    with open_browser() as browser:
        folder = browser.capabilities["chrome"]["userDataDir"]
        assert count_processes(folder) > 0
    eventually(lambda: count_processes(folder) == 0, "the browser to end", timeout=20)


def count_processes(folder: str) -> int:
    """How many processes have the folder in their command line."""
    found = 0
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += folder.encode() in words.read_bytes()
        except OSError:  # it ended
            continue
    return found
