# SPDX-License-Identifier: GPL-2.0-or-later
"""What `backup` keeps of an installation, and what it leaves out; pure but for reading names."""

import enum
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ..config import Config
from .config_rights import list_needed
from .options import mirror_settings, relay_of

# The hgrc that `setup` writes.
USUAL_HGRC = ("/etc/mercurial/master.hgrc", "/etc/mercurial/mirror.hgrc")


class PartKind(enum.StrEnum):
    """How a part is copied."""

    DATABASE = "database"
    BLOBS = "blobs"
    ROOT = "root"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file or folder of the installation; `key` is its place in the configuration, also of another machine."""

    key: str
    path: str
    kind: PartKind

    @property
    def name(self) -> str:
        """The name of its copy."""
        return quote(self.key, safe="")


def list_parts(config: Config, hgrc: Sequence[str], *, with_roots: bool, with_secrets: bool) -> Iterator[Part]:
    """Yield what is to be copied, in this order: the log comes before the repositories.

    So no repository in the copy is older than the log in the copy. Parts need not exist. Raises BadConfig.
    """
    for key, path in _list_databases(config):
        yield Part(key=key, path=path, kind=PartKind.DATABASE)
    relay = relay_of(config)
    for root, prefix in relay.roots.items() if relay and with_roots else ():
        yield Part(key=f"relay.roots.{prefix}", path=root, kind=PartKind.ROOT)
    blobs = relay.blobs if relay else config.blobs
    if blobs is not None and blobs.startswith("file:"):
        yield Part(key="blobs", path=unquote(urlsplit(blobs).path), kind=PartKind.BLOBS)
    yield Part(key="configuration", path=os.path.abspath(config.file), kind=PartKind.FILE)
    for path in hgrc:
        yield Part(key=f"hgrc.{path}", path=path, kind=PartKind.FILE)
    for key, path in _list_authorities(config.tables):
        yield Part(key=key, path=path, kind=PartKind.FILE)
    for key, path in _list_secrets(config) if with_secrets else ():
        yield Part(key=key, path=path, kind=PartKind.FILE)


def list_left_out(config: Config, *, with_roots: bool, with_secrets: bool) -> Iterator[str]:
    """Yield what is not copied, each with the reason."""
    tables = config.tables
    if not with_roots and "relay" in tables:
        yield "the repositories, which --repositories copy or a snapshot of the file system copies"
    if not with_secrets and any(True for _ in _list_secrets(config)):
        yield "keys and files of secrets, which --secrets copies"
    if str(tables.get("log", "")).startswith("kafka:"):
        yield "the log: Kafka keeps its records on several brokers"
    if str(config.tables.get("relay", {}).get("blobs", tables.get("blobs", ""))).startswith("s3:"):
        yield "blobs: their bucket keeps them"
    if "notifier" in tables:
        yield "databases of the notifier and of webhooks: the log has what they know"
    if "mirror" in tables:
        yield "copies of mirrors: they are filled from the master"
    if "edge" in tables:
        yield "the queue of the edge: what it holds goes to the log within seconds"
    if "work" in tables:
        yield "the worker's clones, which it makes again, and its database unless it is a file of SQLite"


def _list_databases(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the databases that no other part of the installation can fill again; the log first."""
    from notifier.services.decode.settings import NONE, REDIS, DecodeSettings
    from notifier.services.work.settings import WorkSettings

    tables = config.tables
    if str(tables.get("log", "")).startswith("sqlite:"):
        yield "log", unquote(urlsplit(config.log).path)
    for key in ("acts", "history"):
        if key in tables.get("dashboard", {}):
            yield f"dashboard.{key}", tables["dashboard"][key]
    if "decode" in tables and (repeats := config.settings(DecodeSettings, "decode").repeats) not in (NONE, REDIS):
        yield "decode.repeats", repeats
    if "work" in tables:
        url = urlsplit(config.settings(WorkSettings, "work").database_url)
        if url.scheme.startswith("sqlite"):
            yield "work.database-url", unquote(url.path).removeprefix("/")


def _list_secrets(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the files that hold a key, a password or users."""
    for right in list_needed(config.tables):
        if right.is_secret or right.key == "dashboard.users":
            yield right.key, right.path
    if key := config.tables.get("aggregator", {}).get("key"):
        yield "aggregator.key", key
    for name in config.names("mirror") if "mirror" in config.tables else ():
        from ..mirror.seals import KEY_FILE

        yield f"mirror.{name}.key", os.path.join(mirror_settings(config, name).folder, KEY_FILE)
    for name, value in parse_qsl(urlsplit(str(config.tables.get("log", ""))).query):
        if name.replace("-", "_").endswith(("_file", "keyfile")):
            yield f"log.{name}", value


def _list_authorities(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the files of certificates, which are no secret."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _list_authorities(value, f"{above}{key}.")
        elif key.endswith("ca-file") and isinstance(value, str):
            yield f"{above}{key}", value
    for name, value in () if above else parse_qsl(urlsplit(str(table.get("log", ""))).query):
        if name.replace("-", "_") in ("ssl_cafile", "ssl_certfile"):
            yield f"log.{name}", value
