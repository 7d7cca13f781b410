# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages in Pulse's form: routing keys, payloads, bodies. Pure."""

import datetime

from ...messages.message import Json, Message, to_text

_LISTS = ("heads", "markers", "bookmarks", "phases")


def routing_key(message: Message, strip_prefix: str | None) -> str:
    """Return the repository's public path; slashes and case are kept."""
    if strip_prefix is not None and message.repo_url.startswith(strip_prefix):
        return message.repo_url[len(strip_prefix) :].strip("/")
    return message.repo_url.split("://", 1)[1].partition("/")[2]


def payload(message: Message, stream: str) -> Json:
    """Return the member `payload` of the body.

    It is `{repo_url, heads, pushlog_pushes}` in v1, `{type, data}` in v2.
    """
    if stream == "v1":
        return {name: message.data[name] for name in ("repo_url", "heads", "pushlog_pushes")}
    return message.envelope


def body(content: Json, exchange: str, key: str, now: float) -> str:
    sent = datetime.datetime.fromtimestamp(now, datetime.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    meta = {"exchange": exchange, "routing_key": key, "serializer": "json", "sent": sent}
    return to_text({"payload": content, "_meta": meta})


def shortened(content: Json) -> Json:
    """Return the payload with empty long lists and `shortened` set.

    Receivers ask the URLs for the rest.
    """
    data = content.get("data", content)
    emptied = {name: [] if name in _LISTS else value for name, value in data.items()}
    short = {**emptied, "shortened": True}
    return {**content, "data": short} if "data" in content else short
