# SPDX-License-Identifier: GPL-2.0-or-later
"""Addresses that a webhook may reach: no request goes into our own network.

The name is resolved here, every address of it is checked against the rules, and the connection goes to the address that was
checked, not to the name.
"""

import ipaddress
import socket
from collections.abc import Sequence

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

# Reserved or formerly private networks that Python calls global; local NAT64, and Teredo: both lead to any IPv4.
_NOT_PUBLIC = [
    ipaddress.ip_network(each)
    for each in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20", "fec0::/10", "64:ff9b:1::/48", "2001::/32")
]


class Forbidden(Exception):
    """No webhook may reach this address."""


def allowed(address: IpAddress, networks: Sequence[IpNetwork]) -> bool:
    """Return whether this address is public, or in a network of the configuration."""
    inner = _unwrap_address(address)
    if _is_in(inner, networks):
        return True
    closed = inner.is_multicast or inner.is_reserved or inner.is_unspecified or _is_in(inner, _NOT_PUBLIC)
    return inner.is_global and not closed


def _is_in(address: IpAddress, networks: Sequence[IpNetwork]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _unwrap_address(address: IpAddress) -> IpAddress:
    """Return the IPv4 address that an IPv6 one stands for, else the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def resolve(host: str, port: int, networks: Sequence[IpNetwork]) -> list[str]:
    """Return the addresses of the host, best first.

    Raises Forbidden if any of them is not allowed, OSError if the host has none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
    for each in addresses:
        if not allowed(ipaddress.ip_address(each), networks):
            raise Forbidden(f"{host} has the address {each}, which is not public and not in `allow`")
    return addresses
