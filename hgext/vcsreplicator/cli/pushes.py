# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator pushes`: lists what the worker recorded, and what waits for it."""

import datetime
from contextlib import closing
from typing import Any

import click

from ..config import Config
from ..words.errors import Refused
from .display import print_listing
from .options import HOW_MANY, naming, needing, with_config, with_json
from .requests import when


@click.command()
@click.option("--repository", metavar="R", help="Its URL, or the end of it.")
@click.option("--since", type=click.DateTime(), metavar="DATE", help="YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS, UTC.")
@click.option("--last", type=HOW_MANY, default=100, show_default=True, help="Number of pushes to show, at most.")
@click.option("--parked", is_flag=True, help="List parked messages, by repository.")
@with_json
@with_config
def command(
    config: Config, repository: str | None, since: datetime.datetime | None, last: int, parked: bool, as_json: bool
) -> None:
    """List the newest pushes of a repository that the worker recorded."""
    if (repository is None) is not parked:
        raise click.UsageError("expected either --repository or --parked")
    from notifier.services.work.settings import WorkSettings

    with needing("work"):
        from notifier.services.work.database import WorkDatabase
        from notifier.services.work.listing import find_repositories, list_parked, list_pushes
    settings = config.settings(WorkSettings, "work")
    begin = 0 if since is None else int(since.replace(tzinfo=datetime.UTC).timestamp())
    with naming(config), closing(WorkDatabase(settings.database_url, settings.database_password)) as database:
        database.check()
        if repository is None:
            _show_parked(list_parked(database), as_json=as_json)
            return
        known = find_repositories(database, repository)
        if not known:
            raise Refused(f"no repository {repository} is recorded")
        found = [
            {"repository": url, **push} for number, url in known for push in list_pushes(database, number, begin, last)
        ]
    rows = [
        (str(push["id"]), when(push["date"]), push["user"], each["node"][:12], each["branch"], _first_line(each))
        for push in found
        for each in push["changesets"]
    ]
    print_listing(
        found, "pushes", ("push", "date (UTC)", "user", "changeset", "branch", "description"), rows, as_json=as_json
    )


def _show_parked(found: list[dict[str, Any]], *, as_json: bool) -> None:
    names = ("repository", "messages", "dead", "bytes")
    rows = [(*(str(each[name]) for name in names), when(each["since"])) for each in found]
    print_listing(found, "parked messages", (*names, "since (UTC)"), rows, as_json=as_json)


def _first_line(changeset: dict[str, str]) -> str:
    return (changeset["description"].splitlines() or [""])[0]
