# SPDX-License-Identifier: GPL-2.0-or-later
"""Verbs that run one daemon each; `verbs.DAEMONS` lists them."""

import functools
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing

import click

from ..config import Config, address
from ..log import Log
from .options import complete_mirror, mirror_settings, naming, needing, run_daemon, with_config

# Seconds for which a request for /status waits for another one.
PATIENCE = 1.0


@click.command()
@with_config
def relay(config: Config) -> None:
    """Run the relay: send events of the master's repositories to the log."""
    from ..hg.relaying import MasterRepositories
    from ..relay import daemon
    from ..relay.mastership import Mastership
    from ..relay.settings import RelaySettings

    settings = config.settings(RelaySettings, "relay", blobs=config.blobs)
    port = MasterRepositories(settings.roots, settings.source)
    mastership = Mastership()
    run = functools.partial(daemon.run, port=port, mastership=mastership)
    run_daemon(config, "relay", run, settings, pages=lambda _: {"/health": mastership})


@click.command()
@click.argument("name", shell_complete=complete_mirror)
@with_config
def mirror(config: Config, name: str) -> None:
    """Run a mirror: apply the master's events, and serve what is released.

    NAME is the mirror's name in the roster and its section [mirror.NAME].
    """
    from ..mirror import service
    from ..status import health

    limits = config.settings(health.HealthSettings, "health")
    settings = mirror_settings(config, name)

    def make_pages(log: Log) -> dict[str, health.Endpoint]:
        return {"/health": health.Endpoint(log, name, limits, root=settings.root)}

    run_daemon(config, f"mirror-{name}", service.run, settings, pages=make_pages)


@click.command()
@with_config
def aggregator(config: Config) -> None:
    """Run the aggregator: release events, and write notices.

    It releases events that all gating mirrors have applied, and announces events that all of them serve. While another aggregator
    works, it stands by, and takes over once that one ends or is silent."""
    from ..aggregator import standby
    from ..aggregator.settings import AggregatorSettings

    settings = config.settings(AggregatorSettings, "aggregator")
    run = functools.partial(standby.run, host=socket.gethostname())
    run_daemon(config, "aggregator", run, settings, pages=lambda log: {"/status": _status_page(log)})


def _status_page(log: Log) -> Callable[[], Mapping[str, object]]:
    """Make the page /status, the same as `vcsreplicator status --json`.

    One request at a time reads the log. Others wait a short while: a log that hangs must not take all threads of the HTTP server.
    """
    from ..status.findings import as_data
    from ..status.follower import Follower, look_at_destinations, look_at_topics
    from ..status.services import Expectations

    lock = threading.Lock()
    follower = functools.cache(lambda: Follower(log))  # begins to read at the first request

    def page() -> Mapping[str, object]:
        if not lock.acquire(timeout=PATIENCE):
            return {"ready": False, "reasons": ["another request waits for the log"]}
        try:
            now = follower().present()
            look_at_destinations(log, follower().picture)
            look_at_topics(log, follower().picture)
            return as_data(follower().picture, now, Expectations())
        finally:
            lock.release()

    return page


@click.command()
@with_config
def notifier(config: Config) -> None:
    """Run the notifier: deliver notices to each destination independently.

    While another notifier delivers to a destination, it stands by, and takes over once that one ends or is silent."""
    from notifier.publishing import publisher, settings

    found = settings.read(config.tables, config.file)
    settings.check_secrets(found, config.file)
    run_daemon(config, "notifier", publisher.run, found)


@click.command()
@with_config
def edge(config: Config) -> None:
    """Accept submissions over HTTP: POST and PUT to /submit/…

    A submission is answered with 200 once it is durable: in the log, or on disk while the log is unavailable."""
    from notifier.services.edge.settings import EdgeSettings

    with needing("edge"):
        from notifier.services.edge import server
    settings = config.settings(EdgeSettings, "edge")
    where = address(settings.listen, f"{config.file}: edge.listen")
    run_daemon(config, "edge", functools.partial(server.run, address=where), settings)


@click.command()
@with_config
def poll(config: Config) -> None:
    """Run the poller: send pushes of other hosts to the queue of hg-push.

    While another poller of the same source works, this one stands by, and takes over once the other ends or is silent.
    """
    from notifier.services.poll.settings import PollSettings

    with needing("poll"):
        from notifier.services.poll import poller
    run_daemon(config, "poll", poller.run, config.settings(PollSettings, "poll"))


@click.command()
@click.option("--migrate", is_flag=True, help="Migrate the tables of the database, and exit.")
@click.option("--parallel", is_flag=True, help="Run as a Celery worker: one task for each push, in any order.")
@with_config
def work(config: Config, migrate: bool, parallel: bool) -> None:
    """Run the worker: pull pushed repositories, and record the pushes."""
    from notifier.services.work.settings import WorkSettings

    with needing("work"):
        from notifier.services.work import database, worker
    settings, run = config.settings(WorkSettings, "work"), worker.run
    if migrate:
        with naming(config), closing(database.WorkDatabase(settings.database_url, settings.database_password)) as found:
            found.migrate()
        click.echo("the tables are up to date")
        return
    if parallel:
        with needing("work,celery"):
            from notifier.services.work import tasks
        run = tasks.run
    run_daemon(config, "work", run, settings, has_log=False)
