# SPDX-License-Identifier: GPL-2.0-or-later
"""A process that is started warm is what a cold one would be: a child with its own id, streams, environment and exit."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe
from pathlib import Path

import pytest

from hgext.vcsreplicator.demo.supervisor import leashed
from hgext.vcsreplicator.mirror import MirrorSettings
from hgext.vcsreplicator.mirror.task import READY
from testing.faults import PythonSteps
from testing.waiting import PATIENCE, eventually
from testing.warm import CLI, PROGRAM, STEM, WORKER, warm_starts
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes


def start(*arguments: str, module: str = CLI, **options: object) -> subprocess.Popen[str]:
    with warm_starts():
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [*PROGRAM, module, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )


def is_warm(process: subprocess.Popen[str]) -> bool:
    """Whether this process' program was started with the stem's words."""
    return "testing.warm" in Path(f"/proc/{process.pid}/cmdline").read_text()


@pytest.mark.parametrize(("words", "code", "out", "error"), [(["--version"], 0, "version", ""), (["x"], 2, "", "x")])
def test_it_prints_and_exits_as_a_cold_one(words: list[str], code: int, out: str, error: str) -> None:
    with start(*words) as process:
        assert is_warm(process) or not Path(f"/proc/{process.pid}/cmdline").read_text()  # one that ends shows no words
        printed, complained = process.communicate()
    assert (process.returncode, out in printed, error in complained) == (code, True, True)
    with subprocess.Popen([*PROGRAM, CLI, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as cold:
        assert cold.communicate() == (printed, complained)


def test_it_begins_in_the_folder_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text("moon = 1\n")
    with start("config", "check", "--config", "here.toml", cwd=tmp_path) as process:
        assert "moon" in "".join(process.communicate())


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a worker has."""
    (tmp_path / "hgrc").write_text("[extensions]\n*:required = yes\npushlog =\n")
    return {"HGRCPATH": str(tmp_path / "hgrc"), "HGRCSKIPREPO": "1", "HGENCODING": "UTF-8", "PATH": os.environ["PATH"]}


def test_a_worker_answers_through_the_descriptor_that_it_was_given(tmp_path: Path, environment: dict[str, str]) -> None:
    ours, theirs = Pipe()
    with theirs:
        process = start(str(theirs.fileno()), module=WORKER, env=environment, pass_fds=[theirs.fileno()])
    with process:
        assert is_warm(process)
        with ours:
            ours.send(MirrorSettings(name="alpha", root=str(tmp_path)))
            assert ours.poll(PATIENCE)
            assert ours.recv() == READY
        assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_its_process_group_is_its_own_and_a_signal_ends_it(environment: dict[str, str]) -> None:
    ours, theirs = Pipe()
    arguments = [str(theirs.fileno())]
    with ours, theirs, start(
        *arguments, module=WORKER, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
    ) as process:  # fmt: skip
        eventually(lambda: os.getpgid(process.pid) == process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_a_leash_is_kept_and_one_of_another_is_the_end() -> None:
    with warm_starts():
        mine = subprocess.run([*leashed([]), *PROGRAM, CLI, "--version"], stdout=subprocess.PIPE, check=True)
        others = [*leashed([])[:-1], "1", *PROGRAM, CLI, "--version"]
        assert subprocess.run(others, stdout=subprocess.PIPE, check=True).stdout == b""
    assert b"version" in mine.stdout


def test_it_is_killed_at_a_line(tmp_path: Path) -> None:
    files = ("vcsreplicator/cli/", "vcsreplicator/words/errors.py")
    steps = PythonSteps(files=files, record=tmp_path / "steps", argument="--version")

    def run(environment: Mapping[str, str]) -> int:
        with start("--version", env=environment) as process:
            process.communicate()
        return process.returncode

    taken = steps.taken(run)
    assert not [place for place in taken if "errors.py" in place], "a warm process has imported it before"
    assert run({**os.environ, **steps.environment(kill_at=len(taken) // 2)}) == -signal.SIGKILL
    assert run(os.environ) == 0


def test_a_warm_hg_is_killed_at_a_line(tmp_path: Path) -> None:
    steps = PythonSteps(files=("mercurial/dispatch.py",), record=tmp_path / "steps", argument="version")

    def run(environment: Mapping[str, str]) -> int:
        command = [shared_hg(environment), "version", "--quiet"]
        return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode

    taken = steps.taken(run)
    assert run({**os.environ, **steps.environment(kill_at=len(taken) // 2)}) == -signal.SIGKILL
    assert run({**os.environ, **steps.environment(kill_at=len(taken) + 1000)}) == 0


@pytest.mark.parametrize("variable", ["PYTHONPATH", "LD_PRELOAD", "HGMODULEPOLICY"])
def test_what_python_imports_otherwise_starts_cold(variable: str) -> None:
    with start("--version", env={**os.environ, variable: ""}, stdin=subprocess.PIPE) as process:
        assert not is_warm(process)


def test_other_commands_start_as_always() -> None:
    with warm_starts():
        assert subprocess.check_output([sys.executable, "-c", "print(1)"], text=True) == "1\n"


def test_a_stem_is_called_so_and_is_no_worker() -> None:
    with start("--version") as process:
        process.wait()
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert STEM in [Path(f"/proc/{child}/comm").read_text().strip() for child in children]
