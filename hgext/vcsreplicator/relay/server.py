# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's conversations with pushes (`client` describes the conversation).

One thread reads what peers send, and workers send the answers. The thread checks each message: a line of at most 8 KiB, a
repository below one of the roots.
"""

import contextlib
import json
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from ..words.errors import visible
from ..words.records import RepositoryState
from .admission import RelaySocket, read_peer
from .client import REASON_LIMIT
from .jobs import Job
from .work import Work, is_hidden

logger = structlog.get_logger()

# Bytes of the longest line that a peer may send.
LINE_LIMIT = 8192
# Most folders outside of the roots that are remembered.
OUTSIDE_LIMIT = 100
# Seconds between two attempts to accept a connection while the process has no file descriptor left.
FULL_PAUSE = 1.0


@dataclass(slots=True, eq=False)
class _Peer:
    """One connection and its repository.

    `waits_for` is the sequence whose acknowledgement the peer waits for, 0 for none. `asks` is true while it waits to hear that the
    log is available, and `wants_reasons` if it understands reasons for an unsent event.
    """

    connection: socket.socket
    folder: str | None = None
    received: bytes = b""
    waits_for: int = 0
    asks: bool = False
    wants_reasons: bool = False


class Server:
    """Serves pushes at a socket.

    `roots` are the folders where repositories may be. `find_state` returns a repository's state as the relay has read it, by its
    id; each state must also be given to `announced`, after `find_state` returns it. `on_push` gets the folder of a repository
    and why a push is refused there, or None once one is accepted.
    """

    def __init__(
        self,
        relay_socket: RelaySocket,
        *,
        work: Work,
        roots: tuple[str, ...],
        find_state: Callable[[str], RepositoryState | None],
    ) -> None:
        self.on_push: Callable[[str, str | None], None] = lambda folder, reason: None
        self._socket, self._work, self._find_state = relay_socket, work, find_state
        self._roots = tuple(os.path.realpath(root).rstrip("/") + "/" for root in roots)
        self._selector = selectors.DefaultSelector()
        self._peers: dict[str, set[_Peer]] = {}
        self._outside: set[str] = set()
        # Each waits for the notice of this event or of a later one: repository, incarnation and sequence.
        self._awaited: dict[_Peer, tuple[str, str, int]] = {}
        self._lock = threading.Lock()
        self._closing = self._is_full = False
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="relay-socket", daemon=True)
        self._listener: socket.socket | None = None

    def start(self) -> None:
        """Open the socket and serve; raise BadConfig if it cannot have the socket."""
        self._listener = self._socket.open()
        self._woken.setblocking(False)
        for source in (self._listener, self._woken):
            self._selector.register(source, selectors.EVENT_READ)
        self._thread.start()

    def sent(self, folder: str, seq: int) -> None:
        """Answer every peer that waits for event `seq` or an earlier one.

        Workers call this method.
        """
        self._answer_waiting(folder, lambda peer: 0 < peer.waits_for <= seq, {"sent": seq})

    def failed(self, folder: str, reason: str, is_full: bool) -> None:
        """Answer every peer that waits for an event, and for reasons, why it is not sent.

        Workers call this method; `is_full` as in `Work`.
        """
        message: dict[str, object] = {"failed": reason, "full": True} if is_full else {"failed": reason}
        self._answer_waiting(folder, lambda peer: peer.waits_for > 0 and peer.wants_reasons, message)

    def _answer_waiting(self, folder: str, is_meant: Callable[[_Peer], bool], message: dict[str, object]) -> None:
        with self._lock:
            waiting = [peer for peer in self._peers.get(folder, ()) if is_meant(peer)]
            for peer in waiting:
                peer.waits_for = 0
        _answer(waiting, message)

    def available(self, folder: str, is_available: bool) -> None:
        """Answer every peer that asks whether the log is available for this repository.

        Workers call this method.
        """
        with self._lock:
            asking = [peer for peer in self._peers.get(folder, ()) if peer.asks]
            for peer in asking:
                peer.asks = False
        _answer(asking, {"available": is_available})

    def announced(self, state: RepositoryState) -> None:
        """Answer every peer that waits for a notice which was written before this state.

        The state's count of mirrors is that of its newest notice. The thread that reads states calls this method.
        """
        with self._lock:
            waiting = {
                peer: seq
                for peer, (repository, incarnation, seq) in self._awaited.items()
                if (repository, incarnation) == (state.repository, state.incarnation) and seq <= state.noticed
            }
            for peer in waiting:
                del self._awaited[peer]
        for peer, seq in waiting.items():
            is_counted = state.noticed == seq and state.served_by is not None
            _answer([peer], {"announced": state.noticed, **({"mirrors": state.served_by} if is_counted else {})})

    def outside(self) -> list[str]:
        """Return the repositories of peers that are below none of the roots."""
        with self._lock:
            self._outside = {folder for folder in self._outside if _has_store(folder)}
            return sorted(self._outside)

    def close(self) -> None:
        """End all conversations and close the socket."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()
        for end in (self._wake, self._woken):
            end.close()
        self._selector.close()

    def _serve(self) -> None:
        assert self._listener is not None
        while not self._closing:
            self._serve_once(None)
            # A connection that waits to be accepted would wake this thread repeatedly.
            if self._is_full:
                self._selector.unregister(self._listener)
                self._serve_once(FULL_PAUSE)
                self._selector.register(self._listener, selectors.EVENT_READ)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.connection.close()

    def _serve_once(self, timeout: float | None) -> None:
        """Wait for a connection or a message, `timeout` seconds at most, and take it."""
        for key, _ in self._selector.select(timeout):
            try:
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is not None:
                    self._receive(key.data)
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
                logger.error(
                    "no connection can be accepted, pushes continue without the relay's answer", reason=str(error)
                )
            self._is_full = True
            return
        if self._is_full:
            logger.info("connections are accepted again")
        self._is_full = False
        if not self._socket.is_admitted(connection):
            logger.warning("peer refused", uid=read_peer(connection)[0])
            connection.close()
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _receive(self, peer: _Peer) -> None:
        try:
            piece = peer.connection.recv(LINE_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        peer.received += piece
        if not piece or len(peer.received) > LINE_LIMIT:
            self._remove_peer(peer)
            return
        *lines, peer.received = peer.received.split(b"\n")
        for line in lines:
            if not self._take_message(peer, line):
                logger.warning("peer not understood", line=repr(line[:200]))
                self._remove_peer(peer)
                return

    def _take_message(self, peer: _Peer, line: bytes) -> bool:
        """Carry out a message; return False if it cannot be understood."""
        try:
            message: Any = json.loads(line)
            if "repository" in message and peer.folder is None:
                return self._add_peer(peer, os.path.realpath(message["repository"]))
            if peer.folder is not None and message.get("ask") == "log":
                with self._lock:
                    peer.asks = True
                self._work.add(peer.folder, Job.SEND, Job.CHECK, now=True)
                return True
            if peer.folder is not None and message.get("ask") == "mirrors":
                return self._await_notice(peer, message["id"], message["incarnation"], message["announced"])
            if peer.folder is not None and isinstance(message.get("refused"), str):
                self.on_push(peer.folder, visible(message["refused"])[:REASON_LIMIT])
                return True
            seq = message["seq"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return False
        if peer.folder is None or type(seq) is not int:
            return False
        with self._lock:
            peer.waits_for, peer.wants_reasons = seq, message.get("reasons") is True
        self.on_push(peer.folder, None)
        self._work.add(peer.folder, Job.SEND, now=True)
        return True

    def _await_notice(self, peer: _Peer, repository: object, incarnation: object, seq: object) -> bool:
        """Answer the peer when the notice is written.

        Returns False if the question cannot be understood.
        """
        if not isinstance(repository, str) or not isinstance(incarnation, str) or type(seq) is not int:
            return False
        with self._lock:
            self._awaited[peer] = repository, incarnation, seq
        # The state may have been read before the question; `announced` gets each that is read from now on.
        state = self._find_state(repository)
        if state is not None:
            self.announced(state)
        return True

    def _add_peer(self, peer: _Peer, folder: str) -> bool:
        if not (folder + "/").startswith(self._roots):
            has_store = _has_store(folder)
            with self._lock:
                if has_store and len(self._outside) < OUTSIDE_LIMIT:
                    self._outside.add(folder)
            return False
        # A folder that the relay cannot look into is taken: its jobs fail, and say why.
        if not (_has_store(folder) or is_hidden(folder)):
            return False
        peer.folder = folder
        with self._lock:
            self._peers.setdefault(folder, set()).add(peer)
        # A fork is found now rather than after the commit.
        self._work.add(folder, Job.SEND)
        return True

    def _remove_peer(self, peer: _Peer) -> None:
        """Forget a peer; if it died in a transaction, have that rolled back now.

        Otherwise the next push would roll it back.
        """
        self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer.folder is None:
            return
        with self._lock:
            self._awaited.pop(peer, None)
            others = self._peers[peer.folder]
            others.discard(peer)
            if not others:
                del self._peers[peer.folder]
        if os.path.exists(os.path.join(peer.folder, ".hg", "store", "journal")):
            self._work.add(peer.folder, Job.RECOVER)


def _has_store(folder: str) -> bool:
    return os.path.isdir(os.path.join(folder, ".hg", "store"))


def _answer(peers: Iterable[_Peer], message: dict[str, object]) -> None:
    """Send each peer one line; a peer that is gone or does not read misses it."""
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.connection.send(json.dumps(message).encode() + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
