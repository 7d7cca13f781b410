# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator work`: the daemon that records pushes of a queue in a database."""

from contextlib import closing

import click

from ..config import Config
from .options import naming, needing, run_without_log, with_config


@click.command()
@click.option("--migrate", is_flag=True, help="Migrate the tables of the database, and exit.")
@click.option("--parallel", is_flag=True, help="Run as a Celery worker: one task for each push, in any order.")
@with_config
def command(config: Config, migrate: bool, parallel: bool) -> None:
    """Run the worker: pull pushed repositories, and record the pushes."""
    from notifier.work.settings import WorkSettings

    with needing("work"):
        from notifier.work import database, worker
    settings = config.settings(WorkSettings, "work")
    if migrate:
        with naming(config), closing(database.WorkDatabase(settings.database_url, settings.database_password)) as found:
            found.migrate()
        click.echo("the tables are up to date")
        return
    if parallel:
        with needing("work,celery"):
            from notifier.work import tasks
        run_without_log(config, "work", tasks.run, settings)
    run_without_log(config, "work", worker.run, settings)
