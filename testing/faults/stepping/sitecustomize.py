# SPDX-License-Identifier: GPL-2.0-or-later
"""Loaded by Python at start if `testing.faults.PythonSteps` put this folder on the path: counts lines, kills at one.

A warm `hg` or `python` runs it too, once it has the variables of its caller.

A step is a line about to run in a watched file. Each is appended to the record at once, so a record survives the kill it tells of.
"""

import json
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

VARIABLE = "VCSREPLICATOR_TEST_STEPS"


def watch(files: list[str], record: str, kill_at: int | None) -> None:
    """Count every line of code in files whose path contains one of `files`."""
    out = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    done = 0

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        if event == "line":
            done += 1
            os.write(out, f"{frame.f_code.co_filename}:{frame.f_lineno}\n".encode())
            if done == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    def call(frame: FrameType, _: str, __: Any) -> Any:
        name = frame.f_code.co_filename
        return line if any(part in name for part in files) else None

    threading.settrace(call)
    sys.settrace(call)


settings = json.loads(os.environ.get(VARIABLE, "{}"))
# `sys.argv` does not exist yet when this file is loaded.
if settings and settings["argument"] in [*sys.orig_argv, ""]:
    watch(settings["files"], settings["record"], settings["kill_at"])
