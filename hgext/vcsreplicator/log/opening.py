# SPDX-License-Identifier: GPL-2.0-or-later
"""Opens the log that a URL names.

An adapter and its client library are imported only when a URL needs them.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from ..words.errors import BadConfig, quote_value
from . import Log

if TYPE_CHECKING:
    from .kafka.options import KafkaOptions

EXPECTED = "expected sqlite:///absolute/path or kafka://host:port[,host:port…][?option=value]"


def open_log(url: str, *, creates: bool = False) -> Log:
    """Open the log at `url`; the caller closes it.

    Only with `creates` it makes a missing embedded log. Raises BadConfig for a URL that cannot be right or a client library that
    cannot be used, Unavailable if the log is missing or nothing answers.
    """
    found = parse_url(url)
    if isinstance(found, Path):
        from .sqlite.adapter import SqliteLog

        return SqliteLog(found, creates=creates)
    from .kafka import seams

    seams.check()
    from .kafka.adapter import KafkaLog

    return KafkaLog(found)


def parse_url(url: str) -> "Path | KafkaOptions":
    """Return a log's file or brokers; raise BadConfig for a URL that is none."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadConfig(f"log: {EXPECTED}, got {quote_value(url)}: {error}") from None
    if parts.scheme == "sqlite":
        odd = not parts.path.startswith("/") or parts.path.startswith("//") or parts.path.endswith("/")
        if odd or parts.netloc or parts.query or parts.fragment:
            raise BadConfig(f"log: expected sqlite:///absolute/path without options, got {quote_value(url)}")
        return Path(unquote(parts.path))
    if parts.scheme == "kafka":
        from .kafka.options import parse

        return parse(url)
    raise BadConfig(f"log: {EXPECTED}, got {quote_value(url)}")


def identify_log(url: str) -> str:
    """Return a text that differs for different logs, and tells no secret of the URL.

    On Kafka brokers and `topic-prefix` count, and no user: each service may have its own. An embedded log that was put back
    from a copy is another one: its file counts too.
    """
    about = url
    if url.startswith("sqlite:"):
        try:
            found = os.stat(unquote(url.removeprefix("sqlite://")))
            about += f" {found.st_dev} {found.st_ino}"
        except (OSError, ValueError):
            about += " without a file"
    elif url.startswith("kafka:"):
        about = _describe_kafka(url)
    return hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()


def _describe_kafka(url: str) -> str:
    """Return brokers and prefix of a URL, or the URL itself if it cannot be read."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return url
    prefixes = [text for name, text in options if name.replace("-", "_") == "topic_prefix"]
    return f"kafka {sorted(parts.netloc.split(','))} {prefixes}"
