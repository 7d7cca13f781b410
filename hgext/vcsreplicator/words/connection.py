# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a push came from, if the master records it: in a header of log records, never in their values.

The header stands beside the frame of an event, so that the event's bytes, id and digest do not depend on it, programs that do not
know it pass it over, and whatever keeps, shows or delivers the value of a record cannot hold it. The relay writes it to `events`,
the aggregator carries it to `pending` and `notices`, and destinations that take connections read it there. A golden file in
`tests/words` fixes the format.
"""

from collections.abc import Mapping
from types import MappingProxyType

from .errors import MalformedEvent
from .shape import extensible, from_json, to_json
from .value import Value

# The header of a record; its value is canonical JSON of a PushConnection, ASCII.
CONNECTION = "connection"

# What a record without a connection carries.
NOTHING: Mapping[str, str] = MappingProxyType({})

# Characters of a header; what a master writes is far shorter.
HEADER_LIMIT = 32 * 1024

# Characters of an address, of a list of addresses, and of a client's name.
ADDRESS_LIMIT, FORWARDED_LIMIT, CLIENT_LIMIT = 100, 1000, 500


@extensible
class PushConnection(Value):
    """What a push carries of its pusher: each member is None if it is not known.

    `address` is the other end of the connection, `forwarded` what proxies say of it (X-Forwarded-For), `client` the user agent.
    """

    address: str | None = None
    forwarded: str | None = None
    client: str | None = None


def connection_of(*, address: bytes, forwarded: bytes, client: bytes) -> PushConnection | None:
    """Return what is known, each cut to its limit; bytes that are no UTF-8 become U+FFFD. None if nothing is known."""
    known = PushConnection(
        address=_decode(address)[:ADDRESS_LIMIT] or None,
        forwarded=_last_entries(_decode(forwarded)) or None,
        client=_decode(client)[:CLIENT_LIMIT] or None,
    )
    return None if known == PushConnection() else known


def connection_headers(connection: PushConnection | None) -> Mapping[str, str]:
    """Return the headers that carry a connection: one, or none."""
    return NOTHING if connection is None else {CONNECTION: to_json(connection).decode("ascii")}


def carried(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return of a record's headers those that go along with its event."""
    header = headers.get(CONNECTION)
    return NOTHING if header is None or len(header) > HEADER_LIMIT else {CONNECTION: header}


def read_connection(headers: Mapping[str, str]) -> PushConnection | None:
    """Read the connection in a record's headers; None if there is none, or none that can be read."""
    header = carried(headers).get(CONNECTION)
    try:
        return None if header is None else from_json(PushConnection, header.encode("utf-8", "replace"))
    except MalformedEvent:
        return None


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "replace").strip()


def _last_entries(forwarded: str) -> str:
    """Cut a list of addresses at its left, where a client can write anything, between two entries."""
    if len(forwarded) <= FORWARDED_LIMIT:
        return forwarded
    return forwarded[-FORWARDED_LIMIT:].partition(",")[2].strip()
