# SPDX-License-Identifier: GPL-2.0-or-later
"""Every `.t` transcript below this folder, run by Mercurial's own runner; a difference is shown as the failure.

The runner is not in Mercurial's wheels: it is taken from the source archive of the version and hash that requirements/install.txt
pins, and kept in the cache; it tests older versions too. Its tools are beside it: `$RUNTESTDIR/dummyssh` is an ssh that
runs here.
"""

import itertools
import os
import random
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hgext.vcsreplicator.demo.ports import free_port
from testing.faults import SEED
from testing.services.cache import CHECKOUT, cached
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

TESTS = Path(__file__).parent
TRANSCRIPTS = sorted(TESTS.rglob("*.t"))
# Programs that transcripts call, as `$TESTDIR/NAME`.
TOOLS = CHECKOUT / "testing" / "transcripts"
LOCK = CHECKOUT / "requirements" / "install.txt"


def pinned_mercurial() -> str:
    """The lines of the lock that name Mercurial's version and hashes."""
    lines = LOCK.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("mercurial=="))
    last = next(number for number in range(first, len(lines)) if not lines[number].endswith("\\"))
    return "\n".join(lines[first : last + 1]) + "\n"


def extract_runner(folder: Path) -> None:
    """Download the pinned archive and keep its `tests/` but the tests."""
    requirements = folder / "requirements.txt"
    requirements.write_text(pinned_mercurial())
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    download = [*pip, "--no-binary", "mercurial", "--require-hashes", "-r", str(requirements), "-d", str(folder)]
    # pip asks the archive for its metadata: without this, Mercurial would want a compiler's headers for that.
    pure = folder / "pure.cfg"
    pure.write_text("[global]\npure=1\n")
    subprocess.run(download, check=True, cwd=folder, env={**os.environ, "DIST_EXTRA_CONFIG": str(pure)})
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        for member in source:
            _, _, path = member.name.partition("/")
            is_tool = path.startswith("tests/") and path.count("/") == 1 and not path.startswith("tests/test-")
            if is_tool and (content := source.extractfile(member)):
                tool = folder / path.removeprefix("tests/")
                tool.write_bytes(content.read())
                tool.chmod(member.mode)
    archive.unlink()


@pytest.fixture(scope="session")
def runner() -> Path:
    version = pinned_mercurial().split()[0].removeprefix("mercurial==")
    return cached(f"run-tests-{version}", extract_runner) / "run-tests.py"


def stage(transcript: Path, folder: Path) -> Path:
    """A folder with the tools, where the transcript has the only kind of name that the runner takes: `test-*.t`."""
    folder.mkdir()
    for tool in TOOLS.iterdir():
        (folder / tool.name).symlink_to(tool)
    staged = folder / f"test-{transcript.stem}.t"
    staged.symlink_to(transcript)
    return staged


# The runner, whose transcripts find a certain program under the name of Python. Python keeps what it compiled of a module, never of
# the program that it runs, and this one has 4,400 lines.
RUN = """
import importlib.machinery, pathlib, sys
_, sys.executable, *sys.argv[:] = sys.argv
sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
program = sys.modules["__main__"]
program.__file__ = sys.argv[0]
exec(importlib.machinery.SourceFileLoader("run-tests", sys.argv[0]).get_code("run-tests"), vars(program))
"""
# What a transcript's commands have in them that needs a start of its own for each `hg`: they kill another process, or are jobs of
# the shell.
OWN_STARTS = re.compile(
    r"^  [$>] (?!.*os\.kill\(os\.getpid\(\)).*\bkill\b|^  [$>] .*&$|^  \$ .*\bpython\b.*-m mercurial", re.MULTILINE
)
# The transcripts of this folder end daemons only.
ENDS_DAEMONS = TESTS / "hg" / "serving"
# Those that are about the start itself. Another one finds a cold `hg` in the folder `$COLD`.
START_UP = {TESTS / "hg" / "install.t"}
# The same for all transcripts of a process, which share one warm `hg`.
HASH_SEED = str(random.Random(SEED).randrange(2**32))
# The variables that the runner gives its transcripts and Mercurial reads while it is imported.
IMPORTED = {
    **dict.fromkeys(("LC_ALL", "LANG", "LANGUAGE"), "C"),
    "HGENCODING": "ascii",
    "HGENCODINGMODE": "strict",
    "HGEMITWARNINGS": "1",
    "PYTHONWARNINGS": "ignore",
    "PYTHONUNBUFFERED": "1",
}


