# SPDX-License-Identifier: GPL-2.0-or-later
"""A process that is started warm is what a cold one would be: a child with its own id, streams, environment and exit."""

import http.client
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.demo.supervisor import leashed
from hgext.vcsreplicator.mirror import MirrorSettings
from hgext.vcsreplicator.mirror.task import READY
from testing.faults import PythonSteps
from testing.services.keeper import ADDRESS
from testing.waiting import PATIENCE, eventually
from testing.warm import CLI, PROGRAM, STEM, WORKER, warm_starts
from testing.warm_hg import link_clients, read_umask, shared_hg, warm_hg

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
    with process, ours:  # a worker ends once our end is closed
        assert is_warm(process)
        with ours:
            ours.send(MirrorSettings(name="alpha", root=str(tmp_path)))
            assert ours.poll(PATIENCE)
            assert ours.recv() == READY
        assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_the_workers_of_a_warm_web_server_start_warm(tmp_path: Path, environment: dict[str, str]) -> None:
    words = ("web", "--root", str(tmp_path), "--listen", f"127.0.0.1:{free_port()}")
    with start(*words, env=environment) as server:
        try:
            eventually(lambda: b"nursery" in {command(child)[0] for child in list_children(server.pid)})
            assert [
                words for name, words in map(command, list_children(server.pid)) if b"testing.warm" not in words
            ] == []
        finally:
            server.terminate()
            server.communicate()


def list_children(process: int) -> list[Path]:
    numbers = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [Path("/proc", number) for number in numbers]


def command(process: Path) -> tuple[bytes, bytes]:
    """The name that the system shows for a process, and its words."""
    return (process / "comm").read_bytes().strip(), (process / "cmdline").read_bytes()


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


NAME_PARENT = "import os; print(open(f'/proc/{os.getppid()}/cmdline').read())"


def run_python(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """What the Python beside a warm hg prints, and its exit code."""
    program = Path(shared_hg(os.environ)).with_name("python")
    return subprocess.run([program, *words], capture_output=True, text=True, **options)


@pytest.mark.parametrize(
    ("words", "more", "options", "is_warm"),
    [
        ((), {}, {}, True),
        ((), {"UNKNOWN": "1"}, {}, True),
        ((), {"PYTHONHASHSEED": "1"}, {}, False),
        ((), {}, {"umask": 0o77}, False),
        (("-E",), {}, {}, False),
    ],
)
def test_a_caller_whose_program_is_no_warm_one_gets_the_real_one(
    words: tuple[str, ...], more: dict[str, str], options: dict[str, int], is_warm: bool
) -> None:
    done = run_python(*words, "-c", NAME_PARENT, env={**os.environ, **more}, **options)
    assert (done.returncode, "testing.warm_hg" in done.stdout) == (0, is_warm), done.stderr


def test_a_warm_program_hands_on_how_it_ended_and_what_it_was_given(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), sys.stdin.read(), sys.argv[1:]); sys.exit(3)"
    done = run_python("-c", code, "", "a b", cwd=tmp_path, input="typed")
    assert (done.returncode, done.stdout) == (3, f"{tmp_path} typed ['', 'a b']\n")


def run_in_shell(words: str, code: str) -> subprocess.CompletedProcess[str]:
    """What the Python beside a warm hg prints, started by a shell; "$0" is the program, "$1" its code."""
    program = Path(shared_hg(os.environ)).with_name("python")
    return subprocess.run(["sh", "-c", words, program, code], capture_output=True, text=True)


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "2>&-"])
def test_a_caller_without_a_standard_stream_gets_the_real_program(closed: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    run_in_shell(f'exec "$0" -c "$1" {closed}', NAME_PARENT.replace("print(", f"open({str(said)!r}, 'w').write("))
    assert "testing.warm_hg" not in said.read_text()
    assert "testing.warm_hg" in run_python("-c", NAME_PARENT).stdout


def test_a_command_that_a_signal_ended_did_not_succeed() -> None:
    code = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTERM)"
    assert run_in_shell('trap "" TERM; exec "$0" -c "$1"', code).returncode == -signal.SIGTERM


