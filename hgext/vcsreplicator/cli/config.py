# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator config`: checks the configuration, and shows what is in use."""

import importlib.resources
import os

import click

from ..config import Config, address
from ..log import topics
from ..words.errors import BadConfig, TopicMissing
from ..words.shape import nearest
from .hgrc import check_hgrc
from .options import log_of, mirror_settings, with_config


@click.group()
def command() -> None:
    """Check the configuration, and show what is in use."""


@command.command()
@click.option(
    "--hgrc", "files", multiple=True, metavar="FILE", help="An hgrc of a master or mirror. Default: HGRCPATH."
)
@with_config
def check(config: Config, files: tuple[str, ...]) -> None:
    """Check sections, log and hgrc; stop at the first mistake."""
    _check_sections(config)
    click.echo(f"{config.file}: all sections are correct")
    if "log" not in config.tables:
        return
    with log_of(config) as log:
        missing = []
        for topic in topics():
            try:
                log.partitions(topic.name)
            except TopicMissing:
                missing.append(topic.name)
    click.echo("the log answers")
    for file in files or (None,):
        check_hgrc(file)
    if missing:
        raise TopicMissing(f"the log lacks the topics {', '.join(missing)}; run: vcsreplicator topics create")


@command.command()
def example() -> None:
    """Print a file to begin with: every key with its meaning and default."""
    click.echo(importlib.resources.files(__package__).joinpath("example.toml").read_text(encoding="utf-8"), nl=False)


def _check_sections(config: Config) -> None:
    from notifier import settings as notifier
    from notifier.decode import settings as decode
    from notifier.edge import settings as edge
    from notifier.guardian import settings as guardian
    from notifier.poll import settings as poll
    from notifier.work import settings as work

    from ..aggregator import loop
    from ..dashboard import readers
    from ..mirror.jobs import bootstrap, verify
    from ..relay import daemon
    from ..status import health
    from . import dashboard

    if "relay" in config.tables:
        _check_blobs(
            config.settings(daemon.RelaySettings, "relay", blobs=config.blobs).blobs, f"{config.file}: relay.blobs"
        )
    if "mirror" in config.tables:
        roots: dict[str, str] = {}
        for name in config.names("mirror"):
            settings = mirror_settings(config, name)
            _check_blobs(settings.blobs, f"{config.file}: mirror.{name}.blobs")
            other = roots.setdefault(os.path.realpath(settings.root), name)
            if other != name:
                raise BadConfig(f"{config.file}: mirror.{name}.root: {settings.root} is the root of mirror {other}")
    config.settings(loop.AggregatorSettings, "aggregator")
    if "notifier" in config.tables:
        notifier.read(config.tables, config.file)
    if "edge" in config.tables:
        address(config.settings(edge.EdgeSettings, "edge").listen, f"{config.file}: edge.listen")
    if "poll" in config.tables:
        config.settings(poll.PollSettings, "poll")
    if "dashboard" in config.tables:
        users = dashboard.read_settings(config).users
        if users is not None:
            readers.read_users(users)
    if "guardian" in config.tables:
        config.settings(guardian.GuardianSettings, "guardian")
    if "decode" in config.tables:
        config.settings(decode.DecodeSettings, "decode")
    if "work" in config.tables:
        config.settings(work.WorkSettings, "work")
    config.settings(health.HealthSettings, "health")
    config.settings(verify.VerifySettings, "verify")
    config.settings(bootstrap.BootstrapSettings, "bootstrap")
    _check_blobs(config.blobs, f"{config.file}: blobs")
    mirrors = (f"mirror-{name}" for name in config.tables.get("mirror", {}))
    roles = {
        "relay",
        "aggregator",
        "notifier",
        "verify",
        "dashboard",
        "edge",
        "decode",
        "poll",
        "work",
        "guardian",
        *mirrors,
    }
    for role in config.names("listen") if "listen" in config.tables else ():
        if role not in roles:
            raise BadConfig(f"{config.file}: listen.{role}: unknown, expected one of {nearest(role, roles)}")
        config.listen(role)


def _check_blobs(url: str | None, where: str) -> None:
    from ..log.blobs import open_blobs

    if url is not None:
        try:
            open_blobs(url)
        except ValueError as error:
            raise BadConfig(f"{where}: {error}") from error
