# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator mirror NAME`: the daemon."""

import sys

import click

from ..config import Config
from ..service import configure_logging, serve
from .options import log_of, with_config


@click.command()
@click.argument("name")
@with_config
def command(config: Config, name: str) -> None:
    """Apply the master's events on this mirror, and serve what is released.

    NAME is the mirror's name in the roster and its section [mirror.NAME].
    """
    from .. import mirror
    from ..status import health

    limits = config.settings(health.HealthSettings, "health")
    configure_logging(f"mirror-{name}")
    settings = config.settings(mirror.MirrorSettings, "mirror", name, name=name, blobs=config.blobs)
    with log_of(config) as log:
        sys.exit(
            serve(
                f"mirror-{name}",
                lambda stop, ready: mirror.run(settings, log, stop=stop, ready=ready),
                listen=config.listen(f"mirror-{name}"),
                health=health.Endpoint(log, name, limits),
            )
        )
