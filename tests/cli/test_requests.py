# SPDX-License-Identifier: GPL-2.0-or-later
"""Who asks, as it is recorded."""

import os
import pwd

import pytest

from hgext.vcsreplicator.cli.requests import who


def test_a_user_whom_the_system_does_not_know_is_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(user: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    for name in ("SUDO_USER", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", find)
    monkeypatch.setattr(os, "getuid", lambda: 34567)
    assert who() == f"uid 34567@{os.uname().nodename}"
