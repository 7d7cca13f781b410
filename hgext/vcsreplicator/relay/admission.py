# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's socket: which relay holds its path, and which peers may connect.

Only one relay holds the path. The socket has the group of the repositories and mode 0660, and the peer must be root, the relay's
own user or in that group.
"""

import contextlib
import fcntl
import os
import pwd
import socket
import stat
import struct

from ..words.errors import BadConfig

_SO_PEERGROUPS = 59


class RelaySocket:
    """The listening socket at `path`.

    The group of the folder `group_of` may connect to it.
    """

    def __init__(self, path: str, *, group_of: str) -> None:
        self._path = path
        self._group = os.stat(group_of).st_gid if os.path.exists(group_of) else os.getgid()
        self._claim: int | None = None
        self._listener: socket.socket | None = None

    def open(self) -> socket.socket:
        """Take the path and listen.

        Raise BadConfig if another relay has the path or the socket cannot be made.
        """
        try:
            self._claim = os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadConfig(f"socket: {self._path}: another relay is running") from error
        except OSError as error:
            raise BadConfig(f"socket: {self._path}: {error.strerror}") from error
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
        """Return whether the process at the other end may talk to the relay."""
        _, user, group = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user in (0, os.getuid()) or group == self._group:
            return True
        try:
            # Python reads up to 1024 bytes: 256 groups.
            packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
        except OSError:
            with contextlib.suppress(KeyError):  # the system does not know this user
                return self._group in os.getgrouplist(pwd.getpwuid(user).pw_name, group)
            return False
        return self._group in struct.unpack(f"{len(packed) // 4}I", packed)

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        mask = os.umask(0o177)
        try:
            listener.bind(self._path)
        except OSError as error:
            listener.close()
            raise BadConfig(f"socket: {self._path}: {error.strerror or error}") from error
        finally:
            os.umask(mask)
        with contextlib.suppress(PermissionError):
            os.chown(self._path, -1, self._group)
        os.chmod(self._path, stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IWGRP)
        listener.listen(512)
        return listener
