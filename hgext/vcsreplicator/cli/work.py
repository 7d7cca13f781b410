# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator work`: the daemon that fills a database from the queue of hg-push."""

from contextlib import closing

import click

from ..config import Config
from ..words.errors import BadConfig
from .options import naming, run_without_log, with_config


@click.command()
@click.option("--migrate", is_flag=True, help="Bring the tables of the database up to date, and end.")
@click.option("--parallel", is_flag=True, help="Run as Celery's worker instead: a task for each push, in any order.")
@with_config
def command(config: Config, migrate: bool, parallel: bool) -> None:
    """Run the worker: pull what is pushed, and record it in a database."""
    from notifier.work.settings import WorkSettings

    try:
        from notifier.work import database, worker
    except ModuleNotFoundError as error:
        raise BadConfig(f"{error.name} is not installed; install vcsreplicator[work]") from None
    settings = config.settings(WorkSettings, "work")
    if migrate:
        with naming(config), closing(database.WorkDatabase(settings.database_url, settings.database_password)) as found:
            found.migrate()
        click.echo("the tables are up to date")
        return
    if parallel:
        try:
            from notifier.work import tasks
        except ModuleNotFoundError as error:
            raise BadConfig(f"{error.name} is not installed; install vcsreplicator[work,celery]") from None
        run_without_log(config, "work", tasks.run, settings)
    run_without_log(config, "work", worker.run, settings)
