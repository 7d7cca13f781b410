# SPDX-License-Identifier: GPL-2.0-or-later
"""Manual pages of `vcsreplicator` and its verbs, from their help: `python -m testing.man_pages FOLDER` (`make man`)."""

import sys
from pathlib import Path

import click
from click_man.core import write_man_pages

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.words.version import VERSION


def write(folder: Path) -> None:
    """Write a page for the program, each verb and each verb of a verb."""
    folder.mkdir(parents=True, exist_ok=True)
    context = click.Context(program)
    verbs = {verb: program.get_command(context, verb) for verb in program.list_commands(context)}
    loaded = {verb: command for verb, command in verbs.items() if command is not None}
    # The program loads its verbs when they are used, so it does not list them as click-man expects.
    whole = click.Group(program.name, loaded, params=program.params, help=program.help)
    write_man_pages("vcsreplicator", whole, version=VERSION, target_dir=str(folder))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
