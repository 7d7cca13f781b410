# SPDX-License-Identifier: GPL-2.0-or-later
"""A stop arrives although its signal reached another thread."""

import signal
import subprocess
import sys

import pytest

# The other thread gets the signal, as it does in effect if the main thread is just before its wait; a handler is the main thread's.
PROGRAM = """
import signal, threading
from hgext.vcsreplicator.words.clock import wait_until
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("waits", flush=True)
wait_until(stop)
print("stopped", flush=True)
"""


@pytest.mark.processes
def test_a_signal_that_does_not_wake_the_main_thread_stops_the_service() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.communicate(timeout=60)[0] == "stopped\n"
        finally:
            process.kill()
