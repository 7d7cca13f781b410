# SPDX-License-Identifier: GPL-2.0-or-later
"""Where downloads are kept between runs: `$VCSREPLICATOR_CACHE`, or `.cache/` in the checkout."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def cache_folder() -> Path:
    """The folder of all downloads, created when needed."""
    folder = Path(os.environ.get("VCSREPLICATOR_CACHE") or CHECKOUT / ".cache")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, filled once by `fill`; whole or absent, however many runs start at once or are killed."""
    target = cache_folder() / name
    with (cache_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            unfinished = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=cache_folder()))
            try:
                fill(unfinished)
                unfinished.rename(target)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
    return target
