# SPDX-License-Identifier: GPL-2.0-or-later
"""The extension's configuration, read from hgrc and checked as a whole.

Errors name section, key and expected value.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

from mercurial import error
from mercurial.ui import ui as Ui
from mercurial.utils import stringutil

from ..words.errors import SHOWN, MalformedEvent
from ..words.path import check_path, check_prefix, wire_path
from ..words.value import Value

# Words, not enumerations: to make each enumeration takes a push half a million instructions.
if TYPE_CHECKING:
    # The role of this machine for its repositories.
    MachineRole = Literal["master", "mirror"]
    # What survives a power cut: the whole change, or its event (the rest by a pull).
    Durability = Literal["store", "outbox"]
    # What a pusher waits for after the commit, for a limited time: the log has the event; nothing; the log has it, all mirrors
    # serve it, and its notice is written.
    Acknowledge = Literal["log", "outbox", "mirrors"]
    # While the log is unavailable: keep a change and send it later, or refuse it.
    LogUnavailable = Literal["accept", "refuse"]
    # Changesets that are made on the server itself: an event like a push, or refused.
    Commits = Literal["refuse", "accept"]

_OneOf = TypeVar("_OneOf", bound=str)

SECTION = b"vcsreplicator"
ROOTS = b"vcsreplicator-roots"


class ExtensionSettings(Value):
    """The settings of the extension on one machine.

    `roots` maps real folders to wire prefixes. `patience` is how many seconds a pusher waits at most, `relay_pause` for how many
    seconds a process that waited in vain does not wait again. `lock` keeps a Mercurial
    without this extension out of the repositories. `record_connection` has pushes carry address and client of the pusher.
    `unavailable` decides about changes while the log is unavailable, `commits` about commits on the server itself.
    """

    role: MachineRole
    roots: Mapping[str, str]
    source: str
    relay: str | None = None
    log: str | None = None
    blobs: str | None = None
    durability: Durability = "store"
    acknowledge: Acknowledge = "log"
    patience: float = 5.0
    relay_pause: float = 30.0
    lock: bool = False
    record_connection: bool = False
    unavailable: LogUnavailable = "accept"
    commits: Commits = "refuse"

    def wire_path(self, folder: str) -> str | None:
        """Return a folder's wire path; raises ConfigError if it is not allowed.

        None outside all roots, inside a `.hg`, and for a root itself if its prefix is "".
        """
        found = wire_path(os.path.realpath(folder), self.roots)
        # A repository inside a repository's .hg belongs to a format upgrade or a strip under way.
        if found is None or ".hg" in found.split("/"):
            return None
        try:
            return check_path(found)
        except MalformedEvent as problem:
            raise error.ConfigError(f"{problem}; rename the repository".encode()) from problem


def root_of(settings: ExtensionSettings, folder: str) -> str:
    """Return the root that `folder` is below, the longest if there are several."""
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
    b"relay-pause",
    b"lock",
    b"record-connection",
    b"unavailable",
    b"commits",
    b"insecure",
    b"refuse-when-stale",
    b"snapshot-allow",
)


def role(ui: Ui) -> MachineRole:
    """Read the role alone; raises ConfigError without one, and for an unknown key."""
    for key, _value in ui.configitems(SECTION, ignoresub=True):
        if key not in KEYS:
            # Only for a mistake: a push imports this module.
            from ..words.shape import nearest

            known = nearest(os.fsdecode(key), [known.decode() for known in KEYS])
            raise error.ConfigError(
                b"config: [vcsreplicator] %s: unknown key, expected one of %s" % (key, known.encode())
            )
    return _read_choice(ui, b"role", ("master", "mirror"), None)


def take_posted_arguments(ui: Ui) -> None:
    """Have clients send a command's arguments as a body, unless hgrc says otherwise.

    Mercurial's default are headers, of which a clone sends 41 bytes a head: servers and proxies refuse thousands of heads. A pull
    is a POST then, which proxies do not cache. Mercurial has had this option since 3.8, named experimental.
    """
    if not ui.hasconfig(b"experimental", b"httppostargs"):
        ui.setconfig(b"experimental", b"httppostargs", True, b"vcsreplicator")


def read(ui: Ui) -> ExtensionSettings:
    """Read all settings of a master; raises ConfigError naming the key."""
    settings = ExtensionSettings(
        role=role(ui),
        roots=_read_roots(ui),
        relay=_read_place(ui, b"relay", "an absolute path", "/"),
        log=_read_log(ui),
        blobs=_read_place(ui, b"blobs", "file:///absolute/folder or s3://bucket/prefix", "file:/", "s3:/"),
        source=_read_text(ui, b"source") or f"hg://{socket.gethostname()}",
        durability=_read_choice(ui, b"durability", ("store", "outbox"), "store"),
        acknowledge=_read_choice(ui, b"acknowledge", ("log", "outbox", "mirrors"), "log"),
        patience=_read_seconds(ui, b"acknowledge-timeout", 5.0),
        relay_pause=_read_seconds(ui, b"relay-pause", 30.0),
        lock=_read_switch(ui, b"lock"),
        record_connection=_read_switch(ui, b"record-connection"),
        unavailable=_read_choice(ui, b"unavailable", ("accept", "refuse"), "accept"),
        commits=_read_choice(ui, b"commits", ("refuse", "accept"), "refuse"),
    )
    if settings.role == "master" and not settings.relay and not settings.log:
        raise _wrong_value(
            b"relay", "the path of the relay's socket (or [vcsreplicator] log = URL, to push without a relay)", None
        )
    if settings.acknowledge == "mirrors" and not settings.relay:
        raise _wrong_value(b"relay", "the path of the relay's socket, which acknowledge = mirrors asks", None)
    if settings.unavailable == "refuse" and not settings.relay:
        raise _wrong_value(b"relay", "the path of the relay's socket, which unavailable = refuse asks", None)
    return settings


def _read_roots(ui: Ui) -> dict[str, str]:
    roots = {}
    for folder, prefix in ui.configitems(ROOTS):
        name, wire = os.fsdecode(folder), os.fsdecode(prefix).strip()
        if "\0" in name:
            shown = name.replace("\0", "\\0")
            raise error.ConfigError(
                f"config: [vcsreplicator-roots] {shown}: expected a folder without the character NUL".encode()
            )
        if not os.path.isabs(name):
            raise error.ConfigError(f"config: [vcsreplicator-roots] {name}: expected an absolute folder".encode())
        wire = "" if wire == "." else wire
        try:
            check_prefix(wire, f"config: [vcsreplicator-roots] {name}")
        except ValueError as problem:
            raise error.ConfigError(str(problem).encode()) from problem
        roots[os.path.realpath(name)] = wire
    return roots


def _read_text(ui: Ui, key: bytes) -> str | None:
    value = ui.config(SECTION, key)
    return os.fsdecode(value) if value else None


def _read_place(ui: Ui, key: bytes, expected: str, *beginnings: str) -> str | None:
    """Read the place of a service, refused here if it could never be reached."""
    value = _read_text(ui, key)
    if value is not None and not value.lower().startswith(beginnings):
        # Pushers read the message, and there may be a password behind the slashes.
        raise _wrong_value(key, expected, value.partition("//")[0])
    return value


def _read_log(ui: Ui) -> str | None:
    """Read the log's URL, which shows pushers no more than `insecure` names."""
    url = _read_place(ui, b"log", "sqlite:///absolute/path or kafka://host:port", "sqlite:/", "kafka:/")
    if url is None:
        return None
    # 3 ms that a push to the relay does not need.
    from ..words import secrecy

    allowed, known = {os.fsdecode(word) for word in ui.configlist(SECTION, b"insecure")}, [*secrecy.Exposure]
    if unknown := sorted(allowed - set(known)):
        raise _wrong_value(b"insecure", ", ".join(known), unknown[0])
    for exposure, found in secrecy.exposures(url):
        if exposure.value not in allowed:
            message = f"config: [vcsreplicator] log: {found}; if it is meant, write insecure = {exposure.value}"
            raise error.ConfigError(message.encode())
    return url


def _read_choice(ui: Ui, key: bytes, choices: tuple[_OneOf, ...], default: _OneOf | None) -> _OneOf:
    value = _read_text(ui, key)
    if value is None and default is not None:
        return default
    for choice in choices:
        if choice == value:
            return choice
    raise _wrong_value(key, " or ".join(choices), value)


def _read_switch(ui: Ui, key: bytes) -> bool:
    value = _read_text(ui, key)
    switch = False if value is None else stringutil.parsebool(os.fsencode(value))
    if switch is None:
        raise _wrong_value(key, "yes or no", value)
    return bool(switch)


def _read_seconds(ui: Ui, key: bytes, default: float) -> float:
    value = _read_text(ui, key)
    try:
        seconds = float(value) if value is not None else default
    except ValueError:
        raise _wrong_value(key, "a number of seconds", value) from None
    if not 0 <= seconds <= 3600:
        raise _wrong_value(key, "0 to 3600 seconds", value)
    return seconds


def _wrong_value(key: bytes, expected: str, value: str | None) -> error.ConfigError:
    found = "nothing" if value is None else f'"{value[:SHOWN]}"'
    return error.ConfigError(f"config: [vcsreplicator] {key.decode()}: expected {expected}, got {found}".encode())
