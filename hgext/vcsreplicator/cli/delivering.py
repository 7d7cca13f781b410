# SPDX-License-Identifier: GPL-2.0-or-later
"""The delivery of an event to the destinations, in words.

The module loads no code that draws on a terminal.
"""

from typing import TYPE_CHECKING

from ..config import Config
from ..words.event import Event
from ..words.streams import streams

if TYPE_CHECKING:
    from notifier.settings import NotifierSettings


def read_notifier(config: Config) -> "NotifierSettings | None":
    """Read the settings of the notifier; None where the file has none."""
    from notifier.settings import read

    return read(config.tables, config.file) if "notifier" in config.tables else None


def describe_delivery(settings: "NotifierSettings | None", name: str, event: Event, *, is_passed: bool) -> str:
    """Describe the delivery of an event's messages, if it has any, to a destination."""
    from notifier.public import public_url

    wanted = streams(event)
    if settings is not None and public_url(event.path, settings.public) is None:
        return "nothing to deliver: the repository is not public"
    if settings is not None and name in settings.destinations:
        wanted = tuple(stream for stream in wanted if stream.value in settings.destinations[name].types)
    if not wanted:
        return f"nothing to deliver: it gets no message of this event ({event.type})"
    return "delivered" if is_passed else "not yet delivered"
