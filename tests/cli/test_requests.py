# SPDX-License-Identifier: GPL-2.0-or-later
"""Who asks, as it is recorded."""

import os
import pwd
from contextlib import closing

import pytest

from hgext.vcsreplicator.cli.requests import who
from notifier.state import Kind, StateDatabase


def test_a_user_whom_the_system_does_not_know_is_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(user: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    for name in ("SUDO_USER", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", find)
    monkeypatch.setattr(os, "getuid", lambda: 34567)
    assert who() == f"uid 34567@{os.uname().nodename}"


@pytest.mark.parametrize("variable", ["SUDO_USER", "LOGNAME"])
def test_a_name_that_is_no_utf8_is_recorded_with_its_odd_bytes_as_digits(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv(variable, os.fsdecode(b"caf\xe9 \xc3\xa9"))
    with closing(StateDatabase(":memory:")) as state:
        number = state.requests.ask("it", Kind.PAUSE, {}, who=who(), now=1.0)
        assert state.requests.read(number).who == f"caf\\xe9 é@{os.uname().nodename}"
