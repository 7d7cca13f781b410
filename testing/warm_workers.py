# SPDX-License-Identifier: GPL-2.0-or-later
"""The workers of `pytest -n` as forks of a process that has collected all tests, which takes a worker 5 s, in a new clone 10 s.

A worker runs what that process collected. One that is asked for other tests collects as always; pytest and Python find each module
imported already. Where the tests cannot be imported, the workers start cold, and say why.
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
from pathlib import Path
from typing import Any, NoReturn

import pytest
from execnet.gateway_io import popen_bootstrapline

from testing.warm import Stem, WarmPopen, finish, serve, start_stem

# How pytest-xdist starts a worker.
COLD = [sys.executable, "-u", "-c", popen_bootstrapline]
STEM_OF_TESTS = (sys.executable, "-u", "-m", "testing.warm_workers")
# Plugins that have nothing to do where nothing runs; one would start a thread, and what has threads does not fork.
IDLE = ("xdist", "rerunfailures", "cacheprovider")
# Options by which a worker would collect something else than the stem, which does not get them.
SELECTING = (
    "keyword",
    "deselect",
    "ignore",
    "ignore_glob",
    "pyargs",
    "lf",
    "failedfirst",
    "newfirst",
    "stepwise",
    "loadgroup",
)

_create_session = pytest.Session.from_config


@contextlib.contextmanager
def warm_workers(config: pytest.Config) -> Iterator[None]:
    """Start the workers of this run warm in the block, if it has several: neither a worker nor a stem has any."""
    if (getattr(config.option, "numprocesses", None) or 0) < 2 or hasattr(config, "workerinput"):
        yield
        return
    found = [f"--rootdir={config.rootpath}", *(["-c", str(config.inipath)] if config.inipath else [])]
    found += [f"--override-ini={setting}" for setting in config.option.override_ini or ()]
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


class Collected:
    """What a stem collected, for the workers that are forks of it; a plugin of pytest."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the tests with their session."""
        self.session = session

    def create_session(self, config: pytest.Config) -> pytest.Session:
        """Give the session of a worker with this configuration: the one that was kept, or a new one if it would collect others."""
        if not self._is_asked_for(config):
            return _create_session(config)
        session, fixtures = self.session, self.session._fixturemanager
        nodes = {node for item in session.items for node in item.listchain()}
        fixtures.config = config
        for node in nodes | {session}:
            node.config = config
        config.pluginmanager.register(session, "session")

        def collect() -> Sequence[pytest.Item]:
            session._fixturemanager = fixtures  # a session that starts makes an empty one
            for node in nodes:
                if isinstance(node, pytest.Directory):
                    load_conftests(config, node.path)
            config.hook.pytest_collection_finish(session=session)
            return session.items

        session.perform_collect = collect  # type: ignore[method-assign, assignment]
        return session

    def _is_asked_for(self, config: pytest.Config) -> bool:
        before = self.session.config
        return (
            (config.rootpath, config.args, config.option.markexpr)
            == (before.rootpath, before.args, before.option.markexpr)
            and set(config.option.plugins) <= {*before.option.plugins, *IDLE}
            and not any(getattr(config.option, name, None) for name in SELECTING)
        )


def load_conftests(config: pytest.Config, folder: Path) -> None:
    """Register the `conftest.py` of a folder and of those above, as the collection of the folder does."""
    config.pluginmanager._loadconftestmodules(
        folder,
        config.getoption("importmode"),
        rootpath=config.rootpath,
        consider_namespace_packages=config.getini("consider_namespace_packages"),
    )


collected = Collected()


def import_tests(collect: Sequence[str]) -> bool:
    """Import and collect what these words for pytest name; tell whether all of it could be imported."""
    gc.disable()  # enabled after the collection of the tests (tests/conftest.py)
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    # Mercurial keeps the streams that it finds when it is imported: those of this process, which nothing closes.
    words = [*collect, "--capture=no", *(word for plugin in IDLE for word in ("-p", f"no:{plugin}"))]
    code = pytest.main(words, plugins=[collected])
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
        pytest.Session.from_config = collected.create_session  # type: ignore[method-assign]
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
