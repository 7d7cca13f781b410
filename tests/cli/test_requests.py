# SPDX-License-Identifier: GPL-2.0-or-later
"""Who asks, as it is recorded."""

import os
import pwd
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli.requests import ask_destination, find_webhook, who
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.log import NOTIFIER, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.shape import from_json, to_json
from notifier.destinations.state import Kind, RequestRecord, StateDatabase


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


def test_the_answer_of_a_false_notifier_has_no_control_character(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        f'log = "sqlite://{tmp_path}/log.db"\n[public.urls]\n"" = "https://hg.example/"\n[notifier]\n'
        f'state = "{tmp_path}/state.db"\n[notifier.lines]\ntype = "jsonlines"\nfile = "{tmp_path}/lines"\n'
    )
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
        said: list[str] = []
        asking = threading.Thread(
            target=lambda: said.append(
                ask_destination(load(tmp_path / "x.toml"), "lines", "pause", {}, person="me", wait=30)
            )
        )
        with closing(log.reader({(NOTIFIER, 0): 0})) as reader:
            asking.start()
            [request] = reader.poll(5)
        answer = replace(from_json(RequestRecord, request.value or b""), done_at=1.0, result="paused\x1b]0;x\a")
        log.append([NewRecord(topic=NOTIFIER, key=request.key, value=to_json(answer))])
        asking.join()
    assert said == ["paused\\x1b]0;x\\x07"]
