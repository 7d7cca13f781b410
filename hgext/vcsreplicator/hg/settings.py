# SPDX-License-Identifier: GPL-2.0-or-later
"""The extension's configuration, read from hgrc and checked whole; errors name section, key and expected value."""

import enum
import os
import socket
from collections.abc import Mapping
from typing import Any

from mercurial import error
from mercurial.utils import stringutil

from ..words import secrecy
from ..words.errors import MalformedEvent
from ..words.path import check_path, check_prefix, wire_path
from ..words.value import Value

SECTION = b"vcsreplicator"
ROOTS = b"vcsreplicator-roots"


class MachineRole(enum.StrEnum):
    """What this machine is for its repositories."""

    MASTER = "master"
    MIRROR = "mirror"


class Durability(enum.StrEnum):
    """What survives a power cut before the pusher hears "ok": the whole change, or its event (the rest may need a pull)."""

    STORE = "store"
    OUTBOX = "outbox"


class Acknowledge(enum.StrEnum):
    """What a pusher waits for: the log's word (bounded), or nothing beyond the commit."""

    LOG = "log"
    OUTBOX = "outbox"


class ExtensionSettings(Value):
    """`roots` maps real folders to wire prefixes; `patience` is how many seconds a pusher waits for the log at most.

    `lock` keeps a Mercurial without this extension out of the repositories.
    """

    role: MachineRole
    roots: Mapping[str, str]
    relay: str | None
    log: str | None
    blobs: str | None
    source: str
    durability: Durability
    acknowledge: Acknowledge
    patience: float
    lock: bool = False

    def wire_path(self, folder: str) -> str | None:
        """The wire path of a repository's folder, None if it is not replicated; raises ConfigError if it cannot travel."""
        found = wire_path(os.path.realpath(folder), self.roots)
        if found is None or ".hg" in found.split("/"):
            return None  # a repository inside a repository's .hg is an upgrade or a strip at work
        try:
            return check_path(found)
        except MalformedEvent as problem:
            raise error.ConfigError(f"{problem}; rename the repository".encode()) from problem


def root_of(settings: ExtensionSettings, folder: str) -> str:
    """The root that `folder` is below: the longest."""
    real = os.path.realpath(folder)
    return max((root for root in settings.roots if (real + "/").startswith(root.rstrip("/") + "/")), key=len)


KEYS = (
    b"role",
    b"relay",
    b"log",
    b"blobs",
    b"source",
    b"durability",
    b"acknowledge",
    b"acknowledge-timeout",
    b"lock",
    b"insecure",
    b"refuse-when-stale",
    b"snapshot-allow",
)


def role(ui: Any) -> MachineRole:
    """The role alone; raises ConfigError without one, and for a key that is none of ours."""
    for key, value in ui.configitems(SECTION, ignoresub=True):
        if key not in KEYS:
            raise _wrong(key, f"one of {', '.join(known.decode() for known in KEYS)}", os.fsdecode(value))
    return _choice(ui, b"role", MachineRole, None)


def read(ui: Any) -> ExtensionSettings:
    """All settings of a master; raises ConfigError naming the key."""
    settings = ExtensionSettings(
        role=role(ui),
        roots=_roots(ui),
        relay=_beginning(ui, b"relay", "an absolute path", "/"),
        log=_log(ui),
        blobs=_beginning(ui, b"blobs", "file:///absolute/folder or s3://bucket/prefix", "file:/", "s3:/"),
        source=_text(ui, b"source") or f"hg://{socket.gethostname()}",
        durability=_choice(ui, b"durability", Durability, Durability.STORE),
        acknowledge=_choice(ui, b"acknowledge", Acknowledge, Acknowledge.LOG),
        patience=_seconds(ui, b"acknowledge-timeout", 5.0),
        lock=_switch(ui, b"lock"),
    )
    if settings.role is MachineRole.MASTER and not settings.relay and not settings.log:
        raise _wrong(
            b"relay", "the path of the relay's socket (or [vcsreplicator] log = URL, to push without a relay)", None
        )
    return settings


def _roots(ui: Any) -> dict[str, str]:
    roots = {}
    for folder, prefix in ui.configitems(ROOTS):
        name, wire = os.fsdecode(folder), os.fsdecode(prefix).strip()
        if not os.path.isabs(name):
            raise error.ConfigError(f"config: [vcsreplicator-roots] {name}: expected an absolute folder".encode())
        roots[os.path.realpath(name)] = "" if wire == "." else _prefix(name, wire)
    return roots


def _prefix(folder: str, wire: str) -> str:
    try:
        check_prefix(wire, f"config: [vcsreplicator-roots] {folder}")
    except ValueError as problem:
        raise error.ConfigError(str(problem).encode()) from problem
    return wire


def _text(ui: Any, key: bytes) -> str | None:
    value = ui.config(SECTION, key)
    return os.fsdecode(value) if value else None


def _beginning(ui: Any, key: bytes, expected: str, *beginnings: str) -> str | None:
    """A place that begins as one can: of any other it would only be said, for ever, that it cannot be reached."""
    value = _text(ui, key)
    if value is not None and not value.lower().startswith(beginnings):
        raise _wrong(key, expected, value.partition("//")[0])  # pushers read it, and there may be a password behind
    return value


def _log(ui: Any) -> str | None:
    """The URL of the log, which gives nothing away that `insecure` does not name: pushers read the file."""
    url = _beginning(ui, b"log", "sqlite:///absolute/path or kafka://host:port", "sqlite:/", "kafka:/")
    meant = {os.fsdecode(word) for word in ui.configlist(SECTION, b"insecure")}
    for exposure, found in secrecy.exposures(url or ""):
        if exposure.value not in meant:
            said = f"config: [vcsreplicator] log: {found}; if it is meant, write insecure = {exposure.value}"
            raise error.ConfigError(said.encode())
    return url


def _choice(ui: Any, key: bytes, kind: Any, default: Any) -> Any:
    value = _text(ui, key)
    if value is None and default is not None:
        return default
    try:
        return kind(value)
    except ValueError:
        raise _wrong(key, " or ".join(item.value for item in kind), value) from None


def _switch(ui: Any, key: bytes) -> bool:
    value = _text(ui, key)
    switch = False if value is None else stringutil.parsebool(os.fsencode(value))
    if switch is None:
        raise _wrong(key, "yes or no", value)
    return bool(switch)


def _seconds(ui: Any, key: bytes, default: float) -> float:
    value = _text(ui, key)
    try:
        seconds = float(value) if value is not None else default
    except ValueError:
        raise _wrong(key, "a number of seconds", value) from None
    if not 0 <= seconds <= 3600:
        raise _wrong(key, "0 to 3600 seconds", value)
    return seconds


def _wrong(key: bytes, expected: str, value: str | None) -> error.ConfigError:
    found = "nothing" if value is None else f'"{value}"'
    return error.ConfigError(f"config: [vcsreplicator] {key.decode()}: expected {expected}, got {found}".encode())
