# SPDX-License-Identifier: GPL-2.0-or-later
"""A signal stops a service at each moment at which it may arrive."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

BEGIN = """
import signal, sys, threading
from hgext.vcsreplicator.service import stop_on_signals
stop = stop_on_signals()
"""
END = """
stop.wait()
print("stopped", flush=True)
"""
# `wait` of an event calls `wait` of its condition with the lock held.
WHILE_THE_LOCK_IS_HELD = """
def interrupt(frame, event, argument):
    if event == "call" and frame.f_code is threading.Condition.wait.__code__:
        sys.setprofile(None)
        print("waits", flush=True)
        signal.raise_signal(signal.SIGTERM)
sys.setprofile(interrupt)
"""
# Another thread gets the signal, as one does in effect if the main thread is just before its wait; a handler is the main thread's.
UNNOTICED = """
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("waits", flush=True)
"""
# An event loop has the system write the numbers of signals elsewhere.
WRITTEN_ELSEWHERE = """
import socket
ours, theirs = socket.socketpair()
theirs.setblocking(False)
signal.set_wakeup_fd(theirs.fileno())
print("waits", flush=True)
"""
# A program may have a handler for others.
AFTER_ANOTHER = """
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.raise_signal(signal.SIGCHLD)
assert not stop.wait(0.2)
print("waits", flush=True)
"""


@pytest.mark.parametrize(
    "moment",
    [WHILE_THE_LOCK_IS_HELD, UNNOTICED, WRITTEN_ELSEWHERE, AFTER_ANOTHER],
    ids=["while the lock is held", "unnoticed by the main thread", "written elsewhere", "after another signal"],
)
def test_a_signal_stops_a_service_that_waits(moment: str) -> None:
    command = [sys.executable, "-P", "-c", BEGIN + moment + END]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        if moment != WHILE_THE_LOCK_IS_HELD:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        finally:
            process.kill()
        assert process.stdout.read() == "stopped\n"
