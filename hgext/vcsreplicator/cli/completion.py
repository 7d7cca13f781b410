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
    """Make the completion of a name of the file.

    It leaves out the names that the command line has already.
    """

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        given = ctx.params.get(parameter.name or "") if parameter.nargs == -1 else None
        try:
            file = ctx.params.get("file") or os.environ.get("VCSREPLICATOR_CONFIG") or DEFAULT_FILE
            found = sorted({*names(load(file).tables)} - {*(given or ())})
        except Exception:  # an error would be printed into the line that the user types
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


def _name_mirrors(tables: Mapping[str, Any]) -> Iterable[str]:
    names: Mapping[str, Any] = tables["mirror"]
    return names


def _name_destinations(tables: Mapping[str, Any]) -> Iterable[str]:
    return (name for name in tables["notifier"] if name != "state")


def _name_webhooks(tables: Mapping[str, Any]) -> Iterable[str]:
    destinations: Mapping[str, Any] = tables["notifier"]
    return (name for name in _name_destinations(tables) if destinations[name]["type"] == "webhook")


def _name_subscriptions(tables: Mapping[str, Any]) -> Iterable[str]:
    destinations: Mapping[str, Any] = tables["notifier"]
    return (name for each in _name_destinations(tables) for name in destinations[each].get("subscriptions", ()))


complete_mirror = _make_completion(_name_mirrors)
complete_destination = _make_completion(_name_destinations)
complete_webhook = _make_completion(_name_webhooks)
complete_subscription = _make_completion(_name_subscriptions)
