# SPDX-License-Identifier: GPL-2.0-or-later
"""Who holds a socket's path, and who may connect to it."""

import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hgext.vcsreplicator.relay.admission import HeldSocket, RelaySocket, read_peer
from hgext.vcsreplicator.words.errors import BadConfig
from testing.faults.system import System

# A user, and a group, that is neither root's nor that of the one who runs the tests.
STRANGER = 65533


@pytest.fixture
def path() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="held-")  # a socket's path may have 107 bytes
    yield f"{folder}/socket"
    shutil.rmtree(folder)


def held(path: str) -> HeldSocket:
    return HeldSocket(path, key="some.key", service="service")


@pytest.mark.parametrize("kind", ["held", "relay"])
def test_a_socket_is_never_open_to_more_than_it_admits(path: str, kind: str, system: System) -> None:
    modes = list[int]()
    made = held(path) if kind == "held" else RelaySocket(path, group_of=os.path.dirname(path))
    system.watch(lambda _: modes.append(stat.S_IMODE(os.stat(path).st_mode)), "os.chmod", at=path)
    mask = os.umask(0)
    try:
        made.open()
    finally:
        os.umask(mask)
    modes.append(stat.S_IMODE(os.stat(path).st_mode))
    made.close()
    assert modes == ([0o600] if kind == "held" else [0o600, 0o660])


def test_a_path_is_held_once_and_given_back(path: str) -> None:
    first, second = held(path), held(path)
    first.open()
    with pytest.raises(BadConfig, match=f"some.key: {path}: another service is running"):
        second.open()
    second.close()
    assert os.path.exists(path), "the loser leaves the socket of the other alone"
    first.close()
    third = held(path)
    third.open()
    third.close()
    assert not os.path.exists(path)


def test_the_socket_of_a_process_that_was_killed_is_replaced(path: str) -> None:
    program = (
        "import os, sys; from hgext.vcsreplicator.relay.admission import HeldSocket; "
        "HeldSocket(sys.argv[1], key='k', service='s').open(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == -9
    assert os.path.exists(path)
    made = held(path)
    made.open()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
    made.close()


def test_a_file_at_the_path_is_left_alone(path: str) -> None:
    Path(path).write_text("precious")
    made = held(path)
    with pytest.raises(BadConfig, match=f"some.key: {path}: Address already in use"):
        made.open()
    made.close()
    assert Path(path).read_text() == "precious"


def test_a_folder_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(BadConfig, match=r"some\.key: /nonexistent/socket: No such file or directory"):
        held("/nonexistent/socket").open()


class Connection(socket.socket):
    """A connection whose peer is this user and in these groups; None as if the system could not say which."""

    def __init__(self, user: int, group: int, groups: list[int] | None = None) -> None:
        super().__init__(socket.AF_UNIX)
        self._peer, self._groups = struct.pack("3i", 1, user, group), groups

    def getsockopt(self, level: int, option: int, *size: int) -> bytes:  # type: ignore[override]
        if option == socket.SO_PEERCRED:
            return self._peer
        assert (level, option) == (socket.SOL_SOCKET, 59)  # SO_PEERGROUPS
        if self._groups is None:
            raise OSError
        return struct.pack(f"{len(self._groups)}I", *self._groups)


@pytest.mark.parametrize(
    ("user", "is_admitted"), [(0, True), (os.getuid(), True), (STRANGER, False)], ids=["root", "own", "stranger"]
)
def test_only_root_and_the_own_user_are_admitted(path: str, user: int, is_admitted: bool) -> None:
    with Connection(user, STRANGER) as connection:
        assert held(path).is_admitted(connection) is is_admitted


def test_users_that_are_named_are_admitted_and_may_connect(path: str) -> None:
    made = HeldSocket(path, key="some.key", service="service", users=(STRANGER, STRANGER + 1))
    made.open()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
    for user, is_admitted in ((STRANGER, True), (STRANGER + 1, True), (STRANGER + 2, False), (os.getuid(), True)):
        with Connection(user, STRANGER + 2) as connection:
            assert made.is_admitted(connection) is is_admitted
    made.close()


@pytest.fixture
def group(path: str) -> int:
    """The group of the folder with the repositories, which is not that of new files if the system lets the tests choose."""
    chosen = 65532 if os.geteuid() == 0 else (os.getgroups() or [os.getgid()])[-1]
    os.chown(os.path.dirname(path), -1, chosen)
    return chosen


def test_the_relays_socket_has_the_group_of_the_repositories(path: str, group: int) -> None:
    made = RelaySocket(path, group_of=os.path.dirname(path))
    made.open()
    found = os.stat(path).st_gid
    made.close()
    assert found == group


@pytest.mark.parametrize(
    ("is_primary", "is_supplementary", "is_admitted"),
    [(True, False, True), (False, True, True), (False, False, False), (False, None, False)],
    ids=["primary", "supplementary", "not in the group", "not known to the system"],
)
def test_the_relay_admits_members_of_the_group_of_the_repositories_alone(
    path: str,
    group: int,
    is_primary: bool,
    is_supplementary: bool | None,
    is_admitted: bool,
) -> None:
    groups = None if is_supplementary is None else [STRANGER, *[group] * is_supplementary]
    with Connection(STRANGER, group if is_primary else STRANGER, groups) as connection:
        assert RelaySocket(path, group_of=os.path.dirname(path)).is_admitted(connection) is is_admitted


def test_the_user_of_a_peer_is_what_the_system_says(path: str) -> None:
    user = STRANGER if os.geteuid() == 0 else os.geteuid()
    Path(path).parent.chmod(0o755)
    made = held(path)
    listener = made.open()
    listener.settimeout(60)
    os.chmod(path, 0o666)
    program = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
    who = {"user": user, "group": user} if os.geteuid() == 0 else {}
    with subprocess.Popen(["/usr/bin/env", "python3", "-I", "-c", program, path], **who, cwd="/"):  # type: ignore[call-overload]
        connection, _ = listener.accept()
        with closing(connection):
            assert read_peer(connection)[0] == user
    made.close()
