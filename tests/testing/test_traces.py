# SPDX-License-Identifier: GPL-2.0-or-later
"""What a service in the process of the tests sets for Mercurial ends with the module that ran it."""

import subprocess
import sys
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT

pytestmark = pytest.mark.processes

FIRST = """
import os, pytest

@pytest.fixture(scope="module")
def relay():
    os.environ["HGRCSKIPREPO"] = "1"

def test_relay(relay):
    assert "HGRCSKIPREPO" in os.environ

def test_relay_again(relay):
    assert "HGRCSKIPREPO" in os.environ
    os.environ["HGPLAIN"] = "1"

def test_relay_at_last():
    assert "HGPLAIN" not in os.environ
"""
SECOND = """
import os

def test_no_relay():
    assert "HGRCSKIPREPO" not in os.environ
"""


def test_variables_of_mercurial_end_with_the_test_or_module(tmp_path: Path) -> None:
    (tmp_path / "test_first.py").write_text(FIRST)
    (tmp_path / "test_second.py").write_text(SECOND)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
