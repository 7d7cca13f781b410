# SPDX-License-Identifier: GPL-2.0-or-later
"""The set-up of an extension when threads of a web server open its first repositories at once."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from pushlog import seams


def test_a_thread_waits_until_a_part_of_the_set_up_that_another_does_is_complete():
    setup, begun, go_on, done = seams.Setup("pushlog"), threading.Event(), threading.Event(), []

    def first():
        begun.set()
        assert go_on.wait(60)
        done.append("first")

    with ThreadPoolExecutor() as pool:
        one = pool.submit(setup.run, first)
        assert begun.wait(60)
        two = pool.submit(setup.run, lambda: done.append("second"))
        with contextlib.suppress(TimeoutError):
            two.result(0.2)
        go_on.set()
        one.result(60)
        two.result(60)
    assert done == ["first", "second"]
