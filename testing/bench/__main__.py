# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench`: every benchmark of the project, one table each.

    python -m testing.bench             all of them
    python -m testing.bench push log    some, by the name of their file

A benchmark is a module of this folder with a function `rows() -> list[Row]` and a docstring whose first line is its title.
"""

import importlib
import platform
import sys
from pathlib import Path

from rich.console import Console

from testing.bench.measure import show


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if "def rows(" in path.read_text())


def main(chosen: list[str]) -> int:
    known = names()
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        print(f"bench: no benchmark {unknown[0]!r}, there are: {', '.join(known)}", file=sys.stderr)
        return 2
    console = Console(width=120 if not sys.stdout.isatty() else None)
    console.print(
        f"{platform.machine()}, Python {platform.python_version()}; times vary by about 30 % from run to run\n"
    )
    for name in chosen or known:
        module = importlib.import_module(f"testing.bench.{name}")
        title = (module.__doc__ or name).splitlines()[0].rstrip(".")
        show(title, module.rows(), console)
        console.print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
