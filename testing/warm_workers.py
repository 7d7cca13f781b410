# SPDX-License-Identifier: GPL-2.0-or-later
"""The workers of `pytest -n` as forks of a process that has imported all tests, which takes a worker 3 s, in a new clone 8 s.

A worker collects as always; pytest and Python find each module imported already. Where the tests cannot be imported, the workers
start cold, and say why.
"""

import contextlib
import gc
import os
import socket
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pytest
from execnet.gateway_io import popen_bootstrapline

from testing.warm import Stem, WarmPopen, finish, serve, start_stem

# How pytest-xdist starts a worker.
COLD = [sys.executable, "-u", "-c", popen_bootstrapline]
STEM_OF_TESTS = (sys.executable, "-u", "-m", "testing.warm_workers")
# Plugins that have nothing to do where nothing runs; one would start a thread, and what has threads does not fork.
IDLE = ("xdist", "rerunfailures", "cacheprovider")


@contextlib.contextmanager
def warm_workers(config: pytest.Config) -> Iterator[None]:
    """Start the workers of this run warm in the block, if it has several: neither a worker nor a stem has any."""
    if (getattr(config.option, "numprocesses", None) or 0) < 2 or hasattr(config, "workerinput"):
        yield
        return
    found = [f"--rootdir={config.rootpath}", *(["-c", str(config.inipath)] if config.inipath else [])]
    words = ["--collect-only", "-m", config.option.markexpr, *found, *config.args]
    stem = start_stem(*STEM_OF_TESTS, *words, has_session=False)  # Ctrl-C is for the workers too

    class WorkerPopen(WarmPopen):
        def find_stem(self, command: Sequence[str], environment: Mapping[str, str]) -> Stem | None:
            return stem if command == COLD else None

    before = subprocess.Popen
    subprocess.Popen = WorkerPopen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc]


def import_tests(collect: Sequence[str]) -> bool:
    """Import what these words for pytest name; tell whether all of it could be imported."""
    gc.disable()  # enabled after the collection of the tests (tests/conftest.py)
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    # Mercurial keeps the streams that it finds when it is imported: those of this process, which nothing closes.
    code = pytest.main([*collect, "--capture=no", *(word for plugin in IDLE for word in ("-p", f"no:{plugin}"))])
    gc.collect()
    gc.freeze()
    return code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def work(request: Mapping[str, Any]) -> NoReturn:
    """Be the worker that is requested."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(request["environment"])
        time.tzset()
        os.umask(request["umask"])
        os.chdir(request["folder"])
        sys.argv[:] = ["-c"]
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        gc.enable()
        exec(request["module"], vars(main))
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        finish(code)


if __name__ == "__main__":
    import testing.warm_workers  # of which this is a second copy

    *words, descriptor = sys.argv[1:]
    conversation = socket.socket(fileno=int(descriptor))
    if testing.warm_workers.import_tests(words):
        conversation.send(b"r")
        if request := serve(conversation):
            testing.warm_workers.work(request)
