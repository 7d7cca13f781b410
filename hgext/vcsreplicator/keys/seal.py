# SPDX-License-Identifier: GPL-2.0-or-later
"""The seal of an ack, a header that only its mirror can make. Pure.

By it the aggregator knows that the mirror itself wrote the record. It authenticates (HMAC-SHA-256) the record's key and the bytes
of its value, or that it has none; the *epoch*, which is the version of the roster at which the mirror got its first key; and a
*serial*, which grows with each record of a mirror. So a seal is worth nothing under another key or value, for an earlier life of a
mirror of this name, or once a newer record of its key is known.

Header `seal`: `1 EPOCH SERIAL PAIR:MAC …`, with one MAC for each key of an aggregator. PAIR names the two public keys from which
both sides made the secret key of the MAC: the first 16 hexadecimal digits of SHA-256 of the mirror's key, a blank and the
aggregator's. The MAC has 64 hexadecimal digits, over:

    "vcsreplicator ack 1", a zero byte, EPOCH and SERIAL (8 bytes each), the length of the key (4 bytes), the key,
    a byte 1 and the value, or a byte 0 for a tombstone
"""

import base64
import binascii
import hashlib
import hmac
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from ..words.shape import LARGEST

# The header of a sealed record, and the most characters of one.
SEAL = "seal"
_SEAL_LIMIT = 1000
_LABEL = b"vcsreplicator ack 1\0"
_NUMBERS = struct.Struct(">QQI")
_FORM = re.compile(r"1 ([0-9]{1,19}) ([0-9]{1,19})((?: [0-9a-f]{16}:[0-9a-f]{64})+)\Z")

# What precedes a public key of X25519, written in base64.
PUBLIC_KEY = "x25519:"
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SealKey:
    """A secret that a mirror and an aggregator share; `pair` names their public keys."""

    pair: str
    secret: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """A seal as it was read; `macs` are by pair."""

    epoch: int
    serial: int
    macs: Mapping[str, str]


def name_pair(mirror: str, aggregator: str) -> str:
    """Return the name of two public keys."""
    return hashlib.sha256(f"{mirror} {aggregator}".encode("ascii")).hexdigest()[:16]


def decode_public_key(text: str, prefix: str = PUBLIC_KEY) -> bytes | None:
    """Return the bytes of a public key; None if the text is none."""
    if not text.startswith(prefix):
        return None
    try:
        found = base64.b64decode(text.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if len(found) == _KEY_BYTES and encode_public_key(found, prefix) == text else None


def encode_public_key(key: bytes, prefix: str = PUBLIC_KEY) -> str:
    return prefix + base64.b64encode(key).decode("ascii")


def make_seal(keys: tuple[SealKey, ...], *, key: str, value: bytes | None, epoch: int, serial: int) -> str:
    """Return the header that seals a record of `acks` for each of these keys."""
    text = _make_text(key, value, epoch, serial)
    macs = " ".join(f"{each.pair}:{_compute_mac(each, text)}" for each in keys)
    return f"1 {epoch} {serial} {macs}"


def read_seal(header: str | None) -> Seal | None:
    """Read a seal; return None if there is none, or one of an unknown form."""
    found = None if header is None or len(header) > _SEAL_LIMIT else _FORM.match(header)
    if found is None:
        return None
    epoch, serial = int(found[1]), int(found[2])
    if max(epoch, serial) > LARGEST:
        return None
    pairs = (each.partition(":") for each in found[3].split())
    return Seal(epoch=epoch, serial=serial, macs={pair: mac for pair, _, mac in pairs})


def is_sealed(seal: Seal, keys: Mapping[str, SealKey], *, key: str, value: bytes | None) -> bool:
    """Return whether a record has this seal by one of these keys, which are by pair."""
    text = None
    for pair, mac in seal.macs.items():
        if (known := keys.get(pair)) is not None:
            text = text or _make_text(key, value, seal.epoch, seal.serial)
            if hmac.compare_digest(_compute_mac(known, text), mac):
                return True
    return False


def _make_text(key: str, value: bytes | None, epoch: int, serial: int) -> bytes:
    name = key.encode("utf-8", "surrogateescape")
    return b"".join((_LABEL, _NUMBERS.pack(epoch, serial, len(name)), name, b"\0" if value is None else b"\1" + value))


def _compute_mac(key: SealKey, text: bytes) -> str:
    return hmac.digest(key.secret, text, "sha256").hex()
