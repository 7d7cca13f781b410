# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's socket: one thread that listens to pushes and answers them (the conversation is told in `client`).

Who may connect: the socket has the group of the repositories and mode 0660, and the peer must be root, the relay's own user or in
that group. What a peer says is checked: a line of at most 8 KiB, a repository below one of the roots.
"""

import contextlib
import fcntl
import json
import os
import pwd
import selectors
import socket
import stat
import struct
import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from ..words.errors import BadConfig

logger = structlog.get_logger()

LINE_LIMIT = 8192
FULL_PAUSE = 1.0  # seconds between two attempts to take a connection where there is no room for one
_SO_PEERGROUPS = 59


class Tasks(Protocol):
    """What the server asks for."""

    def poke(self, folder: str, *, now: bool = False) -> None: ...

    def recover(self, folder: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Peer:
    """One connection: the repository it speaks of, and up to where it waits to hear."""

    connection: socket.socket
    folder: str | None = None
    received: bytes = b""
    waits_for: int = field(default=0)


class Server:
    """Listens at `path`; `group_of` is the folder whose group may connect, `roots` where repositories may be."""

    def __init__(self, path: str, *, group_of: str, work: Tasks, roots: tuple[str, ...]) -> None:
        self._path, self._work = path, work
        self._group = os.stat(group_of).st_gid if os.path.exists(group_of) else os.getgid()
        self._roots = tuple(os.path.realpath(root).rstrip("/") + "/" for root in roots)
        self._selector = selectors.DefaultSelector()
        self._peers: dict[str, set[_Peer]] = {}
        self._lock = threading.Lock()
        self._closing = self._is_full = False
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="relay-socket", daemon=True)
        self._claim: int | None = None
        self._listener: socket.socket | None = None

    def start(self) -> None:
        """Takes the socket's path; raises BadConfig if another relay has it or it cannot be made."""
        try:
            self._claim = os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadConfig(f"socket: {self._path}: another relay is running") from error
        except OSError as error:
            raise BadConfig(f"socket: {self._path}: {error.strerror}") from error
        self._listener = self._listen()
        for source in (self._listener, self._woken):
            source.setblocking(False)
            self._selector.register(source, selectors.EVENT_READ)
        self._thread.start()

    def sent(self, folder: str, seq: int) -> None:
        """Answers everybody who waits for this; called by workers."""
        with self._lock:
            waiting = [peer for peer in self._peers.get(folder, ()) if 0 < peer.waits_for <= seq]
            for peer in waiting:
                peer.waits_for = 0
        for peer in waiting:
            with contextlib.suppress(OSError):
                peer.connection.send(
                    json.dumps({"sent": seq}).encode() + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
                )

    def close(self) -> None:
        """Ends all conversations and gives the path back."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if self._thread.ident is not None:
            self._thread.join()
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        if self._claim is not None:
            os.close(self._claim)
        for end in (self._wake, self._woken):
            end.close()
        self._selector.close()

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

    def _serve(self) -> None:
        assert self._listener is not None
        while not self._closing:
            self._answer(None)
            if self._is_full:  # who waits to be let in would wake us again and again
                self._selector.unregister(self._listener)
                self._answer(FULL_PAUSE)
                self._selector.register(self._listener, selectors.EVENT_READ)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.connection.close()

    def _answer(self, timeout: float | None) -> None:
        """Waits until somebody wants something, `timeout` seconds at most, and does that."""
        for key, _ in self._selector.select(timeout):
            try:
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is not None:
                    self._hear(key.data)
            except Exception:
                logger.exception("conversation failed")

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if not self._is_full:
                logger.error("no connection can be taken, pushes go on without the relay's word", reason=str(error))
            self._is_full = True
            return
        if self._is_full:
            logger.info("connections are taken again")
        self._is_full = False
        if not self._admits(connection):
            logger.warning("peer refused")
            connection.close()
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _admits(self, connection: socket.socket) -> bool:
        _, user, group = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user in (0, os.getuid()) or group == self._group:
            return True
        try:
            packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)  # Python's limit: 256 groups
        except OSError:
            return self._group in _groups_of(user, group)
        return self._group in struct.unpack(f"{len(packed) // 4}I", packed)

    def _hear(self, peer: _Peer) -> None:
        try:
            piece = peer.connection.recv(LINE_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        peer.received += piece
        if not piece or len(peer.received) > LINE_LIMIT:
            self._forget(peer)
            return
        *lines, peer.received = peer.received.split(b"\n")
        for line in lines:
            if not self._understand(peer, line):
                logger.warning("peer not understood", line=repr(line[:200]))
                self._forget(peer)
                return

    def _understand(self, peer: _Peer, line: bytes) -> bool:
        try:
            message: Any = json.loads(line)
            if "repository" in message and peer.folder is None:
                return self._meet(peer, os.path.realpath(message["repository"]))
            seq = message["seq"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return False
        if peer.folder is None or type(seq) is not int:
            return False
        with self._lock:
            peer.waits_for = seq
        self._work.poke(peer.folder, now=True)
        return True

    def _meet(self, peer: _Peer, folder: str) -> bool:
        if not (folder + "/").startswith(self._roots) or not os.path.isdir(os.path.join(folder, ".hg", "store")):
            return False
        peer.folder = folder
        with self._lock:
            self._peers.setdefault(folder, set()).add(peer)
        self._work.poke(folder)  # a fork is found now rather than after the commit
        return True

    def _forget(self, peer: _Peer) -> None:
        """The peer is gone; if it left a transaction behind, that is rolled back now rather than in somebody's push."""
        self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer.folder is None:
            return
        with self._lock:
            others = self._peers[peer.folder]
            others.discard(peer)
            if not others:
                del self._peers[peer.folder]
        if os.path.exists(os.path.join(peer.folder, ".hg", "store", "journal")):
            self._work.recover(peer.folder)


def _groups_of(user: int, group: int) -> list[int]:
    """The groups of a user as the system's database knows them; none of an unknown one."""
    try:
        return os.getgrouplist(pwd.getpwuid(user).pw_name, group)
    except KeyError:
        return []
