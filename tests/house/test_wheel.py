# SPDX-License-Identifier: GPL-2.0-or-later
"""What an ordinary install gets: the packages and their data, nothing of Mercurial's, and extensions that load by name."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT

PACKED = ("hgext", "pushlog", "hooks", "notifier", "stubs", "pyproject.toml", "setup.py", "README.md")

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for path in [CHECKOUT / name for name in PACKED]:
        if path.is_dir():
            shutil.copytree(path, source / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run([*pip, "--wheel-dir", str(source / "dist"), str(source)], check=True, stdout=subprocess.DEVNULL)
    (built,) = (source / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_our_packages_and_no_face_of_hgext(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "hgext/__init__.py" not in names
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"hgext", "pushlog", "hooks", "notifier"}
    assert {name.split("/")[1] for name in names if name.startswith("hgext/")} == {"vcsreplicator"}


def test_the_wheel_holds_every_module_and_every_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [
        str(path.relative_to(CHECKOUT))
        for folder in PACKED[:4]
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and str(path.relative_to(CHECKOUT)) not in names
    ]
    assert not missing


def test_a_clean_environment_loads_the_extensions_and_the_command(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    packages = next((tmp_path / "venv" / "lib").glob("python3.*/site-packages"))
    # The dependencies are those of this run; a folder named here has its own .pth files ignored, so the checkout stays out of it.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    zipfile.ZipFile(wheel).extractall(packages)

    def output(*arguments: str) -> str:
        return subprocess.check_output(
            [str(python), *arguments], text=True, cwd=tmp_path, env={**os.environ, "HGPLAIN": "1"}
        )

    where = output("-c", "import hgext.vcsreplicator, pushlog; print(hgext.vcsreplicator.__file__, pushlog.__file__)")
    assert where.split() == [str(packages / "hgext/vcsreplicator/__init__.py"), str(packages / "pushlog/__init__.py")]
    hg = [str(Path(sys.executable).with_name("hg"))]
    shown = output(
        *hg, "--config", "extensions.vcsreplicator=", "--config", "extensions.pushlog=", "version", "--verbose"
    )
    assert "vcsreplicator  external" in shown
    assert "pushlog        external" in shown
    assert output("-m", "hgext.vcsreplicator.cli", "--version").startswith("vcsreplicator, version ")
