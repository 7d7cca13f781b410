# SPDX-License-Identifier: GPL-2.0-or-later
"""A Python environment with the packages of a Heptapod host, and this project as `pip install .` puts it beside them.

    environment() / "bin" / "python"

Nothing in it comes from the environment of the checkout: Heptapod pins other versions of what our services need. It is made once,
in about 20 s, and kept in the cache; only this project is installed again whenever it has changed.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from testing.services.cache import CHECKOUT, cache_folder, cached

REQUIREMENTS = CHECKOUT / "requirements" / "heptapod.txt"
# What `pip install .` reads.
SOURCES = ("pyproject.toml", "setup.py", "README.md", "MANIFEST.in", "COPYING", "hgext", "pushlog", "hooks", "notifier")


def environment() -> Path:
    """Give the folder of the environment; what is missing in it is installed first."""
    content = f"{REQUIREMENTS.read_text()}{sys.executable}{sys.version}{Path(__file__).read_text()}"
    folder = cached(f"heptapod-{_hash(content.encode())}", _install_packages)
    # One process installs at a time, and none uses the environment before it holds the present sources.
    with (cache_folder() / f"{folder.name}.project").open("a+") as installed:
        fcntl.flock(installed, fcntl.LOCK_EX)
        installed.seek(0)
        sources = _hash_sources()
        if installed.read() != sources:
            _install_project(folder)
            installed.truncate(0)
            installed.write(sources)
    return folder


def _install_packages(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    # Most of Heptapod's packages have no wheel: what builds them is one of the locked packages, so it comes first.
    build = next(part for part in re.split(r"\n(?=\S)", REQUIREMENTS.read_text()) if part.startswith("setuptools=="))
    first = folder / "build.txt"
    first.write_text(build)
    for requirements in (first, REQUIREMENTS):
        _install(folder, "--require-hashes", "-r", str(requirements))


def _install_project(folder: Path) -> None:
    """From a copy: a build leaves files in its folder, and takes old ones for sources."""
    with tempfile.TemporaryDirectory(dir=cache_folder()) as copy:
        for name in SOURCES:
            is_folder = (CHECKOUT / name).is_dir()
            (shutil.copytree if is_folder else shutil.copy)(CHECKOUT / name, Path(copy, name))
        _install(folder, "--no-deps", "--force-reinstall", copy)


def _install(folder: Path, *words: str) -> None:
    """With uv, or with pip where uv finds no packages, as in the Makefile."""
    python = str(folder / "bin" / "python")
    options = ["--quiet", "--no-build-isolation", "--python", python]
    uv = Path(sys.executable).with_name("uv")
    if subprocess.run([uv, "pip", "install", *options, *words], stderr=subprocess.DEVNULL).returncode:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", python, "install"]
        subprocess.run([*pip, "--no-build-isolation", *words], check=True)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _hash_sources() -> str:
    files = (file for name in SOURCES for file in sorted([CHECKOUT / name, *(CHECKOUT / name).rglob("*")]))
    read = (file for file in files if file.is_file() and "__pycache__" not in file.parts)
    return _hash(b"".join(str(file).encode() + file.read_bytes() for file in read))


if __name__ == "__main__":
    print(environment())
