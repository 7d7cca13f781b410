# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings that expose data or secrets.

They are plain text to another machine, a password in a URL, and a file of secrets that all users may read. Each is refused unless
the configuration names it in `insecure`. On the loopback interface plain text and a password are fine. Standard library only,
because a push imports it.
"""

import enum
import ipaddress
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from .errors import SHOWN, BadConfig, quote_value


class Exposure(enum.StrEnum):
    """The kinds of exposure that a configuration may allow in `insecure`."""

    PLAIN_TEXT = "plain-text"
    PASSWORD = "password-in-url"
    READABLE = "readable-file"


# Schemes without TLS, and the ones with it.
PLAIN_SCHEMES = {"amqp": "amqps", "http": "https", "redis": "rediss", "smtp": "smtps"}

# The passwords among the options of a Kafka URL; each may be in a file instead, which the option `NAME_file` names.
KAFKA_SECRETS = ("sasl_plain_password", "ssl_password")
_SECRET_HEADERS = ("authorization", "x-auth", "credential", "cookie", "token", "secret", "key", "password")


def exposures(url: str) -> Iterator[tuple[Exposure, str]]:
    """Yield the exposures of a connection's URL, each with a line for the operator."""
    try:
        parts = urlsplit(url)
        hosts = [urlsplit(f"//{server}").hostname or "" for server in parts.netloc.rpartition("@")[2].split(",")]
    except ValueError:
        return
    away = [unquote(host)[:SHOWN] for host in hosts if not is_loopback(unquote(host))]
    if not away:
        return
    options = {name.replace("-", "_"): value for name, value in parse_qsl(parts.query)}
    if parts.scheme == "kafka":
        protocol = options.get("security_protocol", "PLAINTEXT")
        if protocol.upper().endswith("PLAINTEXT"):
            yield Exposure.PLAIN_TEXT, f"{protocol} to {away[0]}, expected security_protocol=SSL or SASL_SSL"
        for name in KAFKA_SECRETS:
            if name in options:
                yield Exposure.PASSWORD, f"option {name}, expected {name}_file=/path"
    elif parts.scheme in PLAIN_SCHEMES:
        yield Exposure.PLAIN_TEXT, f"{parts.scheme}:// to {away[0]}, expected {PLAIN_SCHEMES[parts.scheme]}://"
    if parts.password is not None:
        yield (
            Exposure.PASSWORD,
            f"a password in a URL to {away[0]}, expected a place outside, such as a file of its own",
        )


def split_url(url: str, *schemes: str, needs_host: bool = True) -> SplitResult | None:
    """Return a URL's parts.

    Returns None with another scheme, no host, an impossible port, or a character that `urlsplit` drops and others do not.
    """
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in schemes and parts.port != 0 and (not needs_host or bool(parts.hostname))
        is_right &= url.isprintable() and not url.startswith(" ")
    except ValueError:  # a port or an address that is none
        return None
    return parts if is_right else None


def is_loopback(host: str) -> bool:
    """Return whether traffic to `host` stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def describe_readers(file: str, mode: int, *, group_may: bool = False) -> str:
    """Return what is wrong with the permissions of a file that holds a secret.

    It is "" if only the owner, or with `group_may` the group too, may use the file.
    """
    others = 0o007 if group_may else 0o077
    if not mode & others:
        return ""
    widest, change = ("0640", "o=") if group_may else ("0600", "go=")
    return f"{file} has mode {mode & 0o7777:04o}, expected {widest} or stricter: chmod {change} {file}"


def read_secret(path: str, limit: int, *, group_may: bool = False) -> bytes:
    """Return the bytes of a file that holds a secret.

    Raises BadConfig for a pipe or a device, which might never end, for more bytes than `limit`, and for a file that others may use;
    raises OSError.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise BadConfig(f"{path}: expected a file, got a folder, a pipe or a device")
        if wrong := describe_readers(path, mode, group_may=group_may):
            raise BadConfig(wrong)
        found = file.read(limit + 1)
    if len(found) > limit:
        raise BadConfig(f"{path}: expected a secret of at most {limit} bytes")
    return found


def check(tables: Mapping[str, Any], file: str, mode: int) -> None:
    """Raise BadConfig for an exposure that `insecure` does not name.

    `tables` are the contents of the services' file `file`, `mode` its permissions.
    """
    meant = _read_insecure(tables.get("insecure", []), file)
    secret_at = list(_secret_headers(tables))
    for where, url in _list_urls(tables):
        for exposure, found in exposures(url):
            if exposure is Exposure.PASSWORD:
                secret_at.append(where)
            if exposure not in meant:
                raise BadConfig(f"{file}: {where}: {_describe_exposure(exposure, found)}")
    if secret_at and mode & 0o004 and Exposure.READABLE not in meant:
        found = f"a secret in a file that all users may read (mode {mode & 0o7777:04o}), expected chmod o= {file}"
        raise BadConfig(f"{file}: {secret_at[0]}: {_describe_exposure(Exposure.READABLE, found)}")


def _describe_exposure(exposure: Exposure, found: str) -> str:
    return f'{found}; if it is meant, write insecure = ["{exposure.value}"] at the top of the file'


def _read_insecure(value: Any, file: str) -> Collection[str]:
    known = [each.value for each in Exposure]
    if not isinstance(value, list) or any(each not in known for each in value):
        raise BadConfig(f"{file}: insecure: expected a list of {', '.join(known)}, got {quote_value(value)}")
    return value


def _list_urls(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return (key, URL) of every connection of a service, except webhooks.

    `allow-http` decides about those.
    """
    found = [("log", tables.get("log"))]
    for name, mirror in _list_sections(tables.get("mirror")):
        found.append((f"mirror.{name}.master", mirror.get("master")))
    for name, destination in _list_sections(tables.get("notifier")):
        found += [(f"notifier.{name}.{key}", value) for key, value in destination.items() if key.endswith("url")]
    for name, section in _list_sections({name: tables.get(name) for name in ("poll", "work", "decode", "guardian")}):
        for key, value in section.items():
            if key.endswith("url") or key in ("broker", "redis"):
                found.append((f"{name}.{key}", value))
            elif key == "repositories" and isinstance(value, list):
                found += [(f"{name}.{key}", url) for url in value]
    return ((where, url) for where, url in found if isinstance(url, str))


def is_secret_header(name: str) -> bool:
    """Return whether the name of a webhook's header says that it holds a secret."""
    return any(word in name.lower() for word in _SECRET_HEADERS)


def _secret_headers(tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of webhooks' headers whose names say that they hold secrets."""
    for name, destination in _list_sections(tables.get("notifier")):
        for each, subscription in _list_sections(destination.get("subscriptions")):
            headers = subscription.get("headers")
            for header in headers if isinstance(headers, Mapping) else ():
                if is_secret_header(header):
                    yield f"notifier.{name}.subscriptions.{each}.headers.{header}"


def _list_sections(table: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the well-formed subsections; the readers of the others refuse them."""
    for name, section in table.items() if isinstance(table, Mapping) else ():
        if isinstance(section, Mapping):
            yield name, section
