# SPDX-License-Identifier: GPL-2.0-or-later
"""The set-up of an extension when threads of a web server open its first repositories at once."""

import contextlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pushlog import seams


def test_a_thread_waits_until_anothers_part_of_the_set_up_is_complete():
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


LOADED_BY_TWO = """
import hgdemandimport
hgdemandimport.enable()

import sys
import subprocess
import sys
import threading

from pushlog import seams

sys.path.insert(0, sys.argv[1])
answer, second = seams.loading("slow", "answer"), threading.Event()
answers = []


def ask_second():
    second.set()
    answers.append(answer())


sys.second, sys.begun = second, threading.Event()
first = threading.Thread(target=lambda: answers.append(answer()))
other = threading.Thread(target=lambda: sys.begun.wait(60) and ask_second())
first.start()
other.start()
first.join()
other.join()
print(answers)
"""

SLOW = """
import sys
import time

sys.begun.set()
assert sys.second.wait(60)
time.sleep(0.2)


def answer():
    return "whole"
"""


@pytest.mark.processes
def test_two_threads_at_once_load_a_function_that_was_not_needed_before(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    ended = subprocess.run(
        [sys.executable, "-c", LOADED_BY_TWO, tmp_path], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.stdout, ended.stderr) == ("['whole', 'whole']\n", "")
