# SPDX-License-Identifier: GPL-2.0-or-later
"""Run a module of Python whose time of day another process sets: `python -m testing.faults.wrong_clock FILE MODULE …`.

FILE has the seconds by which the clock is ahead, as `set_clock` writes them; the running module sees each change at once. Only the
time of day is wrong, as where an operator or NTP set it; the monotonic clock goes on.
"""

import mmap
import runpy
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testing.services.cache import CHECKOUT

_SECONDS = struct.Struct("<d")


def set_clock(file: Path, ahead: float) -> None:
    """Set the clock so many seconds ahead, or back by a negative number."""
    with file.open("r+b" if file.exists() else "wb") as opened:
        opened.write(_SECONDS.pack(ahead))


def clocked(service: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The service, as a cluster describes it, with the clock that this file sets."""
    set_clock(file, 0.0)
    argv = list(service["argv"])
    program = argv.index("-m", argv.index("-P"))
    argv[program : program + 1] = ["-m", "testing.faults.wrong_clock", str(file)]
    return {**service, "argv": argv, "env": {**service["env"], "PYTHONPATH": str(CHECKOUT)}}


def main() -> None:
    file, module, *arguments = sys.argv[1:]
    with open(file, "rb") as opened:
        ahead = mmap.mmap(opened.fileno(), _SECONDS.size, prot=mmap.PROT_READ)
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + _SECONDS.unpack_from(ahead)[0]
    time.time_ns = lambda: now_ns() + int(_SECONDS.unpack_from(ahead)[0] * 1e9)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
