# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator heal MIRROR`: records heal requests for a local mirror."""

import time
from contextlib import closing
from pathlib import Path

import click

from ..config import Config
from ..mirror import MirrorSettings
from ..mirror.notes import Notes
from ..status import Picture
from ..status.follower import read_picture
from ..words.errors import Refused
from .destination import print_requests
from .options import complete_mirror, complete_repository, mirror_settings, with_config, with_json, with_last, with_yes
from .progress import metered_log
from .requests import who


@click.command()
@click.argument("name", metavar="MIRROR", shell_complete=complete_mirror)
@click.argument("repositories", nargs=-1, metavar="[PATH|ID]...", shell_complete=complete_repository)
@click.option("--requests", "is_listing", is_flag=True, help="Show requests: who made each, when, and the result.")
@with_last(default=20)
@with_json
@with_yes
@with_config
def command(
    config: Config, name: str, repositories: tuple[str, ...], is_listing: bool, last: int, as_json: bool, yes: bool
) -> None:
    """Have a mirror heal detached repositories now: those named, or all.

    A named repository that is not detached is copied again from the master and replaced in one step, and the mirror serves
    the old copy until then. This needs --yes. Run it on the mirror's machine.

    With --requests it heals nothing and lists earlier requests; --last and --json need --requests.
    """
    if is_listing and (repositories or yes):
        raise click.UsageError("--requests cannot be combined with repositories or --yes")
    if as_json and not is_listing:
        raise click.UsageError("--json needs --requests")
    settings = mirror_settings(config, name)
    with metered_log(config) as log:
        picture = read_picture(log)
    if is_listing:
        with closing(_open_notes(settings)) as notes:
            found = notes.requests.list_newest(last)
        paths = {state.repository: state.path for state in picture.states.values()}
        print_requests(
            found, "repository", as_json=as_json, name_subject=lambda repository: paths.get(repository, repository)
        )
    else:
        _request_heals(settings, picture, repositories, yes=yes)


def _request_heals(settings: MirrorSettings, picture: Picture, repositories: tuple[str, ...], *, yes: bool) -> None:
    name = settings.name
    detached = {ack.repository for ack in picture.detached() if ack.mirror == name}
    if repositories:
        wanted = [picture.find_repository(named, is_living=True) for named in repositories]
    else:
        wanted = [state for state in picture.states.values() if state.repository in detached]
    sound = [state.path for state in wanted if state.repository not in detached]
    if sound and not yes:
        raise Refused(f"{', '.join(sound)}: not detached on {name}, would be copied again; add --yes to do it")
    with closing(_open_notes(settings)) as notes:
        for state in wanted:
            notes.request_heal(state.repository, who=who(), now=time.time())
            what = "will copy it again" if state.path in sound else "will heal it"
            click.echo(f"{state.path}: {name} {what} within seconds")
    if not wanted:
        click.echo(f"nothing is detached on {name}")


def _open_notes(settings: MirrorSettings) -> Notes:
    file = Path(settings.folder) / "mirror.db"
    if not file.exists():
        raise Refused(f"{file}: no such file; run this command where the mirror {settings.name} runs")
    return Notes(file)
