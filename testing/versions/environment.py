# SPDX-License-Identifier: GPL-2.0-or-later
"""A Python environment with one version of Mercurial, and all else from the environment of this checkout.

    environment("7.0") / "bin" / "python"

It is made once and kept in the cache. Its own packages, Mercurial and hg-evolve, come before those of the checkout.
"""

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from testing.services.cache import CHECKOUT, cache_folder, cached

REQUIREMENTS = CHECKOUT / "requirements"
# Versions with an environment of their own; the newest is that of the checkout.
OLDER = tuple(sorted(file.stem.removeprefix("mercurial-") for file in REQUIREMENTS.glob("mercurial-*.txt")))
# In an environment: the Python of the checkout's, and the version.
_NAME = Path(sys.prefix, "version.txt")
# Programs of the checkout's environment that tests start.
_PROGRAMS = ("vcsreplicator", "pytest")


def environment(version: str) -> Path:
    """Give the folder of the environment; builds it if it is not in the cache."""
    requirements = REQUIREMENTS / f"mercurial-{version}.txt"
    base = interpreter(None)
    content = f"{requirements.read_text()}{base}{sys.version}{Path(__file__).read_text()}"
    name = f"mercurial-{version}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    def fill(folder: Path) -> None:
        subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True)
        python = str(folder / "bin" / "python")
        _share_packages(folder, Path(base))
        pip = [base, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python, "install"]
        # Mercurial's own folder, not that of the checkout, which it would take for installed. Python compiles what is imported.
        pip += [
            "--ignore-installed",
            "--no-compile",
            "--no-deps",
            "--no-build-isolation",
            "--require-hashes",
            "-r",
            str(requirements),
        ]
        # Of an old version there is no wheel, and what its C does is not timed.
        subprocess.run(pip, check=True, env={**os.environ, "CFLAGS": "-O0 -g0"})
        (folder / _NAME.name).write_text(f"{base}\n{version}\n")
        _move_programs(folder, cache_folder() / name)

    return cached(name, fill)


def running() -> str | None:
    """The version whose environment this process runs in; None in that of the checkout."""
    return _NAME.read_text().split()[1] if _NAME.exists() else None


def interpreter(version: str | None) -> str:
    """The Python of a version's environment, or for None of the checkout's."""
    if version is None:
        return _NAME.read_text().split()[0] if _NAME.exists() else sys.executable
    return str(environment(version) / "bin" / "python")


def _packages(folder: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))


def _share_packages(folder: Path, base: Path) -> None:
    """Let it import this checkout and the packages of its environment, after its own."""
    shared = f"{CHECKOUT}\n{_packages(base.parents[1])}\n"
    (_packages(folder) / "checkout.pth").write_text(shared)


def _move_programs(folder: Path, final: Path) -> None:
    """Have programs start the Python of the folder's final name."""
    for name in _PROGRAMS:
        program = folder / "bin" / name
        program.write_bytes(Path(interpreter(None)).with_name(name).read_bytes())
        program.chmod(0o755)
    for name in ("hg", *_PROGRAMS):
        program = folder / "bin" / name
        _, _, rest = program.read_bytes().partition(b"\n")
        program.write_bytes(b"#!%s\n%s" % (bytes(final / "bin" / "python"), rest))


if __name__ == "__main__":
    for wanted in sys.argv[1:] or OLDER:
        print(environment(wanted))
