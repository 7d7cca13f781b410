# SPDX-License-Identifier: GPL-2.0-or-later
"""The section [decode] of the TOML file; docs/edge-decoder.md explains each key."""

import enum
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import quote_value
from hgext.vcsreplicator.words.secrecy import split_url
from hgext.vcsreplicator.words.shape import Bytes, Seconds, within

from ...clients.secret import Secret
from ...messages import schemas
from ...messages.raw import DEFAULT_PLACE, check_types, topic_of

# The schemas that come with this package.
SHIPPED = os.path.join(os.path.dirname(schemas.__file__), "documents")

DEFAULT_REPEATS = "/var/lib/vcsreplicator/decode/repeats.db"

# Values of `repeats` that name no file.
REDIS, NONE = "redis", "none"

# Bytes of a body that a record of the log holds for certain, written as ASCII.
_LARGEST = 2 * 1024 * 1024

_QUEUE = re.compile(r"[!-~]{0,200}")
# The path of Redis's URL.
_DATABASE = re.compile(r"/?[0-9]*")


class PlaceKind(enum.StrEnum):
    """The kind of place that messages come from or go to."""

    LOG = "log"
    QUEUE = "queue"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """A topic of the log, a queue of the broker, or a file.

    `<namespace>.<type>` names the queue if `name` is empty, and the file if `name` is a folder, which ends with `/`.
    """

    kind: PlaceKind
    name: str


def read_place(text: str) -> MessagePlace:
    """Read `log:TOPIC`, `queue:NAME`, `queue:`, `file:/PATH` or `file:/FOLDER/`.

    Raises ValueError for any other text.
    """
    topic = topic_of(text)
    if topic is not None:
        return MessagePlace(PlaceKind.LOG, topic)
    kind, colon, name = text.partition(":")
    if colon and kind == PlaceKind.QUEUE and _QUEUE.fullmatch(name):
        return MessagePlace(PlaceKind.QUEUE, name)
    if kind == PlaceKind.FILE and os.path.isabs(name):
        return MessagePlace(PlaceKind.FILE, name)
    raise ValueError(f"expected log:TOPIC, queue:NAME or file:/PATH, got {quote_value(text)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSettings:
    """Input, steps and outputs of the decoder; see docs/edge-decoder.md."""

    input: str = DEFAULT_PLACE
    output: str = "log:decoded"
    outputs: Mapping[str, str] = field(default_factory=dict)
    schemas: str = SHIPPED
    without_id: tuple[str, ...] = ()
    largest: Bytes = 1024 * 1024
    geoip: str | None = None
    cities: str | None = None
    city_population: int = 0
    load_balancers: int = 0
    repeats: str = DEFAULT_REPEATS
    remember: Seconds = 7 * DAY
    redis: str | None = None
    redis_password: Secret | None = None
    redis_ca_file: str | None = None
    broker: str | None = None
    broker_password: Secret | None = None
    broker_ca_file: str | None = None

    def __post_init__(self) -> None:
        within(
            self, largest=(1, _LARGEST), load_balancers=(0, 100), remember=(1, 3650 * DAY), city_population=(0, 10**9)
        )
        used = [_named_place("input", self.input), _named_place("output", self.output)]
        if used[0].kind is PlaceKind.FILE or not used[0].name:
            raise ValueError(f"input: expected log:TOPIC or queue:NAME, got {quote_value(self.input)}")
        check_types(outputs=self.outputs, without_id=self.without_id)
        for route, text in self.outputs.items():
            used.append(_named_place(f"outputs.{route}", text))
        unreadable = MessagePlace(used[0].kind, name_unreadable(used[0].name))
        if used[0].kind is PlaceKind.QUEUE and unreadable in used[1:]:
            raise ValueError(
                f"output: expected another place than {unreadable.name!r}, which keeps unreadable messages"
            )
        if used[0] in used[1:]:
            raise ValueError(f"output: expected a place other than the input, got {quote_value(self.input)}")
        if self.repeats not in (REDIS, NONE) and not os.path.isabs(self.repeats):
            raise ValueError(f"repeats: expected an absolute path, {REDIS} or {NONE}, got {quote_value(self.repeats)}")
        if self.repeats == REDIS:
            self._check_redis()
        is_queued = any(place.kind is PlaceKind.QUEUE for place in used)
        if is_queued and split_url(self.broker or "", "amqp", "amqps") is None:
            raise ValueError("broker: expected amqp://USER@HOST/VHOST or amqps://…, because a place is a queue")

    def _check_redis(self) -> None:
        parts = split_url(self.redis or "", "redis", "rediss", needs_host=False)
        if parts is None or not _DATABASE.fullmatch(parts.path):
            raise ValueError("redis: expected redis://HOST:PORT/NUMBER or rediss://…, because repeats = 'redis'")
        if self.redis_ca_file is not None and parts.scheme == "redis":
            raise ValueError("redis_ca_file: expected none with redis://, which verifies no certificate, or rediss://…")

    @property
    def topics(self) -> set[str]:
        """The names of the topics of the log that are read and written."""
        places = map(read_place, (self.input, self.output, *self.outputs.values()))
        return {place.name for place in places if place.kind is PlaceKind.LOG}

    def place_of(self, route: str) -> MessagePlace:
        """Return where messages of this `<namespace>.<type>` go."""
        place = read_place(self.outputs.get(route, self.output))
        if place.kind is PlaceKind.QUEUE and not place.name:
            return MessagePlace(place.kind, route)
        if place.kind is PlaceKind.FILE and place.name.endswith("/"):
            return MessagePlace(place.kind, f"{place.name}{route}.ndjson")
        return place


def name_unreadable(queue: str) -> str:
    """Return the queue beside an input that keeps what cannot be read."""
    return f"{queue}.unreadable"


def _named_place(key: str, text: str) -> MessagePlace:
    try:
        return read_place(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
