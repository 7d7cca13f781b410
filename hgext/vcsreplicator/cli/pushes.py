# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator pushes`: lists pushes, and what waits to be recorded, from the worker's database."""

import datetime
import json
from contextlib import closing
from typing import Any

import click

from ..config import Config
from ..words.errors import BadConfig, Refused
from .display import console, table
from .options import HOW_MANY, naming, with_config, with_json
from .requests import when


@click.command()
@click.option("--repository", metavar="R", help="Its URL, or the end of it.")
@click.option("--since", type=click.DateTime(), metavar="DATE", help="YYYY-MM-DD, or with THH:MM:SS; UTC.")
@click.option("--last", type=HOW_MANY, default=100, show_default=True, help="How many to show at most.")
@click.option("--parked", is_flag=True, help="List the messages that wait for the next attempt, by repository.")
@with_json
@with_config
def command(
    config: Config, repository: str | None, since: datetime.datetime | None, last: int, parked: bool, as_json: bool
) -> None:
    """List the newest pushes of a repository that the worker recorded."""
    if (repository is None) is not parked:
        raise click.UsageError("expected either --repository or --parked")
    from notifier.work.settings import WorkSettings

    try:
        from notifier.work.database import WorkDatabase
        from notifier.work.listing import find_repositories, list_parked, list_pushes
    except ModuleNotFoundError as error:
        raise BadConfig(f"{error.name} is not installed; install vcsreplicator[work]") from None
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
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = [
        (str(push["id"]), when(push["date"]), push["user"], each["node"][:12], each["branch"], _first_line(each))
        for push in found
        for each in push["changesets"]
    ]
    console().print(table(("push", "date", "user", "changeset", "branch", "description"), rows))


def _show_parked(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = [
        (each["repository"], str(each["messages"]), str(each["dead"]), str(each["bytes"]), when(each["since"]))
        for each in found
    ]
    console().print(table(("repository", "messages", "dead", "bytes", "since"), rows))


def _first_line(changeset: dict[str, str]) -> str:
    return (changeset["description"].splitlines() or [""])[0]