def choose_hg(transcript: Path, warm: Path) -> Path:
    """The `hg` for a transcript: warm, unless what it is about needs real starts."""
    needs_own_starts = transcript.parent != ENDS_DAEMONS and OWN_STARTS.search(transcript.read_text())
    if transcript in START_UP or needs_own_starts:
        return Path(sys.executable).with_name("hg")
    return warm


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """The runner's, for what starts in the block."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# The first of the ports of a runner, which takes `HGPORT_COUNT`: 4. The services' are from 20,000 on, those of clients higher.
PORTS, ANOTHER_PORTS = range(10_000, 19_900, 4), range(19_900, 19_908, 4)


@contextmanager
def claimed_ports(firsts: Sequence[int] = PORTS) -> Iterator[int]:
    """The first of four free ports, which no other runner of this machine has during the block.

    Before its servers listen, no port tells that a runner chose it. So a claim is a name of a socket, and ends with its process.
    """
    while True:
        first = random.choice(firsts)
        with ExitStack() as trying:
            try:
                trying.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0vcsreplicator-transcript-{first}")
                with ExitStack() as listening:
                    for port in range(first, first + 4):
                        listening.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            yield first
            return


def difference(transcript: Path, runner: Path, folder: Path, *, one_in: int = 12) -> str:
    """What the runner says of a transcript that does not hold, or did not run; empty if it holds.

    One question in so many is asked where a transcript asks a mirror everything.
    """
    environment = {**os.environ, "USER": "tester", "PYTHONWARNINGS": "ignore", "PYTHONHASHSEED": HASH_SEED}
    environment["ONE_IN"] = "1" if os.environ.get("VCSREPLICATOR_TEST_WHOLE") else str(one_in)
    environment["COLD"] = str(Path(sys.executable).parent)
    environment["PATH"] = f"{environment['COLD']}{os.pathsep}{environment['PATH']}"  # our other programs
    environment |= IMPORTED  # so that the runner is warm too
    with umask(0o022):
        warm = Path(shared_hg(environment))
    hg = choose_hg(transcript, warm)
    options = ["--with-hg", str(hg), "--tmpdir", str(folder / "run"), "--outputdir", str(folder), "--timeout", "280"]
    staged = stage(transcript, folder / "transcripts")
    # The runner's Python is the one that transcripts call.
    python = str(hg.with_name("python"))
    with claimed_ports() as first:
        result = subprocess.run(
            [warm.with_name("python"), "-c", RUN, python, runner, *options, "--port", str(first), staged],
            env=environment,
            umask=0o022,
            cwd=staged.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    holds = result.returncode == 0 and "Ran 1 tests, 0 skipped, 0 failed" in result.stdout
    return "" if holds else f"{transcript.name} does not hold (VCSREPLICATOR_TEST_SEED={SEED}):\n{result.stdout}"


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: str(path.relative_to(TESTS).with_suffix("")))
def test_transcript_holds(transcript: Path, runner: Path, tmp_path: Path) -> None:
    if found := difference(transcript, runner, tmp_path):
        pytest.fail(found, pytrace=False)


@pytest.mark.slow
def test_every_question_is_answered_as_if_only_the_release_were_there(runner: Path, tmp_path: Path) -> None:
    assert difference(TESTS / "hg" / "serving" / "everything.t", runner, tmp_path, one_in=1) == ""


def test_a_transcript_that_does_not_hold_shows_the_difference(runner: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "moon.t").write_text("  $ echo real\n  imagined\n")
    found = difference(tmp_path / "wrong" / "moon.t", runner, tmp_path)
    assert "-  imagined" in found
    assert "+  real" in found


def test_a_transcript_that_was_skipped_does_not_hold(runner: Path, tmp_path: Path) -> None:
    (tmp_path / "skipped").mkdir()
    (tmp_path / "skipped" / "moon.t").write_text("#require false\n  $ echo real\n  imagined\n")
    assert "skipped" in difference(tmp_path / "skipped" / "moon.t", runner, tmp_path)


def test_runners_side_by_side_have_ports_of_their_own() -> None:
    for _ in range(10):  # else chance may choose well
        with claimed_ports(ANOTHER_PORTS) as first, claimed_ports(ANOTHER_PORTS) as second:
            assert {first, second} == set(ANOTHER_PORTS)


def test_a_runner_is_given_no_port_that_another_program_has(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = free_port(), ANOTHER_PORTS[0]
    offered = itertools.cycle((taken - 3, free))
    monkeypatch.setattr(random, "choice", lambda _: next(offered))
    with socket.create_server(("127.0.0.1", taken)), claimed_ports() as first:
        assert first == free


PARENT = "import os; print(*open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0))[1:4])"


@pytest.mark.parametrize("more", ["", "It kills nothing &\n", "  $ kill -0 $$\n", "  $ true &\n"])
def test_a_transcript_has_a_warm_hg_unless_it_kills(runner: Path, tmp_path: Path, more: str) -> None:
    (tmp_path / "warm").mkdir()
    transcript = tmp_path / "warm" / "moon.t"
    transcript.write_text(f'  $ hg debugshell -c "{PARENT}"\n  -P -m testing.warm_hg\n{more}')
    with_warm_hg = difference(transcript, runner, tmp_path) == ""
    assert with_warm_hg == ("$" not in more)
