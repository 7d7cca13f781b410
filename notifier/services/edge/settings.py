# SPDX-License-Identifier: GPL-2.0-or-later
"""The section `[edge]` of the services' file."""

from dataclasses import dataclass

from hgext.vcsreplicator.log import LARGEST
from hgext.vcsreplicator.words.errors import quote_value
from hgext.vcsreplicator.words.shape import GIB, Bytes, Seconds, absolute, within

from ...messages.raw import DEFAULT_PLACE, NOTIFIER_TYPES, check_types, topic_of

# Bytes of a request's line and headers, which become attributes.
HEAD_BYTES = 32 * 1024

# The largest body whose record the log takes: base64 needs four bytes for three, attributes up to six for each of the head.
LARGEST_BODY = (LARGEST - 6 * HEAD_BYTES - 4096) // 4 * 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSettings:
    """What the edge takes, and where it keeps it; see docs/edge-decoder.md."""

    listen: str
    output: str = DEFAULT_PLACE
    queue: str = "/var/lib/vcsreplicator/edge"
    without_id: tuple[str, ...] = ()
    reserved: tuple[str, ...] = NOTIFIER_TYPES
    max_queue_bytes: Bytes = GIB
    max_body_bytes: Bytes = 1024 * 1024
    max_uri_bytes: Bytes = 4096
    max_connections: int = 500
    header_timeout: Seconds = 10.0
    body_timeout: Seconds = 30.0
    idle_timeout: Seconds = 30.0
    log_timeout: Seconds = 5.0

    def __post_init__(self) -> None:
        absolute(self, "queue")
        check_types(without_id=self.without_id, reserved=self.reserved)
        try:
            topic = topic_of(self.output)
        except ValueError as error:
            raise ValueError(f"output: {error}") from None
        if topic is None:
            raise ValueError(f"output: expected log:NAME, got {quote_value(self.output)}")
        within(self, max_queue_bytes=(1024 * 1024, 2**50), max_body_bytes=(1, LARGEST_BODY))
        within(self, max_uri_bytes=(64, HEAD_BYTES), max_connections=(10, 100_000), log_timeout=(0.1, 60))
        within(self, header_timeout=(0.1, 3600), body_timeout=(0.1, 3600), idle_timeout=(0.1, 3600))

    @property
    def topic(self) -> str:
        return topic_of(self.output) or ""
