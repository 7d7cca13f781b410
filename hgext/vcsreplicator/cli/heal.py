# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator heal MIRROR`: an operator's wish, noted for the mirror's service, which takes it up within seconds."""

import time
from collections.abc import Sequence
from pathlib import Path

import click

from .. import mirror
from ..config import Config
from ..log.opening import open_log
from ..mirror.notes import Notes
from ..status import Follower, Picture
from ..words.errors import Refused
from ..words.levels import RepositoryState
from .options import with_config


@click.command()
@click.argument("name", metavar="MIRROR")
@click.argument("repositories", nargs=-1, metavar="[PATH|ID]...")
@click.option("--yes", is_flag=True, help="Also copy anew what is not detached.")
@with_config
def command(config: Config, name: str, repositories: tuple[str, ...], yes: bool) -> None:
    """Try again now what a mirror holds detached; without paths everything it does.

    A repository that is named and not detached is copied anew from the master and exchanged in one step; what it serves
    goes on being served meanwhile. That needs --yes. Run it on the mirror's machine.
    """
    settings = config.settings(mirror.MirrorSettings, "mirror", name, name=name, blobs=config.blobs)
    with open_log(config.log) as log:
        follower = Follower(log)
        try:
            picture = follower.update()
        finally:
            follower.close()
    detached = {ack.repository for ack in picture.detached() if ack.mirror == name}
    wanted = (
        _states(picture, repositories)
        if repositories
        else [s for s in picture.states.values() if s.repository in detached]
    )
    sound = [state.path for state in wanted if state.repository not in detached]
    if sound and not yes:
        raise Refused(f"{', '.join(sound)}: not detached on {name}, would be copied anew; add --yes to do it")
    file = Path(settings.folder) / "mirror.db"
    if not file.exists():
        raise Refused(f"{file}: no such file; run this where the mirror {name} runs")
    notes = Notes(file)
    try:
        for state in wanted:
            notes.request_heal(state.repository, time.time())
            click.echo(f"{state.path}: {'copied anew' if state.path in sound else 'tried again'} by {name} in a moment")
    finally:
        notes.close()
    if not wanted:
        click.echo(f"nothing is detached on {name}")


def _states(picture: Picture, named: Sequence[str]) -> list[RepositoryState]:
    found = []
    for name in named:
        living = [s for s in picture.states.values() if not s.deleted and name.strip("/") in (s.path, s.repository)]
        if not living:
            raise Refused(f"repository {name}: neither a path nor an id that the log knows")
        found.append(max(living, key=lambda state: state.generation))
    return found
