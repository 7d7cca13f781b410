# SPDX-License-Identifier: GPL-2.0-or-later
"""A service's Unix socket: who holds its path, and who may connect.

Only one process holds the path. A peer must be root or the service's own user, and the socket has mode 0600. Where the service
answers other users too, the system lets all of them connect, and the service looks who they are. The relay's socket
has the group of the repositories too, and mode 0660: a peer may also be in that group.
"""

import contextlib
import fcntl
import os
import pwd
import socket
import stat
import struct
from collections.abc import Container

from ..words.errors import BadConfig

# Option of socket(7): the groups of the peer.
_SO_PEERGROUPS = 59


def read_peer(connection: socket.socket) -> tuple[int, int]:
    """Return the user and the group of the process at the other end."""
    _, user, group = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user, group


class HeldSocket:
    """The listening socket of a `service` at `path`, for which `key` is the setting.

    `users` has the ids of the users who may talk to the service beside root and its own, and may learn of more.
    """

    def __init__(self, path: str, *, key: str, service: str, users: Container[int] | None = None) -> None:
        self._path, self._key, self._service, self._users = path, key, service, users
        self._claim: int | None = None
        self._listener: socket.socket | None = None

    def open(self) -> socket.socket:
        """Take the path and listen; replace the socket of a process that was killed.

        Raises BadConfig if another process has the path or the socket cannot be made.
        """
        try:
            self._claim = os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadConfig(f"{self._key}: {self._path}: another {self._service} is running") from error
        except OSError as error:
            raise BadConfig(f"{self._key}: {self._path}: {error.strerror}") from error
        self._listener = self._listen()
        self._listener.setblocking(False)
        return self._listener

    def close(self) -> None:
        """Stop listening and give the path back."""
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        if self._claim is not None:
            os.close(self._claim)

    def is_admitted(self, connection: socket.socket) -> bool:
        """Return whether the process at the other end may talk to the service."""
        user = read_peer(connection)[0]
        return user in {0, os.getuid()} or (self._users is not None and user in self._users)

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(self._path).st_mode):  # a mistaken path may be that of a file
                os.unlink(self._path)
        mask = os.umask(0o177)
        try:
            listener.bind(self._path)
        except OSError as error:
            listener.close()
            raise BadConfig(f"{self._key}: {self._path}: {error.strerror or error}") from error
        finally:
            os.umask(mask)
        self._admit_others()
        listener.listen(512)
        return listener

    def _admit_others(self) -> None:
        """Admit the other users before the socket listens."""
        if self._users is not None:
            os.chmod(self._path, 0o666)


class RelaySocket(HeldSocket):
    """The relay's socket; the group of the folder `group_of` may connect to it."""

    def __init__(self, path: str, *, group_of: str) -> None:
        super().__init__(path, key="socket", service="relay")
        self._group = os.stat(group_of).st_gid if os.path.exists(group_of) else os.getgid()

    def is_admitted(self, connection: socket.socket) -> bool:
        """Return whether the process at the other end may talk to the relay."""
        if super().is_admitted(connection):
            return True
        user, group = read_peer(connection)
        if group == self._group:
            return True
        try:
            # Python reads up to 1024 bytes: 256 groups.
            packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
        except OSError:
            with contextlib.suppress(KeyError):  # the system does not know this user
                return self._group in os.getgrouplist(pwd.getpwuid(user).pw_name, group)
            return False
        return self._group in struct.unpack(f"{len(packed) // 4}I", packed)

    def _admit_others(self) -> None:
        with contextlib.suppress(PermissionError):
            os.chown(self._path, -1, self._group)
        os.chmod(self._path, stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IWGRP)
