# SPDX-License-Identifier: GPL-2.0-or-later
"""Who asks, as it is recorded."""

import os
import pwd
from contextlib import closing
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli.requests import find_webhook, who
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.words.errors import Refused
from notifier.destinations.state import Kind, StateDatabase


def test_a_user_whom_the_system_does_not_know_is_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(user: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    for name in ("SUDO_USER", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", find)
    monkeypatch.setattr(os, "getuid", lambda: 34567)
    assert who() == f"uid 34567@{os.uname().nodename}"


@pytest.mark.parametrize("variable", ["LOGNAME", "USER", "LNAME", "USERNAME"])
def test_no_variable_of_the_environment_names_the_user(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv(variable, "another")
    assert who() == f"{pwd.getpwuid(os.getuid()).pw_name}@{os.uname().nodename}"


def test_what_sudo_says_stands_beside_the_user_and_never_in_place_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", os.fsdecode(b"caf\xe9 \xc3\xa9"))
    with closing(StateDatabase(":memory:")) as state:
        number = state.requests.ask("it", Kind.PAUSE, {}, who=who(), now=1.0)
        recorded = state.requests.read(number).who
    assert recorded == f"{pwd.getpwuid(os.getuid()).pw_name}@{os.uname().nodename} (SUDO_USER: caf\\xe9 é)"


@pytest.mark.parametrize(
    ("hooks", "name", "refusal"),
    [
        ((), None, "has no destination of type webhook"),
        (("one",), "two", "has no destination of type webhook with the name two (there are: one)"),
        (("one", "two"), None, "has more than one destination of type webhook (one, two); use --destination"),
    ],
)
def test_a_webhook_destination_that_cannot_be_chosen_is_refused(
    tmp_path: Path, hooks: tuple[str, ...], name: str | None, refusal: str
) -> None:
    file = tmp_path / "x.toml"
    sections = [f'[notifier.{hook}]\ntype = "webhook"\ndatabase = "{tmp_path}/{hook}.db"\n' for hook in hooks]
    file.write_text('log = "sqlite:///log.db"\n[public.urls]\n"" = "https://hg.example/"\n' + "".join(sections))
    with pytest.raises(Refused) as refused:
        find_webhook(load(file), name)
    assert str(refused.value) == f"{file} {refusal}"
