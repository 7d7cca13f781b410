# SPDX-License-Identifier: GPL-2.0-or-later
"""Bells that wake readers in other processes on this machine.

Each reader has a bell; a writer rings the bells of readers of its topics.

A bell is a Unix datagram socket in one folder. Ringing is a hint and may be lost (a full queue, a reader of another user), so a
waiting reader still looks again after a while. The next `ring` takes down the bells of processes that died.
"""

import errno
import itertools
import os
import select
import socket
import stat
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

# Bytes of a socket's path that every kernel takes.
LONGEST_ADDRESS = 100
_numbers = itertools.count()


class Bell:
    """A bell for `ring` of one of `topics` or `wake`; for one thread, but for `wake`."""

    def __init__(self, folder: Path, topics: Iterable[int]) -> None:
        mask = sum(1 << topic for topic in set(topics))
        self._woken = threading.Event()
        # Whether it rang until the end of the last `wait`.
        self.has_rung = False
        self._folder = _BellFolder(folder)
        self._name = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            while not self._name:
                name = f"{os.getpid()}-{next(_numbers)}-{mask:x}"
                try:
                    self._socket.bind(self._folder.address(name))
                    self._name = name
                except OSError as error:  # process ids are used again, in containers at each start
                    if error.errno != errno.EADDRINUSE:
                        raise
            self._folder.share(self._name)
        except OSError:
            self._socket.close()
            self._folder.close()
            raise

    def wait(self, seconds: float) -> bool:
        """Wait until the bell is rung or woken, or `seconds` are over.

        Returns whether `wake` was called; that call is then used up.
        """
        if not self._woken.is_set():
            poll = select.poll()  # select takes no descriptor above 1023
            poll.register(self._socket, select.POLLIN)
            poll.poll(max(0.0, seconds) * 1000)
        self.has_rung = False
        with suppress(BlockingIOError):
            while self._socket.recv(16):
                self.has_rung = True
        woken = self._woken.is_set()
        if woken:
            self._woken.clear()
        return woken

    def wake(self) -> None:
        """End a running or the next `wait`."""
        self._woken.set()
        # An error is harmless: if the socket is full, there is something to read already; if it is closed, no reader waits.
        with suppress(OSError), _open_sender() as sender:
            sender.sendto(b"w", self._folder.address(self._name))

    def close(self) -> None:
        """Take the bell down; more than once is harmless."""
        if self._socket.fileno() < 0:
            return
        self._folder.remove(self._name)
        self._socket.close()
        self._folder.close()


def ring(folder: Path, topics: Iterable[int]) -> None:
    """Wake the readers of these topics; never raise, never wait."""
    mask = sum(1 << topic for topic in set(topics))
    with suppress(OSError), closing(_BellFolder(folder)) as bells, _open_sender() as sender:
        for name in bells.names():
            if _is_listening(name, mask):
                _ring_one(sender, bells, name)


class _BellFolder:
    """The folder of the bells, held open so that its own path may be of any length.

    Raises OSError for a link, too: the user of a service may put one there, and root rings and removes bells.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def names(self) -> list[str]:
        return os.listdir(self._descriptor)

    def address(self, name: str) -> str:
        direct = os.path.join(self._path, name)
        return direct if len(os.fsencode(direct)) <= LONGEST_ADDRESS else f"/proc/self/fd/{self._descriptor}/{name}"

    def share(self, name: str) -> None:
        """Let all who may write in the folder ring the bell, and the folder's owner."""
        folder = os.fstat(self._descriptor)
        bell = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._descriptor)
        try:
            if not stat.S_ISSOCK(os.fstat(bell).st_mode):  # the folder's owner put something else there
                raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
            file = f"/proc/self/fd/{bell}"
            if os.geteuid() == 0:
                os.chown(file, folder.st_uid, folder.st_gid)
            os.chmod(file, folder.st_mode & 0o666)
        finally:
            os.close(bell)

    def remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _ring_one(sender: socket.socket, bells: _BellFolder, name: str) -> None:
    try:
        sender.sendto(b".", bells.address(name))
    except ConnectionRefusedError:  # its process died without taking it down
        bells.remove(name)
    except OSError:
        pass


def _is_listening(name: str, mask: int) -> bool:
    try:
        return bool(int(name.rpartition("-")[2], 16) & mask)
    except ValueError:
        return False


def _open_sender() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
