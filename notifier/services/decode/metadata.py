# SPDX-License-Identifier: GPL-2.0-or-later
"""The attributes of decoded messages, which the decoder adds to each message.

They have the names in `notifier/messages/schemas/decoded.1.json`. Pure.
"""

import hashlib
import re
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

from ...messages.raw import RawMessage, Submission

# Country of an address that has no place.
UNKNOWN_COUNTRY = "??"

# Headers of the client that a decoded message keeps.
HEADERS = ("date", "dnt", "x_pingsender_version", "x_debug_id")

# Members that the decoder alone writes into a body, beside `metadata`.
INJECTED = (
    "document_id",
    "submission_timestamp",
    "sample_id",
    "normalized_app_name",
    "normalized_channel",
    "normalized_country_code",
    "normalized_os",
    "normalized_os_version",
)

# Objects of `metadata`: attribute → member.
_NESTED = {
    "geo": {f"geo_{name}": name for name in ("country", "subdivision1", "subdivision2", "city")},
    "header": {name: name for name in HEADERS},
    "uri": {name: name for name in ("app_name", "app_version", "app_update_channel", "app_build_id")},
    "user_agent": {
        "user_agent_browser": "browser",
        "user_agent_browser_version": "version",
        "user_agent_os": "os",
        "user_agent_os_version": "os_version",
    },
}
# Members of `metadata` beside these objects.
_DOCUMENT = ("document_namespace", "document_type", "document_version")

# Places of the client's id in a body, the first that has one wins.
_CLIENT_IDS = (("client_info", "client_id"), ("client_id",), ("clientId",))

_APP_NAMES = {name.lower(): name for name in ("Firefox", "Fennec", "Focus", "Klar", "Thunderbird")}
# Channels: two of them have variants of distributors alone, the others any.
_CHANNEL = re.compile(r"(?:(release|esr)(?:-cck.*)?|(beta|aurora|nightly).*)", re.DOTALL)
# The begin of a system's name → how it is written. Linux stands for its kin, too.
_SYSTEMS = {
    **dict.fromkeys(("windows", "winnt"), "Windows"),
    **dict.fromkeys(("darwin", "mac", "os x"), "Mac"),
    **dict.fromkeys(("linux", "gnu/", "sunos", "solaris", "freebsd", "netbsd", "openbsd"), "Linux"),
    "android": "Android",
    **dict.fromkeys(("ios", "iphone", "ipad"), "iOS"),
}
_OTHER = "Other"
_UUID = re.compile(r"\{?([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})\}?")
_OS_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,2}(?![0-9.])")


def made_id(raw: RawMessage) -> str:
    """Return an id for a message whose type has none, the same at each decoding."""
    digest = hashlib.sha256(raw.payload).hexdigest()
    said = f"{raw.attributes['uri']} {raw.attributes['submission_timestamp']} {digest}"
    return str(uuid.uuid5(uuid.NAMESPACE_URL, said))


def document_version(submission: Submission, body: Mapping[str, Any]) -> str | None:
    """Return the version that the URI or telemetry's body gives; None if it does not."""
    if submission.version is not None:
        return submission.version
    found = body.get("version", body.get("v"))
    if type(found) is int and 0 <= found < 10**9:
        return str(found)
    return found if isinstance(found, str) and re.fullmatch("[0-9]{1,9}", found) else None


def attributes(
    submission: Submission, version: str, document_id: str, raw: Mapping[str, str], enriched: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes that do not depend on the body.

    `enriched` are the attributes of place and user agent.
    """
    named = {
        "document_namespace": submission.namespace,
        "document_type": submission.type,
        "document_version": version,
        "document_id": document_id,
        "app_name": submission.app_name,
        "app_version": submission.app_version,
        "app_update_channel": submission.app_update_channel,
        "app_build_id": submission.app_build_id,
        "submission_timestamp": raw["submission_timestamp"],
        **{name: raw.get(name) for name in HEADERS},
        **enriched,
    }
    return {name: text for name, text in named.items() if text}


def sample(body: Mapping[str, Any]) -> dict[str, str]:
    """Return `sample_id`, the CRC-32 of the client's id modulo 100; {} without an id.

    The id is a UUID, and counts in lower case and without braces.
    """
    for *folders, name in _CLIENT_IDS:
        found = _read_text(_find_object(body, *folders).get(name))
        client = _UUID.fullmatch(found or "")
        if client is not None:
            return {"sample_id": str(zlib.crc32(client[1].lower().encode("ascii")) % 100)}
    return {}


def normalized(submission: Submission, body: Mapping[str, Any], country: str | None) -> dict[str, str]:
    """Return the `normalized_` attributes that the body, URI and country give."""
    application, system = _find_object(body, "application"), _find_object(body, "environment", "system", "os")
    client = _find_object(body, "client_info")
    app_name = submission.app_name or _read_text(application.get("name")) or _read_text(body.get("appName"))
    channel = _find_text(application.get("channel"), client.get("app_channel"), submission.app_update_channel)
    os_name = _find_text(system.get("name"), client.get("os"), body.get("os"))
    os_version = _find_text(system.get("version"), client.get("os_version"), body.get("osversion"))
    number = _OS_VERSION.match(os_version or "")
    named = {
        "normalized_app_name": app_name and _APP_NAMES.get(app_name.lower(), _OTHER),
        "normalized_channel": channel and _normalize_channel(channel),
        "normalized_country_code": country or UNKNOWN_COUNTRY,
        "normalized_os": os_name and _normalize_system(os_name),
        "normalized_os_version": number and number[0],
    }
    return {name: text for name, text in named.items() if text}


def inject(body: dict[str, Any], found: Mapping[str, str]) -> None:
    """Write the attributes into the body.

    They have the places that `notifier/messages/schemas/ingestion.1.json` shows: most in objects of `metadata`. What a client
    wrote there is removed.
    """
    for name in INJECTED:
        body.pop(name, None)
        if name in found:
            body[name] = int(found[name]) if name == "sample_id" else found[name]
    nested = {
        name: {member: found[attribute] for attribute, member in members.items() if attribute in found}
        for name, members in _NESTED.items()
    }
    body["metadata"] = {
        **{name: found[name] for name in _DOCUMENT},
        **{name: members for name, members in nested.items() if members},
    }


def _find_object(body: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the object at this place in the body; an empty one if there is none."""
    found: Any = body
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _read_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _find_text(*values: object) -> str | None:
    return next(filter(None, map(_read_text, values)), None)


def _normalize_channel(channel: str) -> str:
    found = _CHANNEL.fullmatch(channel)
    return _OTHER if found is None else found[1] or found[2]


def _normalize_system(name: str) -> str:
    return next((system for begin, system in _SYSTEMS.items() if name.lower().startswith(begin)), _OTHER)
