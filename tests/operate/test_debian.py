# SPDX-License-Identifier: GPL-2.0-or-later
"""The Debian package: what it starts and stops, and its whole life on a new Debian 12 with its own systemd."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli.setup import texts
from hgext.vcsreplicator.words.version import VERSION
from testing.services.cache import CHECKOUT

pytestmark = pytest.mark.processes

DEBIAN = CHECKOUT / "debian"
RUNNING = [f"vcsreplicator-{kind}.service" for kind in ("aggregator", "mirror@alpha", "notifier", "relay", "web-alpha")]
# What notes how it is called, and says which services run.
SYSTEMCTL = """#!/bin/sh
echo "$*" >> {folder}/called
[ "$1" != list-units ] || cat {folder}/running
"""
# Debian's own tools make a system, and this one's systemd runs in it, without a network.
WITH = "systemd,systemd-sysv,dbus,python3,openssh-client,sudo,libstdc++6,ca-certificates"
BOOT = """\
[Service]
ExecStart=/bin/sh -c 'sh /trial/trial.sh > /trial/transcript 2>&1; echo $? > /trial/code; systemctl poweroff'
[Install]
WantedBy=multi-user.target
"""


class Machine:
    """A folder in which the package's scripts find the files and the `systemctl` of a machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bin", "run/systemd/system", "etc/vcsreplicator", "etc/systemd/system/multi-user.target.wants"):
            (folder / name).mkdir(parents=True)
        (folder / "bin/systemctl").write_text(SYSTEMCTL.format(folder=folder))
        (folder / "bin/systemctl").chmod(0o755)
        self.run_units(RUNNING)

    def run_units(self, names: list[str]) -> None:
        (self.folder / "running").write_text("".join(f"{name} loaded active running\n" for name in names))

    def run(self, script: str, *words: str) -> str:
        """Run a maintainer script as dpkg does, and return what it printed."""
        text = (DEBIAN / f"vcsreplicator.{script}").read_text()
        placed = re.sub(r"(?<![\w/.])/(run|etc|opt)\b", rf"{self.folder}/\1", text)
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        command = ["sh", "-c", placed, script, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def called(self, verb: str) -> list[str]:
        """The units of each call of a verb of systemctl, in order."""
        lines = (self.folder / "called").read_text().splitlines()
        return [unit for line in lines if line.startswith(f"{verb} ") for unit in line.split()[1:]]


def test_an_upgrade_stops_services_and_starts_readers_before_writers(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run("prerm", "upgrade", "1.0.1")
    assert machine.called("stop") == RUNNING
    machine.run("postinst", "configure", "1.0.0")
    order = [unit.removeprefix("vcsreplicator-").partition(".")[0] for unit in machine.called("start")]
    assert list(dict.fromkeys(order)) == ["notifier", "mirror@alpha", "aggregator", "relay", "web-alpha"]
    machine.run("postinst", "configure", "1.0.0")
    assert len(machine.called("start")) == len(order)  # what is stopped from now on, an operator stopped


def test_an_upgrade_that_is_killed_starts_what_it_had_stopped(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run("prerm", "upgrade", "1.0.1")
    machine.run_units(RUNNING[:1])
    machine.run("prerm", "upgrade", "1.0.1")
    machine.run("postinst", "abort-upgrade", "1.0.1")
    assert set(machine.called("start")) == set(RUNNING)


def test_a_removal_starts_nothing_again_and_leaves_nothing_enabled(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    for name in RUNNING:
        (wants / name).symlink_to("/nowhere")
    machine.run("prerm", "remove")
    assert machine.called("disable") == RUNNING
    machine.run("postinst", "configure", "1.0.0")
    assert machine.called("start") == []


def test_the_package_goes_into_no_environment_that_pip_made(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run("preinst", "install")
    (tmp_path / "opt/vcsreplicator").mkdir(parents=True)
    (tmp_path / "opt/vcsreplicator/pyvenv.cfg").touch()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        machine.run("preinst", "install")
    assert failed.value.stderr.count("\n") == 1
    machine.run("preinst", "upgrade", "1.0.0")


def test_purging_names_every_place_that_setup_and_services_write(tmp_path: Path) -> None:
    said = Machine(tmp_path).run("postrm", "purge")
    for place in ("/var/lib/vcsreplicator*", "/etc/vcsreplicator.toml", texts.UNITS, "/etc/mercurial"):
        assert place in said
    assert not re.search(r"\brm\b", (DEBIAN / "vcsreplicator.postrm").read_text())


def test_the_package_has_the_version_and_the_files_of_this_release() -> None:
    assert (DEBIAN / "changelog").read_text().startswith(f"vcsreplicator ({VERSION}) ")
    for name in ("install", "examples"):
        for line in (DEBIAN / f"vcsreplicator.{name}").read_text().splitlines():
            assert list(CHECKOUT.glob(line.split()[0])), line
    rules = (DEBIAN / "rules").read_text()
    assert "--requirements requirements/services.txt" in rules
    assert f"/{(DEBIAN / 'vcsreplicator.links').read_text().split()[0]}" == f"{texts.PACKAGED}/vcsreplicator"
    lowest = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert f"python3 (>= {lowest})" in (DEBIAN / "control").read_text()


def test_the_system_of_the_trial_has_what_the_package_depends_on() -> None:
    """It has no network, so apt can fetch nothing there; the trial itself is slow and seldom runs."""
    [depends] = re.findall(r"^Depends: (.*)$", (DEBIAN / "control").read_text(), re.MULTILINE)
    named = {each.split()[0] for each in depends.split(", ") if not each.startswith("$")}
    assert named
    assert named <= set(WITH.split(","))


def make_next(package: Path, made: Path) -> None:
    """Write the same package as the next release, without packing its files again."""
    shutil.copy(package, made)
    control = made.with_suffix("")
    subprocess.run(["dpkg-deb", "--control", package, control], check=True)
    text = (control / "control").read_text()
    (control / "control").write_text(text.replace(f"Version: {VERSION}", f"Version: {VERSION}+next"))
    subprocess.run(["tar", "-czf", "control.tar.gz", "-C", control, "."], cwd=made.parent, check=True)
    subprocess.run(["ar", "d", made, "control.tar.zst"], check=True)
    subprocess.run(["ar", "rb", "data.tar.zst", made, "control.tar.gz"], cwd=made.parent, check=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_new_debian_with_300_repositories_lives_its_whole_life(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Needs root, Debian's packages, and a kernel that lets systemd-nspawn boot; prints what each step took."""
    subprocess.run(["sh", CHECKOUT / "testing/install_debian.sh", "trial"], check=True)
    subprocess.run(["make", "deb"], cwd=CHECKOUT, check=True)
    [package] = (CHECKOUT / "build/deb").glob("*.deb")
    root = tmp_path / "root"
    # In mounts of its own, since it may leave /proc mounted.
    bootstrap = ["unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={WITH}", "bookworm", root]
    subprocess.run(bootstrap, check=True)
    trial = root / "trial"
    trial.mkdir()
    (trial / "root").touch()
    shutil.copy(package, trial)
    make_next(package, trial / "next.deb")
    shutil.copy(Path(__file__).with_name("debian_trial.sh"), trial / "trial.sh")
    (root / "etc/systemd/system/trial.service").write_text(BOOT)
    subprocess.run(["chroot", root, "systemctl", "enable", "trial"], check=True)
    boot = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "-D", root, "--boot"]
    subprocess.run(boot, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=3000)
    said = (trial / "transcript").read_text()
    with capsys.disabled():
        print("", "| step | commands | minutes | named after |", "|---|---|---|---|", *tell_steps(said), sep="\n")
    assert (trial / "code").read_text() == "0\n", said[-5000:]
    started = sorted((int(time), unit) for time, unit in re.findall(r"^started (\d+) (\S+)$", said, re.MULTILINE))
    order = [unit.removeprefix("vcsreplicator-").partition(".")[0] for _, unit in started]
    kinds = list(dict.fromkeys(unit.partition("@")[0] for unit in order if not unit.startswith(("web", "verify"))))
    assert kinds == ["notifier", "mirror", "aggregator", "relay"]
    assert sum(minutes_of_start(said)) <= 10, "from the package to the first notice"
    subprocess.run(["rm", "-r", "--one-file-system", root], check=True)


def steps_of(transcript: str) -> list[tuple[str, int, float, str]]:
    """Return the steps of a trial: name, commands typed, minutes, and seconds until `check` named a fault, or -."""
    found = re.findall(r"^took (\d+) (\d+|-) (\d+) (.+)$", transcript, re.MULTILINE)
    return [(name, int(typed), int(seconds) / 60, named) for seconds, named, typed, name in found]


def tell_steps(transcript: str) -> list[str]:
    """Return a table's rows."""
    return [
        f"| {name} | {typed} | {minutes:.1f} | {'' if named == '-' else f'{named} s'} |"
        for name, typed, minutes, named in steps_of(transcript)
    ]


def minutes_of_start(transcript: str) -> list[float]:
    """Return what passed from the installation to the first notice."""
    return [minutes for _, _, minutes, _ in steps_of(transcript)[:3]]
