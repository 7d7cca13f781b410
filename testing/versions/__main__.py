# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests the product on every version of Mercurial that it supports, and prints a table.

    python -m testing.versions [VERSION ...]

Each cell is what pytest said: the number of tests that passed, or how many failed; without one the version is not supported there.
The last line is about all versions in one cluster, if none was chosen. Output of a cell that failed follows the table. The exit
code is 1 if any failed.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from mercurial import util

from pushlog import versions
from testing.services.cache import CHECKOUT
from testing.services.keeper import ADDRESS

from .environment import OLDER, environment

NEWEST = ".".join(map(str, util.versiontuple(n=2)))
# What is tested → the files and folders of its tests. The guards come with every wire command and page that can show something.
PARTS = {
    "pushlog": ("pushlog",),
    "hooks": ("hooks",),
    "master": ("hg/master", "hg/install.t"),
    "mirror": ("hg/replica", "hg/test_observe.py", "hg/test_bundles.py"),
    "guards": ("hg/serving", "house/test_seams.py"),
    "work": ("notifier/services/work/test_clones.py", "notifier/services/work/test_commandserver.py"),
}
ON_ALL = ("pushlog", "hooks", "work")
# A master and mirrors that run on different versions.
TOGETHER = ("hg/test_across.py",)
# Warnings of this Mercurial's own code: it imports an old module, leaves files for the collector to close, and is compiled when a
# test first imports it.
OF_6_3 = [
    "-Wignore:the imp module is deprecated:DeprecationWarning",
    "-Wignore:invalid escape sequence:DeprecationWarning",
    "-Wignore::ResourceWarning",
    "-Wignore::pytest.PytestUnraisableExceptionWarning",
]
QUICK, ALL = "not slow and not services", "not services"


def is_supported(version: str, part: str) -> bool:
    """Whether a part is promised on a version."""
    return part in ON_ALL or tuple(map(int, version.split("."))) >= versions.OLDEST_REPLICATED


def select_tests(places: Sequence[str]) -> list[str]:
    """Name for pytest the tests in these places below `tests/`, transcripts included."""
    tests = CHECKOUT / "tests"
    selected: list[str] = []
    for place in places:
        found = tests / place
        is_transcript = found.suffix == ".t"
        transcripts = [found] if is_transcript else sorted(found.rglob("*.t"))
        names = (transcript.relative_to(tests).with_suffix("") for transcript in transcripts)
        selected += [f"tests/test_transcripts.py::test_transcript_holds[{name}]" for name in names]
        selected += [] if is_transcript else [f"tests/{place}"]
    return selected


def run_tests(version: str, places: Sequence[str], marks: str = QUICK) -> tuple[str, str]:
    """Test places on a version; gives what a cell says of it, and the output if a test failed."""
    python = sys.executable if version == NEWEST else str(environment(version) / "bin" / "python")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
    command += OF_6_3 if version == "6.3" else []
    ended = subprocess.run(
        [*command, *select_tests(places)],
        cwd=CHECKOUT,
        env={**_copy_environment(), "VCSREPLICATOR_TEST_WHOLE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    last = ended.stdout.rstrip().rpartition("\n")[2]
    counts = {word: number for number, word in re.findall(r"(\d+) (passed|failed|error)", last)}
    if ended.returncode == 0 and "passed" in counts:
        return f"{counts['passed']} passed", ""
    return f"{counts.get('failed', counts.get('error', '?'))} FAILED", ended.stdout


def _copy_environment() -> dict[str, str]:
    """Copy all but the keeper of a run of tests around this one, whose warm `hg` is of another version."""
    return {name: value for name, value in os.environ.items() if name != ADDRESS}


def main(wanted: Sequence[str]) -> int:
    """Print the table as its cells become known."""
    print("Mercurial".ljust(10), *(part.ljust(11) for part in PARTS), flush=True)
    outputs: list[str] = []

    def print_cell(title: str, version: str, places: Sequence[str], marks: str = QUICK) -> None:
        cell, output = run_tests(version, places, marks)
        print("", cell.ljust(11), end="", flush=True)
        if output:
            outputs.append(f"\n{title}\n{output}")

    for version in wanted or [*OLDER, NEWEST]:
        print(version.ljust(10), end="", flush=True)
        for part, places in PARTS.items():
            if is_supported(version, part):
                print_cell(f"{part} on Mercurial {version}", version, places)
        print(flush=True)
    if not wanted:
        print("together".ljust(10), end="", flush=True)
        print_cell("versions together", NEWEST, TOGETHER, ALL)
        print(flush=True)
    print(*outputs, sep="\n")
    return 1 if outputs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
