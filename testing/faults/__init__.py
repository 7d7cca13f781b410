# SPDX-License-Identifier: GPL-2.0-or-later
"""Kill a process at every line of Python, or at every system call that changes a file: enumerate first, then strike one.

Lines (`PythonSteps`), in processes that inherit an environment:

    steps = PythonSteps(files=("pushlog/", "mercurial/transaction.py"), argument="serve", record=tmp_path / "steps")
    places = steps.taken(lambda environment: push(environment))   # ["…/transaction.py:757", …]: one whole run
    for number in first_visits(places):
        push({**os.environ, **steps.environment(kill_at=number)})   # SIGKILL just before that line runs
        assert_nothing_was_lost()

System calls (`SystemCalls`), in one process started from an argv, by strace:

    calls = SystemCalls(log=tmp_path / "strace.log")
    for call in calls.made(["hg", "-R", "repository", "unbundle", "bundle"], run):
        run(calls.struck(argv, at=call))                          # SIGKILL: that call is not carried out
        run(calls.struck(argv, at=call, fault="error=ENOSPC"))    # or it fails instead

Two runs of one command are not always alike: a number past the end strikes nothing and the run ends well, so look at the exit
status before you claim that a kill took place. A call is never half done: killing before call N+1 is killing after call N.
"""

import contextlib
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testing.services.process import needed

# Draws the samples of faults: others at every run, unless VCSREPLICATOR_TEST_SEED sets them. A failure names the seed.
SEED = int(os.environ.get("VCSREPLICATOR_TEST_SEED") or secrets.randbelow(1_000_000))

STEPPING = Path(__file__).with_name("stepping")

# Everything that changes a file or makes it durable; `openat` counts where it may create or write.
MUTATING = (
    "openat,creat,write,pwrite64,writev,pwritev,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,"
    "mkdirat,rmdir,truncate,ftruncate,fallocate,copy_file_range,sendfile,fsync,fdatasync,syncfs,chmod,fchmod,fchmodat,utimensat"
)
READ_ONLY_OPEN = re.compile(r"^openat\((?!.*\bO_(?:WRONLY|RDWR|CREAT|TRUNC)\b)")


@contextlib.contextmanager
def told_with_seed(what: str) -> Iterator[None]:
    """A failure within names the fault, and how to draw it again."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{what} (VCSREPLICATOR_TEST_SEED={SEED}): {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSteps:
    """Lines about to run in files whose path contains one of `files`, in processes with `argument` among theirs (empty: all)."""

    files: Sequence[str]
    record: Path
    argument: str = ""

    def environment(self, *, kill_at: int | None = None) -> dict[str, str]:
        """What a child needs in its environment to be counted and, at step `kill_at` (from 1), killed."""
        settings = {
            "files": list(self.files),
            "record": str(self.record),
            "argument": self.argument,
            "kill_at": kill_at,
        }
        paths = [str(STEPPING), os.environ.get("PYTHONPATH", "")]
        return {
            "VCSREPLICATOR_TEST_STEPS": json.dumps(settings),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONHASHSEED": "0",  # two runs take the same steps
        }

    def taken(self, run: Callable[[Mapping[str, str]], object], *, kill_at: int | None = None) -> list[str]:
        """`run` with the whole environment of a counted child; the steps it took as `path:line`, the last being where it died."""
        self.record.write_text("")
        run({**os.environ, **self.environment(kill_at=kill_at)})
        taken = self.record.read_text().splitlines()
        assert taken, "no step was counted: was the process started by other words, or its environment changed?"
        return taken


def first_visits(places: Sequence[str]) -> list[int]:
    """The step numbers (from 1) at which each place is reached first: one kill per line instead of one per turn of a loop."""
    first: dict[str, int] = {}
    for number, place in enumerate(places, 1):
        first.setdefault(place, number)
    return sorted(first.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemCall:
    """The `number`-th call of `name` (from 1) of a process, and strace's text of it with the paths of its files."""

    name: str
    number: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemCalls:
    """The mutating system calls of one process; its threads and children are left alone."""

    log: Path

    def made(self, argv: Sequence[str], run: Callable[[Sequence[str]], object]) -> list[SystemCall]:
        """`run` the argv under strace, undisturbed; the calls it made, in order."""
        run([*self._strace(), "-e", f"trace={MUTATING}", "--", *argv])
        counts: Counter[str] = Counter()
        calls = []
        for line in self.log.read_text(errors="replace").splitlines():
            if match := re.match(r"(\w+)\(", line):
                counts[match[1]] += 1
                if not READ_ONLY_OPEN.match(line):
                    calls.append(SystemCall(name=match[1], number=counts[match[1]], text=line))
        return calls

    def struck(self, argv: Sequence[str], *, at: SystemCall, fault: str = "signal=KILL") -> list[str]:
        """The argv that runs until that call and meets `fault` there, in the words of strace's `inject`."""
        return [
            *self._strace(),
            "-e",
            f"trace={at.name}",
            "-e",
            f"inject={at.name}:{fault}:when={at.number}",
            "--",
            *argv,
        ]

    def _strace(self) -> list[str]:
        alike = ["-E", "PYTHONHASHSEED=0", "-E", "PYTHONDONTWRITEBYTECODE=1"]  # so that two runs make the same calls
        return [needed("strace", "strace"), "-qq", "-y", "-s", "32", *alike, "-o", str(self.log)]
