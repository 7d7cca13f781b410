# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator ssh`: what a key in `authorized_keys` may run, for sshd."""

import os
import shlex
import sys
from pathlib import Path

import click

from ..words.errors import Refused

# What an `hg` client asks sshd to run, with the repository in the middle.
_BEFORE, _AFTER = ["hg", "-R"], ["serve", "--stdio"]


def find_repository(asked: str, roots: tuple[Path, ...]) -> Path:
    """Return the folder of the repository that a client asks for.

    There are no links in its path. Raises Refused if the command is another one, or if no root has such a repository.
    """
    try:
        words = shlex.split(asked)
    except ValueError:
        words = []
    if "\0" in asked or len(words) != 5 or words[:2] != _BEFORE or words[3:] != _AFTER:
        raise Refused("this key may only run `hg -R REPOSITORY serve --stdio`")
    repository = Path(os.path.realpath(os.path.expanduser(words[2])))
    is_inside = any(_is_served(repository, Path(os.path.realpath(root))) for root in roots)
    if not is_inside or not os.path.isdir(repository / ".hg"):  # False for a name that is too long
        raise Refused(f"repository {words[2]} not found")
    return repository


def _is_served(repository: Path, root: Path) -> bool:
    """Return whether the root has this repository, outside of folders of ours."""
    if not repository.is_relative_to(root):
        return False
    return not any(part in (".hg", ".vcsreplicator") or part[0] == "~" for part in repository.relative_to(root).parts)


@click.command()
@click.argument("roots", nargs=-1, required=True, metavar="ROOT...", type=click.Path(path_type=Path))
def command(roots: tuple[Path, ...]) -> None:
    """Serve the repositories below ROOT over SSH, and nothing else.

    Write it as the command of a key in `authorized_keys`, with the option `restrict`, and HGRCPATH before it. sshd passes what the
    client asked for in SSH_ORIGINAL_COMMAND.
    """
    repository = find_repository(os.environ.get("SSH_ORIGINAL_COMMAND", ""), roots)
    # The `hg` of the page's script: the client must not run as this account what another one left in the repository.
    own = [sys.executable, "-P", "-m", "hgext.vcsreplicator.hg.trusted"]
    os.execv(sys.executable, [*own, "-R", str(repository), *_AFTER])
