# SPDX-License-Identifier: GPL-2.0-or-later
"""The TOML file of the services: read once, checked whole, errors with an address.

    log = "sqlite:///var/lib/vcsreplicator/log.db"      the log (see docs/log.md)
    blobs = "file:///var/lib/vcsreplicator/blobs"       bundles too large for a record

    insecure = ["plain-text"]                           what is meant though it gives something away: see secrecy.Exposure

    [relay]             the master's relay                 hgext.vcsreplicator.relay.daemon.RelaySettings
    [mirror.NAME]       one mirror                         hgext.vcsreplicator.mirror.MirrorSettings
    [aggregator]                                           hgext.vcsreplicator.aggregator.loop.AggregatorSettings
    [public]            what may be told, and under which URL          notifier.settings
    [notifier.NAME]     one destination                                notifier.settings
    [health]            when a mirror is not ready for clients         hgext.vcsreplicator.status.health.HealthSettings
    [listen]            ROLE = "host:port" for /metrics and /health; roles: relay, mirror-NAME, aggregator, notifier

Keys are written with hyphens. Sections belong to the modules named above, whose docstrings say what each key means; this module
only reads, joins what several sections share, and turns complaints into one line: file, key, expected, found.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .words import secrecy, shape
from .words.errors import BadConfig, MalformedEvent

T = TypeVar("T")

DEFAULT_FILE = "/etc/vcsreplicator.toml"
SECTIONS = (
    "log",
    "blobs",
    "relay",
    "mirror",
    "aggregator",
    "public",
    "notifier",
    "listen",
    "bootstrap",
    "verify",
    "health",
    "insecure",
)

OPTIONAL = ("health", "bootstrap", "verify", "aggregator")
"""Sections that may be left out: all their keys have defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A read file; sections are checked when asked for, each against its own settings class."""

    file: str
    tables: Mapping[str, Any]

    @property
    def log(self) -> str:
        """The URL of the log."""
        return self._text("log")

    @property
    def blobs(self) -> str | None:
        """The URL of the blob store, if there is one."""
        return self._text("blobs") if "blobs" in self.tables else None

    def names(self, section: str) -> list[str]:
        """The names of the subsections, such as the mirrors of this file."""
        return sorted(self._table((section,)))

    def settings(self, kind: type[T], *address: str, **given: object) -> T:
        """The section at `address` as a `kind`; `given` are members that come from elsewhere unless the file sets them.

        Raises BadConfig naming file and key: section missing, key unknown, missing or of another type.
        """
        found = self._table(address) if address[0] in self.tables or address[0] not in OPTIONAL else {}
        where = ".".join(address)
        for key in found:
            if "_" in key:
                raise BadConfig(f"{self.file}: {where}: unknown key {key!r}, expected {key.replace('_', '-')!r}")
            if key == "name" and key in given:
                raise BadConfig(f"{self.file}: {where}: unknown key {key!r}, the section's name says it")
        table = {**given, **_underscored(found)}
        try:
            return shape.read(kind, table, where)
        except MalformedEvent as error:
            raise BadConfig(f"{self.file}: {_hyphened(str(error))}") from error

    def listen(self, role: str) -> tuple[str, int] | None:
        """Host and port where the service of this role answers /metrics and /health, if it shall."""
        value = self._table(("listen",)).get(role) if "listen" in self.tables else None
        return None if value is None else address(value, f"{self.file}: listen.{role}")

    def _text(self, key: str) -> str:
        value = self.tables.get(key)
        if not isinstance(value, str):
            raise BadConfig(f"{self.file}: {key}: expected text, got {value!r}")
        return value

    def _table(self, address: tuple[str, ...]) -> Mapping[str, Any]:
        table: Any = self.tables
        for depth, name in enumerate(address):
            if not isinstance(table, Mapping) or name not in table:
                known = ", ".join(sorted(table)) if depth and isinstance(table, Mapping) else ""
                raise BadConfig(
                    f"{self.file}: section [{'.'.join(address)}] is missing"
                    + (f" (there are: {known})" if known else "")
                )
            table = table[name]
        if not isinstance(table, Mapping):
            raise BadConfig(f"{self.file}: {'.'.join(address)}: expected a section, got {table!r}")
        return table


def load(file: str | Path) -> Config:
    """The configuration in this file; raises BadConfig if it cannot be read, is not TOML, has an unknown section, or gives
    away what it must not (see `secrecy`)."""
    try:
        with open(file, encoding="utf-8") as opened:
            tables, mode = tomllib.loads(opened.read()), os.fstat(opened.fileno()).st_mode
    except OSError as error:
        raise BadConfig(f"{file}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{file}: not TOML: {error}") from error
    unknown = sorted(tables.keys() - set(SECTIONS))
    if unknown:
        raise BadConfig(f"{file}: {unknown[0]}: unknown, expected one of {', '.join(SECTIONS)}")
    config = Config(file=str(file), tables=tables)
    _ = config.log
    secrecy.check(tables, str(file), mode)
    return config


def address(text: object, where: str) -> tuple[str, int]:
    """(host, port) of `host:port`; raises BadConfig naming `where`."""
    host, _, port = str(text).rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
        raise BadConfig(f"{where}: expected host:port, got {text!r}")
    return host.strip("[]"), int(port)


def _underscored(table: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as members are named; values that are free mappings (folder → prefix and the like) keep theirs."""
    return {name.replace("-", "_"): value for name, value in table.items()}


def _hyphened(message: str) -> str:
    """The complaint in the words of the file: members are keys, and spelled with hyphens."""
    where, colon, rest = message.partition(":")
    rest = rest.replace("unknown member", "unknown key")
    if rest.startswith(" member "):
        rest = " key " + rest.removeprefix(" member ").replace("_", "-")
    return where.replace("_", "-") + colon + rest
