# SPDX-License-Identifier: GPL-2.0-or-later
"""`config check` for the rights of the user that runs it.

The question is whether it may use the blobs and the secrets that the file names. Nothing here is a mistake: each service has its
own user, and the file does not say which.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from ..config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRight:
    """What the user of a service must be able to do: `mode` is that of `os.access`."""

    key: str
    path: str
    mode: int
    text: str


def report_rights(config: Config, report: Callable[[str], object]) -> None:
    """Report what this user may not do.

    Root may do everything, so nothing is checked for it.
    """
    needed = list(list_needed(config.tables))
    if needed and os.geteuid() == 0:
        report(
            "rights on blobs and secrets not checked, because root has them all; "
            "for those of a service, type: sudo -u USER vcsreplicator config check"
        )
        return
    for right in needed:
        if not os.access(right.path, right.mode):
            report(f"{config.file}: {right.key}: this user may not {right.text}")


def list_needed(tables: Mapping[str, Any], above: str = "") -> Iterator[NeededRight]:
    """Yield the rights that the services of a correct file need."""
    for name, value in tables.items():
        key = f"{above}{name}"
        if isinstance(value, str):
            if name == "blobs" and urlsplit(value).scheme == "file":
                yield _need_blobs(key, unquote(urlsplit(value).path))
        elif name == "headers":
            continue
        elif isinstance(value, Mapping) and value.keys() == {"file"}:
            text = f"read {value['file']}, but the user of the service must"
            yield NeededRight(key=key, path=value["file"], mode=os.R_OK, text=text)
        elif isinstance(value, Mapping):
            yield from list_needed(value, f"{key}.")
        elif isinstance(value, list):
            yield from list_needed({str(index): item for index, item in enumerate(value)}, f"{key}.")


def _need_blobs(key: str, folder: str) -> NeededRight:
    """Describe the right on a folder of blobs.

    A mirror reads it, the relay writes it.
    """
    if key.startswith("mirror."):
        return NeededRight(
            key=key, path=folder, mode=os.R_OK | os.X_OK, text=f"read {folder}, but the mirror's user must"
        )
    text = f"write to {folder}, but the relay's user must"
    return NeededRight(key=key, path=folder, mode=os.W_OK | os.X_OK, text=text)
