# SPDX-License-Identifier: GPL-2.0-or-later
"""The key pairs of a mirror or an aggregator, and the secret of the two.

Each side makes its own X25519 key pair on its own machine. Only public keys travel, in the roster; from its private key and the
public key of the other, each side computes the same secret, with which the mirror seals its acks (`seal`).

An Ed25519 key is derived from the same private key (HKDF-SHA-256). With it an aggregator or a mirror signs what receivers of
notices verify (`signed`); its public key is `ed25519:BASE64`.

The file has one private key a line, `x25519-private:BASE64`, the newest first, at most two: the second is for the change from one
key to the next.
"""

import base64
import binascii
import functools
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..log.blobs import sync_folder
from ..log.ownership import give_to_owner
from ..words.errors import BadConfig
from ..words.secrecy import read_secret
from .seal import SealKey, decode_public_key, encode_public_key, name_pair

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PRIVATE = "x25519-private:"
_LABEL = b"vcsreplicator seal of acks 1 "
_SIGNING_LABEL = b"vcsreplicator signatures 1"
# What precedes a public key of Ed25519, written in base64.
SIGNING_KEY = "ed25519:"
# Keys of a file, and bytes of one.
MOST = 2
_LIMIT = 4096


@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """A private key with its public key; it never shows the private one."""

    private: bytes
    public: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"

    @property
    def signing(self) -> str:
        """The public key of its signatures."""
        return encode_public_key(_derive_signing(self.private).public_key().public_bytes_raw(), SIGNING_KEY)

    def sign(self, text: str) -> str:
        """Return `KEY SIGNATURE` of an ASCII text: the public key, and base64."""
        signature = _derive_signing(self.private).sign(text.encode("ascii"))
        return f"{self.signing} {base64.b64encode(signature).decode('ascii')}"


def read_keys(file: Path) -> tuple[KeyPair, ...]:
    """Return the keys of a file, the newest first; none if the file is missing.

    Raises BadConfig for a file that cannot be read, or that others may read.
    """
    try:
        lines = read_secret(str(file), _LIMIT).decode("ascii").split()
        return tuple(_read_pair(line) for line in lines[:MOST])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not in the form of its lines"
        raise BadConfig(f"{file}: expected a file of keys that `vcsreplicator key` made: {reason}") from error


def make_key(file: Path) -> KeyPair:
    """Make a key, and put it before the newest one of the file.

    Returns it once it is on the disk. A third key is removed. If the process is killed, the file is as before. Raises BadConfig.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    made = make_pair(X25519PrivateKey.generate().private_bytes_raw())
    write_keys(file, (made, *read_keys(file))[:MOST])
    return made


def write_keys(file: Path, keys: tuple[KeyPair, ...]) -> None:
    """Replace the file by one with these keys. Raises BadConfig."""
    text = "".join(f"{_PRIVATE}{base64.b64encode(each.private).decode('ascii')}\n" for each in keys)
    new = file.with_name(f"{file.name}.new")
    try:
        with suppress(FileNotFoundError):
            new.unlink()
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as out:
            give_to_owner(out.fileno(), file.parent)
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        new.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        raise BadConfig(f"{file}: the key cannot be kept: {error.strerror}") from error


def agree(own: KeyPair, *, mirror: str, aggregator: str) -> SealKey | None:
    """Return the secret of two public keys, of which one belongs to `own`.

    None if the other one is no key, or one with which no secret can be made.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    other = decode_public_key(aggregator if own.public == mirror else mirror)
    if other is None:
        return None
    try:
        shared = X25519PrivateKey.from_private_bytes(own.private).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        return None
    info = _LABEL + f"{mirror} {aggregator}".encode("ascii")
    return SealKey(
        pair=name_pair(mirror, aggregator), secret=HKDF(SHA256(), length=32, salt=None, info=info).derive(shared)
    )


def is_signed(text: str, key: str, signature: str) -> bool:
    """Return whether the holder of a public key signed the text; never raises."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public = decode_public_key(key, SIGNING_KEY)
    if public is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(base64.b64decode(signature, validate=True), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


@functools.lru_cache(maxsize=MOST)
def _derive_signing(private: bytes) -> "Ed25519PrivateKey":
    """Return the key of signatures that belongs to a private key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived = HKDF(SHA256(), length=32, salt=None, info=_SIGNING_LABEL).derive(private)
    return Ed25519PrivateKey.from_private_bytes(derived)


def _read_pair(line: str) -> KeyPair:
    if not line.startswith(_PRIVATE):
        raise ValueError(line[:20])
    try:
        private = base64.b64decode(line.removeprefix(_PRIVATE), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
    return make_pair(private)


def make_pair(private: bytes) -> KeyPair:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return KeyPair(private, encode_public_key(public))
