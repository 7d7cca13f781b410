# SPDX-License-Identifier: GPL-2.0-or-later
"""How much memory a process may have, and which processes are bounded."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.memory import STACK, STACKS, read_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

RUN = """
import resource, sys
from hgext.vcsreplicator.cli import verbs
try:
    verbs.run()
except SystemExit:
    print(resource.getrlimit(resource.RLIMIT_DATA)[0])
"""


def groups(folder: Path, **limits: str) -> tuple[Path, Path]:
    """The files of the kernel for a process in a/b, whose control groups have these limits."""
    for name, limit in limits.items():
        place = folder / name.replace("_", "/").removeprefix("top")
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(f"{limit}\n")
    (folder / "own").write_text("4:memory:/else\n0::/a/b\n")
    return folder / "own", folder


def test_the_least_of_machine_and_control_groups_counts(tmp_path: Path) -> None:
    assert read_memory(*groups(tmp_path)) == MACHINE
    assert read_memory(*groups(tmp_path, a_b="max", a=f"{MACHINE * 2}")) == MACHINE
    assert read_memory(*groups(tmp_path, a="1000000")) == 1_000_000
    assert read_memory(*groups(tmp_path, top="900000")) == 900_000
    assert read_memory(*groups(tmp_path, a_b="800000")) == 800_000
    assert read_memory(tmp_path / "missing", tmp_path) == MACHINE


def limit_of(verb: str, *, before: int | None = None) -> int:
    """What a process may allocate that ran this verb of the command line."""
    words = [sys.executable, "-c", RUN, verb, "--nonsense"]
    limit = resource.RLIM_INFINITY if before is None else before
    done = subprocess.run(
        words,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["relay", "setup", "handover", "promote", "demote"])
def test_a_verb_that_opens_repositories_of_accounts_is_bounded(verb: str) -> None:
    assert limit_of(verb) == read_memory() // 2 + STACKS


@pytest.mark.processes
def test_a_limit_that_an_operator_set_stays() -> None:
    assert limit_of("relay", before=1 << 40) == 1 << 40
    assert limit_of("status") == resource.RLIM_INFINITY


@pytest.mark.processes
@pytest.mark.parametrize(("limit", "expected"), [(None, read_memory() // 2 + STACKS + 100 * STACK), (1 << 40, 1 << 40)])
def test_threads_raise_only_a_bound_of_our_own(limit: int | None, expected: int) -> None:
    program = (
        "import resource, sys\nfrom hgext.vcsreplicator.words.memory import *\n"
        "limit = int(sys.argv[1])\nresource.setrlimit(resource.RLIMIT_DATA, (limit, -1)) if limit else bound_to_half()\n"
        "allow_threads(100)\nprint(resource.getrlimit(resource.RLIMIT_DATA)[0])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(limit or 0)], stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) == expected
