# SPDX-License-Identifier: GPL-2.0-or-later
"""The steps after the commit.

The relay gets the event, and the pusher gets one line, or two with `acknowledge = mirrors`. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mercurial.localrepo import localrepository

from pushlog.store import disk

from ...outbox.file import Outbox
from ...relay import client
from ...words.event import Type

if TYPE_CHECKING:
    from mercurial.ui import ui as Ui

    from ...relay.client import RelayLine
    from .capture import Capture
    from .repository import MasterRepository


def finish_commit(captured: Capture, line: RelayLine | None) -> None:
    """Do the remaining work under the lock after the commit.

    A failure concerns the operator, not the pusher, whose push is committed. The relay gets the event as soon as the commit is on
    disk: it sends while Mercurial writes its caches and releases the locks.
    """
    repo = captured.repo
    captured.committed = time.monotonic()
    _watch_lines(repo.ui)
    with _logging_errors(repo):
        disk.sync_folder(repo.svfs.join(b""))  # step 4 of `durability`
    with _logging_errors(repo):
        Outbox(repo.svfs).prune()  # before the relay begins to send, which would find the other at work
    if line is not None:
        line.report_commit(captured.written[-1].event.seq)


def report(captured: Capture, line: RelayLine | None) -> None:
    """Wait until the log has the event, then write the pusher's line.

    With `acknowledge = mirrors` wait for them too, and write another line. The locks are released. The settings limit how long
    this waits in all. Without a relay the event is sent now.
    """
    ui, settings = captured.repo.ui, captured.repo.replication_settings
    deadline = time.monotonic() + settings.patience
    _end_line(ui)
    try:
        if settings.acknowledge == "outbox":
            what = _name_change(captured)
            ui.status(b"recorded %s in outbox; it will be sent to the replication log\n" % what)
            return
        is_sent = _report_log(captured, line)
        if is_sent and settings.acknowledge == "mirrors":
            _report_mirrors(captured, line, deadline)
    finally:
        if line is not None:
            line.close()


class _WatchedStream:
    """An output of Mercurial's, with the last byte that was written to it."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.last = stream, b"\n"

    def write(self, data: bytes) -> Any:
        self.last = data[-1:] or self.last
        return self.stream.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _watch_lines(ui: Ui) -> None:
    """Watch what hooks write after the commit: ours begins a line."""
    if not isinstance(ui.fout, _WatchedStream):
        out: Any = _WatchedStream(ui.fout)
        err: Any = out if ui.ferr is ui.fout else _WatchedStream(ui.ferr)
        ui.fout, ui.ferr = out, err


def _end_line(ui: Ui) -> None:
    """End a line that a hook left open, as far as it wrote through Mercurial.

    Over HTTP Mercurial collects in a list of pieces what it writes.
    """
    if ui._buffers and (written := b"".join(ui._buffers[-1][-1:])) and not written.endswith(b"\n"):
        ui._buffers[-1].append(b"\n")
    for stream in (ui.fout, ui.ferr):
        if isinstance(stream, _WatchedStream) and stream.last != b"\n":
            stream.write(b"\n")
            stream.flush()
    if isinstance(ui.fout, _WatchedStream) and isinstance(ui.ferr, _WatchedStream):
        ui.fout, ui.ferr = ui.fout.stream, ui.ferr.stream


def _report_log(captured: Capture, line: RelayLine | None) -> bool:
    """Wait until the log has the event; write the line, return whether it has."""
    ui, fork = captured.repo.ui, None
    is_sent: bool | None = False
    try:
        is_sent = _wait_until_sent(captured.repo, line)
        fork = None if is_sent else Outbox(captured.repo.svfs).fork()
    except Exception as problem:
        ui.log(b"vcsreplicator", b"not sent: %s\n", repr(problem).encode())
    if is_sent:
        _report_sent(captured, time.monotonic() - captured.committed)
    elif fork is not None:
        ui.warn(b"the %s is kept and is not sent: %s\n" % (_name_change(captured), fork.reason.encode()))
    else:
        obstacle = b"relay not reachable" if is_sent is None else b"replication log not reachable"
        if line is not None and line.failure is not None:
            begin = b"the relay cannot send" if line.is_full else b"the relay may not write here"
            obstacle = b"%s (%s)" % (begin, line.failure.encode("utf-8", "backslashreplace"))
        ui.warn(b"%s: the %s is kept and will be sent\n" % (obstacle, _name_change(captured)))
    return bool(is_sent)


def _name_change(captured: Capture) -> bytes:
    return b"push" if captured.written[-1].event.type is Type.CHANGED else b"event"


def _report_mirrors(captured: Capture, line: RelayLine | None, deadline: float) -> None:
    """Wait until the notice of a push is written, then write the line about it.

    Waits until `deadline` at most. None of the lines is a warning: the push is committed and in the log.
    """
    ui, event = captured.repo.ui, captured.written[-1].event
    if event.type is not Type.CHANGED:
        return
    is_announced = None if line is None else line.wait_until_announced(event, patience=deadline - time.monotonic())
    seconds = time.monotonic() - captured.committed
    if line is None or is_announced is None:
        ui.status(
            b"not known whether it is on all mirrors: the relay does not say (it was stopped, or is an older one)\n"
        )
    elif is_announced:
        ui.status(_describe_announced(line.mirrors, seconds))
    else:
        ui.status(b"not on all mirrors after %.1fs: mirrors get it later, and it is announced then\n" % seconds)


def _describe_announced(mirrors: int | None, seconds: float) -> bytes:
    """Say that a push is announced, and on how many mirrors, if that is known."""
    if mirrors == 0:
        return b"announced in %.3fs: no mirror gates the repository\n" % seconds
    where = b"all" if mirrors is None else b"%d/%d" % (mirrors, mirrors)
    return b"on %s mirrors in %.3fs, announced\n" % (where, seconds)


def _wait_until_sent(repo: MasterRepository, line: RelayLine | None) -> bool | None:
    """Return whether the log has the event; None if the relay cannot be asked."""
    settings = repo.replication_settings

    def wait(patience: float) -> bool | None:
        if line is not None:
            return line.wait_until_sent(patience=patience)
        if not settings.log:
            return None
        # Loaded only where no relay runs.
        from . import sending

        return sending.send_now(repo, patience)

    place = (settings.log if line is None else settings.relay) or ""
    return client.ask_within(place, wait, patience=settings.patience, pause=settings.relay_pause)


def _report_sent(captured: Capture, seconds: float) -> None:
    """Write one line about a push or a creation; commands report their own events."""
    kind = captured.written[-1].event.type
    if kind is Type.CREATED:
        captured.repo.ui.status(b"(recorded repository creation in replication log in %.3fs)\n" % seconds)
    elif kind is Type.CHANGED:
        captured.repo.ui.status(b"recorded push in replication log in %.3fs\n" % seconds)


@contextlib.contextmanager
def _logging_errors(repo: localrepository) -> Iterator[None]:
    """Write errors of the disk within the block to Mercurial's log."""
    try:
        yield
    except OSError as problem:
        repo.ui.log(b"vcsreplicator", b"after the commit: %s\n", str(problem).encode())
