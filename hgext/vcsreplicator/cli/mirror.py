# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator mirror NAME`: the daemon."""

import click

from ..config import Config
from ..log import Log
from .options import complete_mirror, mirror_settings, run_daemon, with_config


@click.command()
@click.argument("name", shell_complete=complete_mirror)
@with_config
def command(config: Config, name: str) -> None:
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
