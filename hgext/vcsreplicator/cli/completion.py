# SPDX-License-Identifier: GPL-2.0-or-later
"""Names that the shell completes, from the services' file alone.

The file has the mirrors and destinations of its machine. No broker is asked, and a file that cannot be read completes nothing.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from ..config import DEFAULT_FILE, load

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _make_completion(names: Callable[[Mapping[str, Any]], Iterable[str]]) -> Complete:
    """Make the completion of those names of the file that are not typed yet."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        given = ctx.params.get(parameter.name or "") if parameter.nargs == -1 else None
        try:
            file = ctx.params.get("file") or os.environ.get("VCSREPLICATOR_CONFIG") or DEFAULT_FILE
            found = sorted({*names(load(file).tables)} - {*(given or ())})
        except Exception:  # an error would be printed into the line that the user types
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


def _name_destinations(tables: Mapping[str, Any], kind: str | None = None) -> list[str]:
    return [
        name
        for name, table in tables["notifier"].items()
        if name != "state" and (kind is None or table["type"] == kind)
    ]


complete_mirror = _make_completion(lambda tables: tables["mirror"])
complete_destination = _make_completion(_name_destinations)
complete_webhook = _make_completion(lambda tables: _name_destinations(tables, "webhook"))
complete_subscription = _make_completion(
    lambda tables: [
        name for each in _name_destinations(tables) for name in tables["notifier"][each].get("subscriptions", ())
    ]
)