def test_a_caller_that_is_gone_before_it_asked_ends_no_other(tmp_path: Path) -> None:
    address = str(Path(shared_hg(os.environ)).with_name("socket"))
    for head in (b"", b"1234", struct.pack(">Q", 100) + b"half"):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(address)
            caller.sendall(head)
    assert "testing.warm_hg" in run_python("-c", NAME_PARENT).stdout


def test_variables_of_any_length_decide_about_a_warm_program(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": "/nowhere" * 3000}
    link_clients(tmp_path, str(Path(shared_hg()).with_name("socket")), environment, read_umask())
    for given, is_warm in ((environment, True), ({**environment, "PYTHONPATH": "/nowhere"}, False)):
        words = [tmp_path / "python", "-c", NAME_PARENT]
        done = subprocess.run(words, env=given, capture_output=True, text=True, check=True)
        assert ("testing.warm_hg" in done.stdout) == is_warm


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with pytest.raises(RuntimeError, match="AF_UNIX path too long"), warm_hg(folder, os.environ):
        pass


@pytest.mark.parametrize("option", ["-d", "--daemon"])
def test_a_daemon_of_a_warm_hg_is_warm_too_and_lives_on(tmp_path: Path, option: str) -> None:
    hg, port, written = shared_hg(os.environ), free_port(), tmp_path / "pid"
    subprocess.run([hg, "init", tmp_path / "repo"], check=True)
    words = ["--cwd", tmp_path / "repo", "serve", option, "--address", "127.0.0.1", "--port", str(port)]
    start = subprocess.run([hg, *words, "--pid-file", written], capture_output=True, text=True, check=True)
    daemon = int(written.read_text())
    try:
        asked = http.client.HTTPConnection("127.0.0.1", port)
        asked.request("GET", "/?cmd=capabilities")
        assert asked.getresponse().status == 200
        assert "testing.warm_hg" in Path(f"/proc/{daemon}/cmdline").read_text()
        assert os.getsid(daemon) == daemon
        assert start.stderr == ""
    finally:
        os.kill(daemon, signal.SIGTERM)
    with pytest.raises(ConnectionRefusedError):
        eventually(lambda: socket.create_connection(("127.0.0.1", port)).close())


def test_a_command_with_a_daemons_option_ends_with_all_it_started(tmp_path: Path) -> None:
    hg = shared_hg(os.environ)
    subprocess.run([hg, "init", tmp_path], check=True)
    commit = [hg, "--cwd", tmp_path, "commit", "-d", "0 0", "-m", "one", "--config", "ui.allowemptycommit=yes"]
    assert subprocess.run(commit, capture_output=True, timeout=PATIENCE).returncode == 0


OWNER = """
import os, subprocess, sys, time
from testing.warm_hg import shared_hg
hg, folder, port = shared_hg(os.environ), *sys.argv[1:]
subprocess.run([hg, "init", folder], check=True)
serve = ["serve", "--daemon", "--address", "127.0.0.1", "--port", port, "--pid-file", "pid"]
subprocess.run([hg, "--cwd", folder, *serve], check=True, stdout=subprocess.DEVNULL)
print(hg, flush=True)
time.sleep(3600)
"""


def test_nothing_of_a_warm_hg_is_left_when_its_owner_is_killed(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != ADDRESS}
    words = [sys.executable, "-c", OWNER, tmp_path / "repo", str(free_port())]
    with subprocess.Popen(words, env={**environment, "PYTHONPATH": ""}, text=True, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip()).parent
        owner.kill()
    daemon = int((tmp_path / "repo/pid").read_text())
    eventually(lambda: not folder.exists(), "the programs are removed")
    eventually(lambda: not Path(f"/proc/{daemon}").exists(), "the daemon ended")
