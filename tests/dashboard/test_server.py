# SPDX-License-Identifier: GPL-2.0-or-later
"""Which questions of `status` and `check` a dashboard answers."""

import os
import pwd
import shutil
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.dashboard.asked.question import FORMAT, StatusQuestion, ask
from hgext.vcsreplicator.dashboard.asked.server import LOOK_AGAIN, SocketUsers
from hgext.vcsreplicator.dashboard.server import _answer_questions, run
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log.opening import identify_log
from hgext.vcsreplicator.status.follower import Follower, look_at_destinations
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.status.summary import Summary, make_summary
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from testing.clock import HandClock
from testing.waiting import eventually
from tests.dashboard.conftest import AwayLog, Installation, fill, settings, settings_with, watching

EXPECTED = Expectations(destinations=("hooks", "lines"), relay="hg.example", warn=1, critical=2)
QUESTION = StatusQuestion(log=identify_log("memory:"), expected=EXPECTED)


@pytest.fixture
def path() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="asked-"))  # a socket's path may have 107 bytes
    yield str(folder / "socket")
    shutil.rmtree(folder)


def read(installation: Installation) -> Summary:
    """What a new reading of the log says."""
    follower = Follower(installation.log, installation.clock)
    now = follower.present()
    look_at_destinations(installation.log, follower.picture)
    return make_summary(follower.picture, now, EXPECTED)


def test_the_answer_is_what_a_new_reading_says(path: str) -> None:
    installation = fill()
    with watching(installation.sources) as followed, _answer_questions(settings_with(path), "memory:", followed):
        eventually(lambda: followed.view)
        for _ in range(5):
            installation.push("public/tools", serving=("alpha",))
            found = ask(path, QUESTION, patience=60.0)
            assert found == read(installation)
        assert [line.behind for line in found.mirrors] == [0, 7]
        assert len(found.findings) > 3


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (replace(QUESTION, version="0.0.9"), "this dashboard has version"),
        (replace(QUESTION, format=FORMAT + 1), "this dashboard has version"),
        (replace(QUESTION, log=identify_log("kafka://other:9092")), "this dashboard follows another log"),
    ],
    ids=["version", "format", "log"],
)
def test_a_question_that_is_not_for_this_dashboard_is_declined(path: str, question: StatusQuestion, why: str) -> None:
    with watching(fill().sources) as followed, _answer_questions(settings_with(path), "memory:", followed):
        eventually(lambda: followed.view)
        with pytest.raises(Unavailable, match=f"declined: {why}"):
            ask(path, question, patience=60.0)


def test_a_dashboard_declines_until_it_has_read_the_log(path: str) -> None:
    installation = fill()
    log = AwayLog(installation)
    log.is_away = True
    with (
        watching(installation.sources, log) as followed,  # type: ignore[arg-type]
        _answer_questions(settings_with(path), "memory:", followed),
        pytest.raises(Unavailable, match=r"declined: (the log was not read yet|no broker answers)"),
    ):
        ask(path, QUESTION, patience=60.0)


def test_two_dashboards_with_one_socket_are_one_too_many(path: str, tmp_path: Path) -> None:
    made, stop, is_ready = settings(tmp_path, socket=path), threading.Event(), threading.Event()

    def serve() -> None:
        address = ("127.0.0.1", free_port())
        run(made, fill().sources, address=address, stop=stop, ready=is_ready.set)

    first = threading.Thread(target=serve, daemon=True)
    first.start()
    try:
        eventually(is_ready.is_set)
        assert eventually(lambda: _try(path))
        with pytest.raises(BadConfig, match=rf"dashboard\.socket: {path}: another dashboard is running"):
            run(
                made,
                fill().sources,
                address=("127.0.0.1", free_port()),
                stop=threading.Event(),
                ready=lambda: None,
            )
        assert ask(path, QUESTION, patience=60.0)
    finally:
        stop.set()
        first.join(60)
    assert not Path(path).exists()


def _try(path: str) -> Summary | None:
    try:
        return ask(path, QUESTION, patience=60.0)
    except Unavailable:
        return None


def test_a_socket_has_an_absolute_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"socket: expected an absolute path, got 'status\.sock'"):
        settings(tmp_path, socket="status.sock")


def test_users_who_may_ask_are_found_by_name_and_a_stranger_left_out() -> None:
    own = pwd.getpwuid(os.getuid()).pw_name
    with capture_logs() as logs:
        users = SocketUsers([own, "nobody-of-this-machine", "a\0b"])
        assert (os.getuid() in users, -2 in users) == (True, False)
    assert [(entry["log_level"], entry["user"]) for entry in logs] == [
        ("warning", "nobody-of-this-machine"),
        ("warning", "a\0b"),
    ]


def test_a_user_the_system_learns_of_later_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a directory server that the machine does not reach at its boot."""
    clock, directory, asked = HandClock(), dict[str, Mock](), Counter[str]()

    def look_up(name: str) -> Mock:
        asked[name] += 1
        return directory[name]

    monkeypatch.setattr(pwd, "getpwnam", look_up)
    with capture_logs() as logs:
        users = SocketUsers(["hg", "operator"], clock)
        directory["hg"] = Mock(pw_uid=4711)
        assert 4711 not in users, "just looked for"
        clock.advance(LOOK_AGAIN)
        assert (4711 in users, 4711 in users, 4712 in users) == (True, True, False)
        assert asked == {"hg": 2, "operator": 2}
        clock.advance(LOOK_AGAIN)
        assert (4711 in users, asked["operator"]) == (True, 2), "a user who is known costs no look"
        assert (4712 in users, asked) == (False, {"hg": 2, "operator": 3})
    assert [(entry["log_level"], entry["user"]) for entry in logs] == [
        ("warning", "hg"),
        ("warning", "operator"),
        ("info", "hg"),
    ]


@pytest.mark.parametrize(
    ("users", "mode"),
    [(("bin",), 0o666), (("nobody-of-this-machine",), 0o666), ((), 0o600)],
    ids=["found", "not found yet", "none"],
)
def test_the_settings_say_who_may_ask(path: str, users: tuple[str, ...], mode: int) -> None:
    made = settings_with(path, socket_users=users)
    with watching(fill().sources) as followed, _answer_questions(made, "memory:", followed):
        assert stat.S_IMODE(os.stat(path).st_mode) == mode


@pytest.mark.parametrize("names", [("",), ("1000",)])
def test_users_of_the_socket_have_names_and_a_socket(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="socket-users: expected names of users"):
        settings(tmp_path, socket="/x", socket_users=names)
    with pytest.raises(ValueError, match="socket-users: expected together with socket"):
        settings(tmp_path, socket_users=("hg",))
