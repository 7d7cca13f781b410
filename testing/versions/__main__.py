# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests the product on every version of Mercurial that it supports, and prints a table.

    python -m testing.versions [VERSION ...]

Each cell is what pytest said: the number of tests that passed, or how many failed. Output of a cell that failed follows the table.
The exit code is 1 if any failed.
"""

import re
import subprocess
import sys
from collections.abc import Sequence

from mercurial import util

from testing.services.cache import CHECKOUT

from .environment import OLDER, environment

NEWEST = ".".join(map(str, util.versiontuple(n=2)))
# What is tested → the files and folders of its tests. The guards come with every wire command and page that can show something.
PARTS = {
    "pushlog": ("pushlog",),
    "master": ("hg/master", "hg/install.t"),
    "mirror": ("hg/replica", "hg/test_observe.py", "hg/test_bundles.py"),
    "guards": ("hg/serving", "house/test_seams.py"),
}


def select_tests(places: Sequence[str]) -> list[str]:
    """Name for pytest the tests in these places below `tests/`, transcripts included."""
    tests = CHECKOUT / "tests"
    selected: list[str] = []
    for place in places:
        found = tests / place
        transcripts = sorted(found.rglob("*.t")) if found.is_dir() else [found] if found.suffix == ".t" else []
        names = (transcript.relative_to(tests).with_suffix("") for transcript in transcripts)
        selected += [f"tests/test_transcripts.py::test_transcript_holds[{name}]" for name in names]
        selected += [] if found.suffix == ".t" else [f"tests/{place}"]
    return selected


def run_tests(version: str, places: Sequence[str]) -> tuple[str, str]:
    """Test places on a version; gives what a cell says of it, and the output if a test failed."""
    python = sys.executable if version == NEWEST else str(environment(version) / "bin" / "python")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not services"]
    ended = subprocess.run(
        [*command, *select_tests(places)],
        cwd=CHECKOUT,
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


def main(wanted: Sequence[str]) -> int:
    """Print the table as its cells become known."""
    print("Mercurial".ljust(10), *(part.ljust(11) for part in PARTS), flush=True)
    outputs: list[str] = []
    for version in wanted or [*OLDER, NEWEST]:
        print(version.ljust(10), end="", flush=True)
        for part, places in PARTS.items():
            cell, output = run_tests(version, places)
            print("", cell.ljust(11), end="", flush=True)
            if output:
                outputs.append(f"\n{part} on Mercurial {version}\n{output}")
        print(flush=True)
    print(*outputs, sep="\n")
    return 1 if outputs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
