# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator config`: checks the configuration, and shows what is in use."""

import importlib.resources
import itertools
import os
from collections.abc import Callable, Iterator

import click

from ..config import Config, address, load
from ..log import topics
from ..words.errors import BadConfig, ReplicationError, TopicMissing
from ..words.shape import nearest
from .config_hgrc import check_hgrc
from .config_rights import report_rights
from .display import print_json
from .options import expect_exact_roots, log_of, mirror_settings, naming, relay_of, with_config_file, with_json
from .own_names import describe_overlay, describe_shadow

# Services other than mirrors that have an address in [listen].
_ROLES = ("relay", "aggregator", "notifier", "verify", "dashboard", "edge", "decode", "poll", "work", "guardian")


@click.group()
def command() -> None:
    """Check the configuration, and show what is in use."""


@command.command()
@click.option(
    "--hgrc", "files", multiple=True, metavar="FILE", help="An hgrc of a master or mirror. Default: HGRCPATH."
)
@click.option("--hg", "program", metavar="PATH", help="The hg that reads it. Default: hg of this installation.")
@with_json
@with_config_file
def check(file: str, files: tuple[str, ...], program: str | None, as_json: bool) -> None:
    """Check sections, log and hgrc; stop at the first mistake."""
    found: list[str] = []
    try:
        _check_all(load(file), files, program, found.append if as_json else click.echo)
    except ReplicationError as error:
        if as_json:
            print_json({"found": found, "mistake": str(error)})
        raise
    if as_json:
        print_json({"found": found, "mistake": None})


def _check_all(config: Config, files: tuple[str, ...], program: str | None, report: Callable[[str], object]) -> None:
    """Report what is right, in order; raise ReplicationError for the first mistake."""
    names = ("hooks", "notifier", "pushlog")
    if collision := describe_shadow(names) or describe_overlay(names):
        raise BadConfig(collision)
    _check_sections(config)
    nested = list(_find_nested_roots(config))
    if nested and config.log.startswith("sqlite:"):  # all on one machine
        raise BadConfig(f"{config.file}: {nested[0]}")
    report(f"{config.file}: all sections are correct")
    for text in nested:
        report(f"{config.file}: {text}, if both are on one machine")
    if "notifier" in config.tables and not config.tables.get("public", {}).get("urls"):
        report(f"{config.file}: [public.urls] is missing or empty: the notifier announces nothing")
    if "log" not in config.tables:
        report_rights(config, report)
        return
    with log_of(config) as log:
        missing = []
        for topic in topics():
            try:
                log.partitions(topic.name)
            except TopicMissing:
                missing.append(topic.name)
    report("the log answers")
    report_rights(config, report)
    for file in files or (None,):
        check_hgrc(file, config, report, program)
    if missing:
        hidden = "" if config.log.startswith("sqlite:") else ", or hides them from this user by its ACLs"
        raise TopicMissing(f"the log lacks the topics {', '.join(missing)}{hidden}; run: vcsreplicator topics create")


@command.command()
def example() -> None:
    """Print a file to begin with.

    It has every key of the master, mirrors and aggregator, of health, verify and bootstrap, with meaning and default, and a
    start for notifier and dashboard. The pages of the other services and of the destinations list their keys.
    """
    click.echo(importlib.resources.files(__package__).joinpath("example.toml").read_text(encoding="utf-8"), nl=False)


def _check_sections(config: Config) -> None:
    _check_replication(config)
    _check_notices(config)
    if "dashboard" in config.tables:
        _check_dashboard(config)
    _check_listen(config)


def _check_replication(config: Config) -> None:
    from ..aggregator.settings import AggregatorSettings
    from ..mirror.jobs.bootstrap import BootstrapSettings
    from ..mirror.jobs.verify import VerifySettings
    from ..status.health import HealthSettings

    if relay := relay_of(config):
        _check_blobs(relay.blobs, f"{config.file}: relay.blobs")
        expect_exact_roots(config, relay)
    roots: dict[str, str] = {}
    for name in config.names("mirror") if "mirror" in config.tables else ():
        settings = mirror_settings(config, name)
        _check_blobs(settings.blobs, f"{config.file}: mirror.{name}.blobs")
        other = roots.setdefault(os.path.realpath(settings.root), name)
        # With Kafka they may be on two machines, which share this file.
        if other != name and config.log.startswith("sqlite:"):
            raise BadConfig(f"{config.file}: mirror.{name}.root: {settings.root} is the root of mirror {other}")
    config.settings(AggregatorSettings, "aggregator")
    config.settings(HealthSettings, "health")
    config.settings(VerifySettings, "verify")
    config.settings(BootstrapSettings, "bootstrap")
    _check_blobs(config.blobs, f"{config.file}: blobs")


def _find_nested_roots(config: Config) -> Iterator[str]:
    """Yield the roots of mirrors that lie below or above a root of the relay.

    There the relay would send what the mirror writes. The same folder is no mistake on Kafka, where master and mirrors have one
    file and mostly one root, each on its own machine.
    """
    relay = relay_of(config)
    if relay is None or "mirror" not in config.tables:
        return
    for name, folder in itertools.product(config.names("mirror"), relay.roots):
        root, master = os.path.realpath(mirror_settings(config, name).root), os.path.realpath(folder)
        places = {master: "lies below", root: "lies above"}
        if root == master:
            places = {root: "is"} if config.log.startswith("sqlite:") else {}
        if place := places.get(os.path.commonpath([root, master])):
            yield f"mirror.{name}.root: {root} {place} {folder} of [relay.roots]: expected a folder apart from it"


def _check_notices(config: Config) -> None:
    from notifier.destinations.webhook.settings import DeliverySettings
    from notifier.publishing.settings import check_secrets, read
    from notifier.services.decode.settings import DecodeSettings
    from notifier.services.edge.settings import EdgeSettings
    from notifier.services.guardian.settings import GuardianSettings
    from notifier.services.poll.settings import PollSettings
    from notifier.services.work.settings import WorkSettings

    if config.tables.keys() & {"notifier", "public"}:  # the dashboard reads [public] alone, too
        found = read(config.tables, config.file)
        check_secrets(found, config.file)
        for name, destination in found.destinations.items():
            if isinstance(destination, DeliverySettings):
                try:
                    destination.check_subscriptions()
                except ValueError as error:
                    raise BadConfig(f"{config.file}: notifier.{name}.{error}") from error
    if "edge" in config.tables:
        address(config.settings(EdgeSettings, "edge").listen, f"{config.file}: edge.listen")
    kinds = {"poll": PollSettings, "guardian": GuardianSettings, "decode": DecodeSettings, "work": WorkSettings}
    for section, kind in kinds.items():
        if section in config.tables:
            config.settings(kind, section)


def _check_dashboard(config: Config) -> None:
    from ..dashboard.readers import Readers, read_users
    from ..dashboard.settings import read

    settings = read(config)
    # The file of users need not be on this machine, or readable by this user: see `rights`.
    path = settings.users
    with naming(config):
        Readers(settings, read_users(path) if path is not None and os.access(path, os.R_OK) else ())


def _check_listen(config: Config) -> None:
    mirrors = (f"{job}-{name}" for name in config.tables.get("mirror", {}) for job in ("mirror", "verify"))
    roles = {*_ROLES, *mirrors}
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
