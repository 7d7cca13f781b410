# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator dashboard`: the pages that show progress and problems."""

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from ..config import Config, address
from ..dashboard.settings import DashboardSettings
from ..log import Log
from ..words.errors import BadConfig
from ..words.secrecy import Exposure
from .delivering import describe_delivery, read_notifier
from .options import needing, run_daemon, with_config


@click.command()
@with_config
def command(config: Config) -> None:
    """Serve pages that show mirrors, repositories, pushes and troubles."""
    with needing("dashboard"):
        from ..dashboard import server
    from ..dashboard.sources import Sources
    from .asking import expect
    from .dashboard_acting import carry_out

    settings = read_settings(config)
    where = address(settings.listen, f"{config.file}: dashboard.listen")
    # That a section of a mirror has none in the roster is for the verbs to say.
    expected = replace(expect(config), mirrors=())
    is_public, notifier = _read_public(config), read_notifier(config)

    def run(settings: Any, log: Log, *, stop: threading.Event, ready: Callable[[], None]) -> None:
        sources = Sources(
            log=log,
            url=config.log,
            expected=expected,
            is_public=is_public,
            describe_delivery=functools.partial(describe_delivery, notifier),
            notifier=notifier,
            carry_out=functools.partial(carry_out, config, log),
        )
        server.run(settings, sources, address=where, stop=stop, ready=ready)

    run_daemon(config, "dashboard", run, settings)


def read_settings(config: Config) -> DashboardSettings:
    """Read the section `[dashboard]`; raise BadConfig, also for an exposure."""
    settings = config.settings(DashboardSettings, "dashboard")
    address(settings.listen, f"{config.file}: dashboard.listen")
    if not settings.is_local and Exposure.PLAIN_TEXT.value not in config.tables.get("insecure", ()):
        found = f"tokens in plain text to {settings.listen}, expected a loopback address behind a proxy with TLS"
        raise BadConfig(f'{config.file}: dashboard.listen: {found}; if it is meant, write insecure = ["plain-text"]')
    return settings


def _read_public(config: Config) -> Callable[[str], bool]:
    """Return a function that says whether a path is public; without [public] none is."""
    if "public" not in config.tables:
        return lambda path: False
    from notifier.public import public_url
    from notifier.settings import read

    settings = read(config.tables, config.file).public
    return lambda path: public_url(path, settings) is not None
