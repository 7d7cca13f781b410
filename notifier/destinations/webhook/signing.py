# SPDX-License-Identifier: GPL-2.0-or-later
"""Keys that sign a webhook's requests: 24 to 64 bytes, as in Standard Webhooks."""

import base64
import binascii
import secrets as random
from collections.abc import Sequence

from hgext.vcsreplicator.words.errors import BadConfig

from ...clients.secret import Secret

_PREFIX = "whsec_"
_LEAST, _MOST = 24, 64


class WrongKey(BadConfig):
    """A secret can be read and is no key."""


def make_key() -> str:
    """Return the text of a new key."""
    return _PREFIX + base64.b64encode(random.token_bytes(32)).decode()


def read_keys(secrets: Sequence[Secret], where: str = "secrets") -> list[bytes]:
    """Return the present keys in order.

    Raises BadConfig, which names the first secret below `where` that cannot be read; WrongKey if it is no key.
    """
    return [_read_key(secret, f"{where}.{number}") for number, secret in enumerate(secrets)]


def find_wrong(secrets: Sequence[Secret], where: str) -> None:
    """Raise WrongKey for the first secret that is no key.

    Ignores a secret that cannot be read: whether a file can be read may change, and differs between users.
    """
    for number, secret in enumerate(secrets):
        try:
            _read_key(secret, f"{where}.{number}")
        except WrongKey:
            raise
        except BadConfig:
            continue


def _read_key(secret: Secret, where: str) -> bytes:
    try:
        return signing_key(secret.read(where))
    except ValueError as error:
        raise WrongKey(f"{where}: {secret.place}: {error}") from None


def signing_key(text: str) -> bytes:
    """Return the key that a text stands for: base64 behind `whsec_`, else the text.

    Raises ValueError, which quotes nothing of the text, unless the key has 24 to 64 bytes.
    """
    if not text.startswith(_PREFIX):
        key, form = text.encode(), f"{_PREFIX} and base64, or a text, of {_LEAST} to {_MOST} bytes"
    else:
        form = f"base64 of {_LEAST} to {_MOST} bytes behind {_PREFIX}"
        try:
            key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"expected {form}") from None
    if not _LEAST <= len(key) <= _MOST:
        raise ValueError(f"expected {form}, got {len(key)}")
    return key
