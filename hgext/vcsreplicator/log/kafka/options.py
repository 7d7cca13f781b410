# SPDX-License-Identifier: GPL-2.0-or-later
"""The options in a `kafka://` URL.

They are brokers, a prefix for every name, how topics are made, and any property of the client. A URL that names a property on
which the promises of the log rest is refused.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from ...words.errors import BadConfig, quote_value
from ...words.secrecy import KAFKA_SECRETS, read_secret

# Set by the adapter for every client; a URL may change these.
DEFAULTS: Mapping[str, Any] = {
    "client_id": "vcsreplicator",
    "request_timeout_ms": 10_000,
    "bootstrap_timeout_ms": 3_000,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 500,
}

# Properties of some kinds of clients only; a URL may change these too.
PRODUCER: Mapping[str, Any] = {
    "retry_backoff_ms": 5,
    "max_block_ms": 5_000,
    "transaction_timeout_ms": 10_000,
    "batch_size": 512 * 1024,  # batches of a partition go one after the other: few large ones
}
CONSUMER: Mapping[str, Any] = {
    "fetch_max_bytes": 32 * 1024 * 1024,
    "retry_backoff_ms": 20,
    "metadata_max_age_ms": 15_000,  # how soon a reader notices that its topic was re-created
    "heartbeat_interval_ms": 2_000,  # how soon a member notices that another one came or left
    "session_timeout_ms": 10_000,  # when others take over the partitions of a member that was killed
    "max_poll_interval_ms": 30_000,  # how long a member that hangs holds up the others
}

# Properties on which the promises rest: a URL may not change these.
FIXED = frozenset(
    {
        "acks",
        "allow_auto_create_topics",
        "auto_offset_reset",
        "bootstrap_servers",
        "delivery_timeout_ms",
        "enable_auto_commit",
        "enable_idempotence",
        "group_id",
        "isolation_level",
        "kafka_client",
        "key_deserializer",
        "key_serializer",
        "linger_ms",
        "max_in_flight_requests_per_connection",
        "max_request_size",
        "partitioner",
        "retries",
        "selector",
        "socket_options",
        "transactional_id",
        "value_deserializer",
        "value_serializer",
    }
)

# Bytes of a secret.
MAX_SECRET = 64 * 1024

ClientKind = type[KafkaAdminClient] | type[KafkaConsumer] | type[KafkaProducer]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """The options of a log on Kafka.

    `replication` is the number of replicas of new topics, `in_sync` how many of them must have a record (None: the broker's
    default). `secrets` names the files of those properties that are passwords.
    """

    servers: tuple[str, ...]
    prefix: str = ""
    replication: int | None = None
    in_sync: int | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)

    def renew(self) -> "KafkaOptions":
        """Return the same with the passwords of now; raise BadConfig."""
        found = {name: _read_secret(f"{name}_file", path) for name, path in self.secrets.items()}
        return replace(self, properties={**self.properties, **found})

    @property
    def url(self) -> str:
        """The URL for messages, without options, which may hold secrets."""
        return "kafka://" + ",".join(self.servers)

    def of(self, kind: ClientKind, **ours: Any) -> dict[str, Any]:
        """Return a client's configuration: `ours` before the URL's, before the defaults."""
        extra = {KafkaProducer: PRODUCER, KafkaConsumer: CONSUMER}.get(kind, {})
        known = kind.DEFAULT_CONFIG
        wanted = {**DEFAULTS, **extra, **{name: value for name, value in self.properties.items() if name in known}}
        return {**wanted, "bootstrap_servers": list(self.servers), **ours}


def parse(url: str) -> KafkaOptions:
    """Parse a URL's options; BadConfig names the option and what was expected."""
    parts = urlsplit(url)
    servers = tuple(_parse_server(server) for server in parts.netloc.split(","))
    if parts.path not in ("", "/") or parts.fragment:
        raise BadConfig(f"log: expected kafka://host:port[,host:port…][?option=value], got a path {parts.path!r}")
    given: dict[str, str] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        name = name.replace("-", "_")
        if name in given:
            raise BadConfig(f"log: option {name}: expected once, got twice")
        given[name] = text
    secrets = {name: given.pop(f"{name}_file") for name in KAFKA_SECRETS if f"{name}_file" in given}
    options = KafkaOptions(
        servers=servers,
        prefix=_parse_prefix(given.pop("topic_prefix", "")),
        replication=_parse_count("replication-factor", given.pop("replication_factor", None)),
        in_sync=_parse_count("min-insync-replicas", given.pop("min_insync_replicas", None)),
        properties=dict(_parse_property(name, text) for name, text in given.items()),
        secrets=secrets,
    ).renew()
    check_certificates(options.properties)
    return options


