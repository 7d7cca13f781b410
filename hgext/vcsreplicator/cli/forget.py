# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator forget`: announces that a repository was removed by hand."""

import os
from collections.abc import Mapping

import click

from ..config import Config
from ..relay.gone.deletion import append_deletion, make_deletion, refuse_present
from ..relay.gone.finding import describe_unmounted, find_gone, find_places, find_unmounted
from ..relay.scan import find_repositories
from ..relay.settings import RelaySettings
from ..status.follower import read_picture
from ..words.clock import SystemClock
from ..words.errors import Refused
from ..words.records import RepositoryState
from .options import complete_repository, relay_of, with_config, with_yes
from .progress import metered_log


@click.command()
@click.argument("repository", shell_complete=complete_repository)
@with_yes
@click.option("--mounted", is_flag=True, help="Continue although a folder is empty: all file systems are mounted.")
@with_config
def command(config: Config, repository: str, yes: bool, mounted: bool) -> None:
    """Announce the deletion of REPOSITORY (path or id), which was removed by hand.

    Run it on the master. Mirrors set the repository aside; backup mirrors keep it. Events that the relay had not sent are
    lost with the folder.
    """
    relay = relay_of(config)
    if relay is None or not all(os.path.isdir(root) for root in relay.roots):
        raise Refused(f"{config.file}: the folders of [relay.roots] are not all here; run this on the master's machine")
    with metered_log(config) as log:
        picture = read_picture(log)
        state = picture.find_repository(repository, is_living=True)
        refuse_present(relay.roots, state)
        if not mounted:
            refuse_unmounted(relay, picture.states, state)
        event = make_deletion(log, state, SystemClock())
        if not yes:
            raise Refused(f"{state.path} ({state.repository}) would be deleted on all mirrors; add --yes to do it")
        append_deletion(log, event, relay.source)
    click.echo(f"{state.path}: wrote its deletion into the log, event {event.seq}")


def refuse_unmounted(relay: RelaySettings, states: Mapping[str, RepositoryState], state: RepositoryState) -> None:
    """Raise Refused if the repository may be on a file system that is not mounted."""
    known = [folder for root in relay.roots for folder in find_repositories(root)]
    gone = {*find_gone(states, relay.roots, known, {}, 0.0, source=relay.source), state.repository}
    places = [f"{place}/" for place in find_places(state.path, relay.roots)]
    for folder, count in find_unmounted(states, gone, relay.roots, known).items():
        if any(place.startswith(f"{folder.rstrip('/')}/") for place in places):
            hint = "mount it; if it is, and they were removed, add --mounted"
            raise Refused(f"{state.path}: {describe_unmounted(folder, count)} {hint}")
