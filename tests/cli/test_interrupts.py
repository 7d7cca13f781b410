# SPDX-License-Identifier: GPL-2.0-or-later
"""Ctrl-C, and the signal of a supervisor, end a verb quietly at each moment of its start."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log

pytestmark = pytest.mark.processes

# At every seventh import from the first of `cli` on, a fork of the process gets the signal, and its exit code and output are noted.
# What comes before (Python's own start, and Mercurial's `hgext` package) is not the command's.
AT_IMPORTS = """
import json, os, signal, sys, threading

class Forks:
    imports = -1

    def find_spec(self, name, path=None, target=None):
        if self.imports < 0 and name != "hgext.vcsreplicator.cli.verbs":
            return
        self.imports += 1
        if self.imports % 7 or threading.current_thread() is not threading.main_thread():
            return
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            sys.meta_path.remove(self)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            signal.alarm(60)
            os.kill(os.getpid(), int(os.environ["NUMBER"]))
            return
        os.close(writer)
        with open(reader, errors="replace") as pipe, open(os.environ["NOTED"], "a") as noted:
            said = pipe.read()
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            noted.write(json.dumps([name, code, said]) + "\\n")

sys.meta_path.insert(0, Forks())
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Settings with a log in which nothing is yet."""
    url, file = f"sqlite://{tmp_path}/log.db", tmp_path / "x.toml"
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=1))
    file.write_text(f'log = "{url}"\n')
    return file


def endings(file: Path, *words: str, number: int = signal.SIGINT) -> set[tuple[int, str]]:
    """The exit codes and outputs of a verb that gets the signal at an import; a service is stopped once it is ready."""
    (file.parent / "sitecustomize.py").write_text(AT_IMPORTS)
    noted, address = file.parent / "noted", str(file.parent / "notify")
    environment = {"PYTHONPATH": str(file.parent), "NOTED": str(noted), "NUMBER": str(int(number))}
    command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", *words, "-c", str(file)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(address)
        notified.settimeout(120.0)
        with subprocess.Popen(
            command,
            env={**os.environ, **environment, "NOTIFY_SOCKET": address},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            if words[0] == "aggregator":
                try:
                    assert notified.recv(64) == b"READY=1"
                finally:
                    process.terminate()
    found = [tuple(json.loads(line)) for line in noted.read_text().splitlines()]
    assert len(found) > 15, "it was to be interrupted many times"
    return {(code, said.strip()) for _, code, said in found}


VERBS = [("status",), ("check",), ("roster", "list"), ("config", "check"), ("aggregator",)]


@pytest.mark.sample(1, keep=("status",))
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_an_interrupt_at_any_import_ends_a_verb_without_a_word(file: Path, words: tuple[str, ...]) -> None:
    assert endings(file, *words) <= {(-signal.SIGINT, ""), (130, "")}


@pytest.mark.slow
def test_a_service_that_is_stopped_at_any_import_ends_without_a_word(file: Path) -> None:
    assert endings(file, "aggregator", number=signal.SIGTERM) <= {(-signal.SIGTERM, "")}
