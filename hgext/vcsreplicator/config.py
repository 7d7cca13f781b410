# SPDX-License-Identifier: GPL-2.0-or-later
"""The TOML file of the services, read once and checked.

Keys are written with hyphens; `vcsreplicator config example` and docs/install.md name them. Each section belongs to the service
that it configures. This module only reads, joins what several sections share, and turns each mistake into one line that names its
place in the file.
"""

import dataclasses
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from .words import secrecy, shape
from .words.errors import SHOWN, BadConfig, MalformedEvent, quote_value

T = TypeVar("T")

DEFAULT_FILE = "/etc/vcsreplicator.toml"
# Sections that may be left out: all their keys have defaults.
OPTIONAL = ("aggregator", "bootstrap", "verify", "health", "decode")
# A file with these alone needs no log.
WITHOUT_LOG = ("work", "listen", "insecure")
# Sections of services that need one.
WITH_LOG = ("relay", "mirror", "public", "notifier", "edge", "dashboard", "poll", "guardian")
# Sections and keys at the top of the file.
SECTIONS = ("log", "blobs", *WITH_LOG, *WITHOUT_LOG, *OPTIONAL)

# Keys that are no more, and what to write instead.
REPLACED = {"verify.pace": "share, the part of its time for which a worker compares, such as 0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A configuration file that was read; `settings` checks a section."""

    file: str
    tables: Mapping[str, Any]

    @property
    def log(self) -> str:
        return self._require_text("log")

    @property
    def blobs(self) -> str | None:
        """The URL of the blob store, None if there is none."""
        return self._require_text("blobs") if "blobs" in self.tables else None

    def names(self, section: str) -> list[str]:
        """Return the sorted names in a section, such as those of its subsections."""
        return sorted(self._find_table((section,)))

    def settings(self, kind: type[T], *address: str, **given: object) -> T:
        """Return a section as a `kind`.

        `given` are members by name. A key of the section wins over them, except `name`, which the section must not have. Raises
        BadConfig, which names the file and the key.
        """
        found = self._find_table(address) if address[0] in self.tables or address[0] not in OPTIONAL else {}
        where = ".".join(address)
        for key in found:
            if "_" in key:
                meant = quote_value(key.replace("_", "-"))
                raise BadConfig(f"{self.file}: {where}: unknown key {quote_value(key)}, expected {meant}")
            if key == "name" and key in given:
                raise BadConfig(f"{self.file}: {where}: unknown key {key!r}, the section's name says it")
        # The keys of free mappings (folder → prefix) stay.
        keys = {name.replace("-", "_"): value for name, value in found.items()}
        known = {field.name for field in dataclasses.fields(cast(Any, kind))} - ({"name"} & given.keys())
        for key in sorted(keys.keys() - known):
            shown = key[:60].replace("_", "-")
            if instead := REPLACED.get(f"{address[0]}.{shown}"):
                raise BadConfig(f"{self.file}: {where}: {shown} is no longer a key; write {instead}")
            expected = shape.nearest(key, known).replace("_", "-")
            raise BadConfig(f"{self.file}: {where}: unknown key {shown!r}, expected one of {expected}")
        table = {**given, **keys}
        try:
            return shape.read(kind, table, where)
        except MalformedEvent as error:
            raise BadConfig(f"{self.file}: {shape.hyphened(str(error))}") from error

    def listen(self, role: str) -> tuple[str, int] | None:
        """Return host and port of the service's HTTP server; None if there is none."""
        value = self._find_table(("listen",)).get(role) if "listen" in self.tables else None
        return None if value is None else address(value, self.listen_key(role))

    def listen_key(self, role: str) -> str:
        """Return how messages name the address of a service's HTTP server."""
        return f"{self.file}: listen.{role}"

    def _require_text(self, key: str) -> str:
        value = self.tables.get(key)
        if not isinstance(value, str):
            raise BadConfig(f"{self.file}: {key}: expected text, got {quote_value(value)}")
        return value

    def _find_table(self, address: tuple[str, ...]) -> Mapping[str, Any]:
        table: Any = self.tables
        for depth, name in enumerate(address):
            if not isinstance(table, Mapping) or name not in table:
                known = ", ".join(sorted(table)) if depth and isinstance(table, Mapping) else ""
                others = f" (there are: {known})" if known else ""
                raise BadConfig(f"{self.file}: section [{'.'.join(address)}] is missing{others}")
            table = table[name]
        if not isinstance(table, Mapping):
            raise BadConfig(f"{self.file}: {'.'.join(address)}: expected a section, got {quote_value(table)}")
        return table


def load(file: str | Path) -> Config:
    """Read the configuration; raise BadConfig, also for exposures (see `secrecy`)."""
    try:
        with open(file, encoding="utf-8") as opened:
            tables, mode = tomllib.loads(opened.read()), os.fstat(opened.fileno()).st_mode
    except OSError as error:
        hint = "; vcsreplicator config example prints one" if isinstance(error, FileNotFoundError) else ""
        raise BadConfig(f"{file}: cannot be read: {error.strerror}{hint}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{file}: not TOML: {error}") from error
    unknown = sorted(tables.keys() - set(SECTIONS))
    if unknown:
        raise BadConfig(f"{file}: {unknown[0][:SHOWN]}: unknown, expected one of {shape.nearest(unknown[0], SECTIONS)}")
    for place, value in _list_members(tables):
        if "\0" in place or (isinstance(value, str) and "\0" in value):
            # No path or name can hold a NUL, and the system refuses one without saying which key it is from.
            shown = place.replace("\0", "\\0")
            raise BadConfig(f"{file}: {shown}: expected text without the character NUL")
        if place.endswith("ca-file") and value == "":  # libraries would trust the authorities of the system
            raise BadConfig(f"{file}: {place}: expected a file of certificates, or no such key for those of the system")
    config = Config(file=str(file), tables=tables)
    if tables.keys() - set(WITHOUT_LOG) or not tables:
        _ = config.log
    secrecy.check(tables, str(file), mode)
    return config


def _list_members(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Yield the place of each key with its value, or with each element of a list."""
    yield place, value
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _list_members(member, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for element in value:
            yield from _list_members(element, place)


def address(text: object, where: str) -> tuple[str, int]:
    """Split `host:port` into host and port; raises BadConfig naming `where`."""
    host, _, port = str(text).rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5) or not 1 <= int(port) <= 65535:
        raise BadConfig(f"{where}: expected host:port, got {quote_value(text)}")
    return host.strip("[]"), int(port)
