# SPDX-License-Identifier: GPL-2.0-or-later
"""What the verbs that speak with a running notifier share: who asks, of which destination, and the wait for its answer."""

import datetime
import getpass
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from ..config import Config
from ..words.errors import Refused


def who() -> str:
    """The person at the keyboard, as it is recorded."""
    return f"{os.environ.get('SUDO_USER') or getpass.getuser()}@{os.uname().nodename}"


def when(time_: float | None) -> str:
    """A time for people, UTC."""
    return "" if time_ is None else f"{datetime.datetime.fromtimestamp(time_, datetime.UTC):%Y-%m-%d %H:%M:%S}"


def ask(config: Config, destination: str, kind: str, argument: Mapping[str, Any], *, wait: float) -> None:
    """Records the request, waits for the notifier to carry it out, prints its answer."""
    from notifier.settings import read
    from notifier.state import Kind, StateDatabase

    settings = read(config.tables, config.file)
    if destination not in settings.destinations:
        known = ", ".join(settings.destinations) or "none"
        raise Refused(f"there is no destination {destination!r} in {config.file}, but: {known}")
    with closing(StateDatabase(settings.state)) as state:
        number = state.ask(destination, Kind(kind), argument, who=who(), now=time.time())
        end = time.monotonic() + wait
        while (request := state.request(number)).done_at is None:
            if time.monotonic() > end:
                raise Refused(
                    f"request {number} is recorded and will be carried out; no notifier answered in {wait:g} s"
                )
            time.sleep(0.05)
    click.echo(f"{destination}: {request.result}")


@contextmanager
def open_deliveries(config: Config, destination: str | None, *, create: bool = False) -> Iterator[Any]:
    """The table of deliveries of a webhook destination; with only one of them it needs no name.

    One that is not there is shown as empty and not made, unless `create` says so.
    """
    from notifier.database import NOWHERE
    from notifier.settings import read
    from notifier.webhook.deliveries import Deliveries
    from notifier.webhook.destination import WebhookSettings

    found = {
        name: each
        for name, each in read(config.tables, config.file).destinations.items()
        if isinstance(each, WebhookSettings) and destination in (None, name)
    }
    if len(found) != 1:
        names = ", ".join(found)
        raise Refused(f"expected one webhook destination in {config.file}, found {names or 'none'}; use --destination")
    [settings] = found.values()
    there = create or Path(settings.database).exists()
    with closing(Deliveries(settings.database if there else NOWHERE)) as deliveries:
        yield deliveries
