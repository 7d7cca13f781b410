# SPDX-License-Identifier: GPL-2.0-or-later
"""What an ordinary install gets: the packages and their data, nothing of Mercurial's, and extensions that load by name."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

from testing.services.cache import CHECKOUT
from tests.house.test_units import UNITS

PACKAGES = ("hgext", "pushlog", "hooks", "notifier")
# What of the repository is not in the source distribution.
LEFT_OUT = (".ci", ".gitignore", "tests")

pytestmark = pytest.mark.processes


def repository() -> set[str]:
    """The files that Git knows, and new ones that it does not ignore."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listing, cwd=CHECKOUT, text=True).splitlines()
    return {name for name in names if (CHECKOUT / name).exists()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution, built from a copy, so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("source")
    for name in repository():
        if not name.startswith("tests/"):
            (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, folder / "copy" / name)
    (folder / "copy" / "tests").mkdir()
    (folder / "copy" / "tests" / "test_it.py").touch()
    build = "from setuptools.build_meta import build_sdist; build_sdist('..')"
    subprocess.run([sys.executable, "-c", build], cwd=folder / "copy", check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.tar.gz")
    subprocess.run(["tar", "--no-same-owner", "-xf", built, "-C", folder], check=True)
    return folder / built.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """Built from the source distribution."""
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


def test_the_source_distribution_holds_the_repository_without_its_tests(source: Path) -> None:
    found = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    made = {name for name in found if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    assert found - made == {name for name in repository() if name.split("/")[0] not in LEFT_OUT}


def test_the_wheel_holds_our_packages_and_no_face_of_hgext(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "hgext/__init__.py" not in names
    # Of setup, which writes them where systemd looks.
    units = {name for name in names if ".data/data/share/vcsreplicator/systemd/" in name}
    assert {name.rpartition("/")[2] for name in units} == {file.name for file in UNITS}
    tops = {name.split("/")[0] for name in names - units if ".dist-info/" not in name}
    assert tops == set(PACKAGES)
    assert {name.split("/")[1] for name in names if name.startswith("hgext/")} == {"vcsreplicator"}


def test_the_wheel_holds_every_module_and_every_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [
        str(path.relative_to(CHECKOUT))
        for folder in PACKAGES
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and str(path.relative_to(CHECKOUT)) not in names
    ]
    assert not missing


# As pip does: the wheel is built from the source distribution.
BUILD = """
import os, shutil
from setuptools.build_meta import build_sdist, build_wheel
source = build_sdist("dist")
shutil.unpack_archive(f"dist/{source}", "unpacked")
os.chdir(f"unpacked/{source.removesuffix('.tar.gz')}")
build_wheel("../../dist")
"""


def build(project: Path, seconds: int, umask: int) -> dict[str, bytes]:
    """A source distribution and a wheel, of files with these times and rights."""
    for path in project.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path, (seconds, seconds))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-c", BUILD]
    subprocess.run(command, cwd=project, env=environment, check=True, stdout=subprocess.DEVNULL)
    return {file.name: file.read_bytes() for file in (project / "dist").iterdir()}


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_distributions_built_twice_have_equal_bytes(is_whole: bool, request: Any, tmp_path: Path) -> None:
    projects = [tmp_path / name for name in ("first", "second")]
    for project in projects:
        if is_whole:
            shutil.copytree(request.getfixturevalue("source"), project, ignore=shutil.ignore_patterns("dist"))
        else:
            (project / "hooks").mkdir(parents=True)
            (project / "hooks" / "__init__.py").touch()
            (project / "pyproject.toml").write_text('[project]\nname = "hooks"\nversion = "1"\n')
            shutil.copy(CHECKOUT / "setup.py", project)
    first, second = build(projects[0], 1600000000, 0o022), build(projects[1], 1800000000, 0o002)
    assert len(first) == 2
    assert [name for name in first if first[name] != second[name]] == []


def test_the_package_alone_needs_mercurial_and_nothing_else(wheel: Path) -> None:
    """Other server software of the host may need other versions of what our services need."""
    with zipfile.ZipFile(wheel) as packed:
        [metadata] = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        needed = re.findall(r"^Requires-Dist: (.+)$", packed.read(metadata).decode(), re.MULTILINE)
    assert [line for line in needed if "extra ==" not in line] == ["mercurial<7.3,>=6.3"]


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


def test_the_command_without_packages_says_what_to_install() -> None:
    program = "import sys; sys.modules['click'] = None; from hgext.vcsreplicator.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    expected = "vcsreplicator: the package click is missing; run: pip install 'vcsreplicator[services]'\n"
    assert (done.returncode, done.stderr) == (78, expected)
