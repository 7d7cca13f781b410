# SPDX-License-Identifier: GPL-2.0-or-later
"""Twins: repositories whose names are one name to some file systems, `PROJ` and `proj`, or two spellings of `é`.

A mirror takes one of two twins and refuses the other, wherever it runs. So the second is refused where it is made: on the master,
by creation, clone, rename, and adoption of a copy. Twins that exist already go on as they are.

The check holds no lock: two that are made at the same instant can both pass. A mirror then takes one and reports the other.
"""

import os
from collections.abc import Iterator, Mapping

from mercurial import error

from ...words.path import twin


def refuse(path: str, folder: str, roots: Mapping[str, str]) -> None:
    """Raise Abort if a repository other than the one in `folder` has a wire path that is this path's twin."""
    for other in _find_twins(path, roots):
        if other != os.path.realpath(folder):
            raise error.Abort(
                f"repository path {path}: there is {other}, whose name is the same but for case or Unicode".encode(
                    "utf-8", "surrogateescape"
                ),
                hint=b"choose another name: mirrors take only one of the two",
            )


def _find_twins(path: str, roots: Mapping[str, str]) -> Iterator[str]:
    """Find the repositories whose wire paths are this path or its twins; searches only where they can be."""
    for root, prefix in roots.items():
        before = [part for part in twin(prefix).split("/") if part]
        parts = twin(path).split("/")
        if parts[: len(before)] == before:
            yield from _find_below(root, parts[len(before) :])


def _find_below(folder: str, parts: list[str]) -> Iterator[str]:
    if not parts:
        if os.path.isdir(os.path.join(folder, ".hg")):
            yield folder
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if twin(entry.name) == parts[0])
    except OSError:
        return
    for name in names:
        yield from _find_below(os.path.join(folder, name), parts[1:])
