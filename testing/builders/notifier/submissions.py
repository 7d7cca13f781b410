# SPDX-License-Identifier: GPL-2.0-or-later
"""Submitted messages: raw ones as the edge writes them, and what the decoder needs."""

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mmdb_writer
from netaddr import IPSet

from notifier.messages.raw import RawMessage

ID = "2c3a0767-d84a-4d02-8a92-fa54a3376049"
HGPUSH = f"/submit/eng-workflow/hgpush/1/{ID}"
TELEMETRY = f"/submit/telemetry/{ID}/main/Firefox/61.0a1/nightly/20180328030202"

# Addresses that the database of `write_geo` knows.
BERLIN, VILLAGE, ENGLAND, IPV6 = "81.2.69.160", "81.2.69.192", "2.125.160.216", "2001:218::1"

_BERLIN_ID, _VILLAGE_ID = 2950159, 1


def a_document(number: int = 1) -> dict[str, Any]:
    """The body of an `eng-workflow/hgpush/1`."""
    return {
        "changesetID": f"{number:040x}",
        "repository": "https://hg.example/mozilla-central",
        "reviewSystemUsed": "phabricator",
        "pushDate": 1_763_900_000 + number,
        "landingSystem": None,
        "diffstat": {"additions": 3, "deletions": 1, "changedFiles": 2},
    }


def injected(body: bytes) -> dict[str, str]:
    """The attributes that a decoder wrote into a body, by the names that they have as headers."""
    content = json.loads(body)
    nested = content.pop("metadata")
    named = {"user_agent_version": "user_agent_browser_version"}
    found = {name: nested.pop(name) for name in sorted(nested) if isinstance(nested[name], str)}
    for prefix, part in (("geo_", "geo"), ("", "header"), ("", "uri"), ("user_agent_", "user_agent")):
        found |= {named.get(prefix + name, prefix + name): text for name, text in nested.pop(part, {}).items()}
    assert not nested
    top = ("document_id", "submission_timestamp", "sample_id")
    return found | {name: str(content[name]) for name in content if name in top or name.startswith("normalized_")}


def uri_of(number: int) -> str:
    """The URI of the hgpush with this number."""
    return f"/submit/eng-workflow/hgpush/1/{uuid.UUID(int=number)}"


def a_raw(body: Any = None, **attributes: str) -> RawMessage:
    """A raw message, by default a valid hgpush from Berlin; bytes are the payload as it is."""
    if body is None:
        body = a_document()
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    known = {
        "submission_timestamp": "2026-11-23T14:00:00.123456Z",
        "uri": HGPUSH,
        "protocol": "HTTP/1.1",
        "method": "POST",
        "remote_addr": "10.0.0.7",
        "x_forwarded_for": f"198.51.100.1, {BERLIN}",
        "user_agent": "mercurial/proto-1.0 (Mercurial 7.2)",
        "host": "edge.example",
    }
    return RawMessage(payload, {**known, **attributes})


def write_geo(file: Path) -> Path:
    """A database in MaxMind's format with a few networks."""
    writer = mmdb_writer.MMDBWriter(6, "GeoIP2-City", languages=["en"], ipv4_compatible=True)
    networks: Mapping[str, Any] = {
        "81.2.69.160/27": _place("DE", ("BE",), _BERLIN_ID, "Berlin"),
        "81.2.69.192/28": _place("DE", ("BY",), _VILLAGE_ID, "Village"),
        "2.125.160.216/29": _place("GB", ("ENG", "WBK"), None, None),
        "2001:218::/32": _place("JP", (), None, None),
    }
    for network, place in networks.items():
        writer.insert_network(IPSet([network]), place)
    writer.to_db_file(str(file))
    return file


def write_cities(file: Path) -> Path:
    """GeoNames' list of cities, with one."""
    columns = [""] * 19
    columns[0], columns[1], columns[14] = str(_BERLIN_ID), "Berlin", "3426354"
    file.write_text("\t".join(columns) + "\n")
    return file


def _place(country: str, subdivisions: tuple[str, ...], city: int | None, name: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"country": {"iso_code": country}}
    if subdivisions:
        found["subdivisions"] = [{"iso_code": code} for code in subdivisions]
    if city is not None:
        found["city"] = {"geoname_id": city, "names": {"en": name}}
    return found