def check_certificates(properties: Mapping[str, Any]) -> None:
    """Check the files of certificates and keys.

    Raises BadConfig that names the file that cannot be read, or is no certificate or key: the client would only say "no answer".
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority, revoked, own = (properties.get(name) for name in ("ssl_cafile", "ssl_crlfile", "ssl_certfile"))
    key = properties.get("ssl_keyfile")
    password = properties.get("ssl_password") or ""  # without one, OpenSSL would ask the terminal
    if authority:
        _load("ssl_cafile", authority, lambda: context.load_verify_locations(authority))
    if revoked:
        _load("ssl_crlfile", revoked, lambda: context.load_verify_locations(revoked))
    if own:
        names, files = ("ssl_certfile and ssl_keyfile", f"{own} and {key}") if key else ("ssl_certfile", own)
        _load(names, files, lambda: context.load_cert_chain(own, key, password))


def _load(names: str, files: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # of which SSLError is one
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise BadConfig(f"log: option {names}: cannot use {files}: {reason}") from error


def _parse_server(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or "@" in text:
        raise BadConfig(f"log: expected host:port, got {quote_value(text)}")
    return f"{unquote(host)}:{port}"


def _parse_prefix(text: str) -> str:
    if (
        not all(character.isascii() and (character.isalnum() or character in "._-") for character in text)
        or len(text) > 200
    ):
        raise BadConfig(f"log: option topic-prefix: expected letters, digits and any of . _ -, got {quote_value(text)}")
    return text


def _parse_count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 100:
        raise BadConfig(f"log: option {name}: expected a number of brokers, got {quote_value(text)}")
    return int(text)


def _parse_property(name: str, text: str) -> tuple[str, Any]:
    """Parse a property of the client, in the type of its default."""
    known = {**KafkaAdminClient.DEFAULT_CONFIG, **KafkaConsumer.DEFAULT_CONFIG, **KafkaProducer.DEFAULT_CONFIG}
    if name in FIXED:
        raise BadConfig(f"log: option {name}: cannot be changed, the promises of the log depend on it")
    if name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile") and not Path(text).is_file():
        raise BadConfig(f"log: option {name}: expected a file, {text} is none")
    if name not in known:
        raise BadConfig(f"log: option {name}: expected topic-prefix, replication-factor or a property of kafka-python")
    return name, _parse_value(name, text, known[name])


def _read_secret(name: str, path: str) -> str:
    """Read a file that the services of several users may share by their group."""
    try:
        return read_secret(path, MAX_SECRET, group_may=True).decode().rstrip("\r\n")
    except BadConfig as error:
        raise BadConfig(f"log: option {name}: {error}") from None
    except OSError as error:
        raise BadConfig(f"log: option {name}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadConfig(f"log: option {name}: {path}: expected UTF-8") from None


def _parse_value(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise BadConfig(f"log: option {name}: expected true or false, got {quote_value(text)}")
        return text == "true"
    try:
        if isinstance(default, int | float):
            return float(text) if isinstance(default, float) else int(text)
        if name == "api_version":
            return tuple(map(int, text.split(".")))
    except ValueError:
        expected = "a version such as 4.0" if name == "api_version" else "a number"
        raise BadConfig(f"log: option {name}: expected {expected}, got {quote_value(text)}") from None
    return text
