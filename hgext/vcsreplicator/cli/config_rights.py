# SPDX-License-Identifier: GPL-2.0-or-later
"""`config check` for the rights of the user that runs it.

The question is whether it may use the log, the blobs, the secrets and the roots that the file names. Nothing here is a mistake:
each service has its own user and machine, and the file does not say which.
"""

import os
import pwd
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..config import DEFAULT_FILE, Config
from ..words.secrecy import describe_readers

_FULL_ACCESS = os.R_OK | os.W_OK | os.X_OK
# Types of destinations that write a file or a database, and the key that names it.
_FILES = {"jsonlines": "file", "webhook": "database"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRight:
    """A right that the user `who` of a service needs: `mode` is that of `os.access`.

    `is_made` says that the service makes the path if it is missing, `is_secret` that it refuses a file that others may read.
    """

    key: str
    path: str
    mode: int
    who: str
    is_made: bool = False
    is_secret: bool = False


def report_rights(config: Config, report: Callable[[str], object]) -> None:
    """Report what this user may not do, and what is missing; nothing for root."""
    needed, is_root = list(list_needed(config.tables)), os.geteuid() == 0
    if needed and is_root:
        program = Path(sys.executable).with_name("vcsreplicator")  # which is not on the PATH that sudo sets
        chosen = "" if config.file == DEFAULT_FILE else f" -c {shlex.quote(config.file)}"
        report(
            "rights on log, blobs, secrets and roots not checked, because root has them all; "
            f"for those of a service, run: sudo -u USER {program} config check{chosen}"
        )
    for right in needed:
        if not os.path.exists(right.path) and not right.is_made:
            hidden = "" if is_root else ", or this user may not see it"
            report(f"{config.file}: {right.key}: {right.path} is missing{hidden}")
        elif not is_root and not os.access(_find_existing(right.path), right.mode):
            refusal = f"this user may not {'write to' if right.mode & os.W_OK else 'read'} {right.path}"
            if not os.path.exists(right.path):
                refusal = f"{right.path} is missing, and this user may not make it"
            report(f"{config.file}: {right.key}: {refusal}, but {right.who} must")
        elif right.is_secret and (wrong := describe_readers(right.path, os.stat(right.path).st_mode)):
            report(f"{config.file}: {right.key}: {wrong}")
    for name in config.tables.get("dashboard", {}).get("socket-users", ()):
        try:
            pwd.getpwnam(name)
        except KeyError:
            report(f"{config.file}: dashboard.socket-users: this machine has no user {name}")


def _find_existing(path: str) -> str:
    """Return the path, or the nearest folder above it that exists."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def list_needed(tables: Mapping[str, Any], above: str = "") -> Iterator[NeededRight]:
    """Yield the rights that the services of a correct file need."""
    for name, value in tables.items():
        key = f"{above}{name}"
        if above == "relay.roots.":
            yield NeededRight(key="relay.roots", path=name, mode=_FULL_ACCESS, who="the relay's user")
        elif isinstance(value, str):
            if key == "log" and urlsplit(value).scheme == "sqlite":
                yield from _need_log(unquote(urlsplit(value).path))
            if name == "blobs" and urlsplit(value).scheme == "file":
                yield _need_blobs(key, unquote(urlsplit(value).path))
            if name == "root" and above.startswith("mirror.") and not above.endswith(".paths."):
                yield NeededRight(key=key, path=value, mode=_FULL_ACCESS, who="the mirror's user", is_made=True)
            if name == "master-auth":
                yield _need_secret(key, value)
            if name == _FILES.get(str(tables.get("type"))) and above.startswith("notifier."):
                yield _need_file(key, value, "the notifier's user")
            if key == "dashboard.acts":
                yield _need_file(key, value, "the dashboard's user")
            if key == "dashboard.users":
                yield NeededRight(key=key, path=value, mode=os.R_OK, who="the user of the dashboard")
        elif name == "headers":
            continue
        elif key == "notifier" and isinstance(value, Mapping):
            from notifier.publishing.settings import DEFAULT_STATE

            yield _need_file("notifier.state", str(value.get("state", DEFAULT_STATE)), "the notifier's user")
            yield from list_needed(value, "notifier.")
        elif isinstance(value, Mapping) and value.keys() == {"file"}:
            yield _need_secret(key, value["file"])
        elif isinstance(value, Mapping):
            yield from list_needed(value, f"{key}.")
        elif isinstance(value, list):
            yield from list_needed({str(index): item for index, item in enumerate(value)}, f"{key}.")


def _need_secret(key: str, path: str) -> NeededRight:
    return NeededRight(key=key, path=path, mode=os.R_OK, who="the user of the service", is_secret=True)


def _need_log(file: str) -> Iterator[NeededRight]:
    """Yield the rights on an embedded log that exists; readers write there, too."""
    if os.path.exists(file):
        for path in (file, f"{file}-wake", os.path.dirname(file)):
            mode = os.R_OK | os.W_OK | (0 if path == file else os.X_OK)
            yield NeededRight(key="log", path=path, mode=mode, who="the user of each service", is_made=True)


def _need_file(key: str, file: str, who: str) -> NeededRight:
    """Describe the right on a file that a service writes, or on the file's folder."""
    if os.path.exists(file):
        return NeededRight(key=key, path=file, mode=os.W_OK, who=who)
    return NeededRight(key=key, path=os.path.dirname(file), mode=os.W_OK | os.X_OK, who=who)


def _need_blobs(key: str, folder: str) -> NeededRight:
    """Describe the right on a folder of blobs: a mirror reads, the relay writes."""
    if key.startswith("mirror."):
        return NeededRight(key=key, path=folder, mode=os.R_OK | os.X_OK, who="the mirror's user")
    return NeededRight(key=key, path=folder, mode=os.W_OK | os.X_OK, who="the relay's user", is_made=True)
