# SPDX-License-Identifier: GPL-2.0-or-later
"""`config check`, Mercurial's part: would the `hg` on PATH, with an hgrc, load the extensions, and end where it cannot?"""

import os
import subprocess
import tempfile

import click

from ..words.errors import BadConfig

EXTENSIONS = ("vcsreplicator", "pushlog")
_TRUE = {"1", "yes", "true", "on", "always"}  # as Mercurial reads them


def check_hgrc(file: str | None) -> None:
    """Print where the extensions come from; raises BadConfig where Mercurial would go on without one.

    `file` is an hgrc of a master or a mirror; None is the HGRCPATH of the moment, which need not be one.
    """
    where = file or "HGRCPATH"
    if file is not None and not os.path.isfile(file):
        raise BadConfig(f"--hgrc: {file} is not there")
    environment = {**os.environ, "HGPLAIN": "1"}
    if file is not None:
        environment["HGRCPATH"] = os.path.abspath(file)
    try:
        found = _configuration(where, environment)
    except FileNotFoundError:
        click.echo("hg is not on PATH: on a master and a mirror it must be")
        return
    if not _names(found, "vcsreplicator"):
        if file is not None or "vcsreplicator.role" in found:
            raise BadConfig(f"{where}: [extensions] vcsreplicator: expected a line that loads it, got nothing")
        click.echo("hg extension vcsreplicator: not enabled in this environment (HGRCPATH)")
        return
    for name in filter(lambda name: _names(found, name), EXTENSIONS):
        value = found.get(f"extensions.{name}:required", found.get("extensions.*:required", "nothing"))
        if value.lower() not in _TRUE:
            raise BadConfig(
                f"{where}: [extensions] *:required: expected yes, got {value}: "
                f"without it Mercurial goes on where it cannot load {name}"
            )
    _open_repository(where, environment)
    sources = dict(line.split("\t") for line in _hg(where, environment, "debugextensions", "-T", "{name}\t{source}\n"))
    for name in EXTENSIONS:
        click.echo(f"hg extension {name}: {sources.get(name, 'not enabled')} ({where})")


def _names(found: dict[str, str], extension: str) -> bool:
    place = found.get(f"extensions.{extension}")
    return place is not None and not place.startswith("!")


def _configuration(where: str, environment: dict[str, str]) -> dict[str, str]:
    lines = _hg(where, environment, "config", "-T", "{name}\t{value}\n")
    return {name: value for name, tab, value in (line.partition("\t") for line in lines) if tab}


def _open_repository(where: str, environment: dict[str, str]) -> None:
    """An empty one of its own: what cannot be set up, or is wrong in hgrc, shows only when a repository is opened."""
    with tempfile.TemporaryDirectory() as folder:
        _hg(where, {**environment, "HGRCPATH": ""}, "init", f"{folder}/empty")
        _hg(where, environment, "-R", f"{folder}/empty", "root")


def _hg(where: str, environment: dict[str, str], *arguments: str) -> list[str]:
    """What `hg` prints, outside of any repository; raises BadConfig with its own words if it fails."""
    done = subprocess.run(
        ["hg", *arguments], cwd="/", env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        said = next(
            (line for line in lines if line.startswith(("abort:", "config error:"))), lines[-1] if lines else ""
        )
        raise BadConfig(f"{where}: hg {arguments[0]}: {said or f'ended with {done.returncode}'}")
    return done.stdout.splitlines()
