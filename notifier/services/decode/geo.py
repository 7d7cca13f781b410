# SPDX-License-Identifier: GPL-2.0-or-later
"""Places of addresses, from a database in MaxMind's format.

An address that does not parse, or is not in the database, is no error: it has no place.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import maxminddb

from hgext.vcsreplicator.words.errors import BadConfig

# Columns of GeoNames' list of cities.
_ID, _POPULATION, _COLUMNS = 0, 14, 19


@dataclass(frozen=True, slots=True, kw_only=True)
class GeoLookup:
    """The places in `database`; a city only if `cities` has its GeoNames id.

    `load_balancers` is the number of entries at the right end of `x_forwarded_for` that our own proxies wrote. The next entry to
    the left is the client's address.
    """

    database: maxminddb.Reader
    cities: frozenset[int] = frozenset()
    load_balancers: int = 0

    def find(self, attributes: Mapping[str, str]) -> dict[str, str]:
        """Return the `geo_` attributes of a message; none if its address is unknown."""
        address = client_address(attributes, self.load_balancers)
        if address is None:
            return {}
        try:
            found = self.database.get(address)
        except ValueError:  # an IPv6 address, and a database of IPv4
            return {}
        return _attributes_of(found, self.cities) if isinstance(found, dict) else {}


def client_address(attributes: Mapping[str, str], load_balancers: int) -> str | None:
    """Return the client's address; None if there is none that parses.

    A client may write anything at the left of `x_forwarded_for`, so entries are counted from the right. Without that header the
    client's address is `remote_addr`, from which the edge got the request.
    """
    text = attributes.get("remote_addr", "")
    if "x_forwarded_for" in attributes:
        entries = attributes["x_forwarded_for"].split(",")
        text = entries[-1 - load_balancers] if len(entries) > load_balancers else ""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address)))  # without the zone
    return str(address)


def open_geo(database: str, cities: str | None, population: int, load_balancers: int) -> GeoLookup:
    """Open database and list of cities; BadConfig names the key and the file."""
    try:
        reader = maxminddb.open_database(database)
    except (OSError, ValueError, maxminddb.InvalidDatabaseError) as error:
        raise BadConfig(f"decode.geoip: {database}: expected a database in MaxMind's format") from error
    known = frozenset[int]() if cities is None else read_cities(cities, population)
    return GeoLookup(database=reader, cities=known, load_balancers=load_balancers)


def read_cities(file: str, population: int) -> frozenset[int]:
    """Read the ids of the cities with at least `population` from GeoNames' list.

    Raises BadConfig, which names the file, and the line if one is wrong.
    """
    found, number = set(), 0
    try:
        with open(file, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007
                columns = line.rstrip("\n").split("\t")
                if len(columns) != _COLUMNS:
                    raise ValueError(f"{len(columns)} columns")
                if int(columns[_POPULATION] or 0) >= population:
                    found.add(int(columns[_ID]))
    except OSError as error:
        raise BadConfig(f"decode.cities: {file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadConfig(f"decode.cities: {file}:{number}: expected a line of GeoNames' list of cities") from error
    return frozenset(found)


def _attributes_of(found: Mapping[str, Any], cities: frozenset[int]) -> dict[str, str]:
    subdivisions = found.get("subdivisions") or []
    city = found.get("city") or {}
    named = {
        "geo_country": (found.get("country") or {}).get("iso_code"),
        "geo_subdivision1": subdivisions[0].get("iso_code") if subdivisions else None,
        "geo_subdivision2": subdivisions[1].get("iso_code") if len(subdivisions) > 1 else None,
        "geo_city": (city.get("names") or {}).get("en") if city.get("geoname_id") in cities else None,
    }
    return {name: text for name, text in named.items() if isinstance(text, str)}
