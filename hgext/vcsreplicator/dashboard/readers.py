# SPDX-License-Identifier: GPL-2.0-or-later
"""The users of the dashboard.

Tokens are random and long, so their plain SHA-256 is safe to keep.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..words.errors import BadConfig
from .settings import DashboardRole, DashboardSettings, parse_address

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,100}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")

# Characters of a token that are looked up.
LONGEST_TOKEN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardUser:
    """A line of the file of users.

    Without `digest` only a proxy can name the user. An anonymous user has no name.
    """

    name: str
    role: DashboardRole
    digest: str | None


def read_users(path: str) -> list[DashboardUser]:
    """Read the file of users; raise BadConfig naming the line that is wrong."""
    try:
        with open(path, encoding="utf-8") as opened:
            lines = opened.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"dashboard.users: {path} cannot be read: {error}") from error
    entries = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    users = [_read_user(line, f"{path}:{number}") for number, line in entries]
    digests = [user.digest for user in users if user.digest]
    if len({user.name for user in users}) < len(users) or len(set(digests)) < len(digests):
        raise BadConfig(f"dashboard.users: {path}: expected each name and each token once")
    return users


def _read_user(line: str, where: str) -> DashboardUser:
    # The line itself stays out of the message: it may hold a token by mistake.
    name, role, digest = [*line.strip().split(":"), "", "", ""][:3]
    roles = [each.value for each in DashboardRole]
    if line.count(":") != 2 or not _NAME.match(name) or role not in roles:
        raise BadConfig(f"dashboard.users: {where}: expected NAME:ROLE:SHA256 with a role of {', '.join(roles)}")
    if digest != "-" and not _DIGEST.match(digest):
        raise BadConfig(f"dashboard.users: {where}: expected SHA-256 as 64 lower-case hexadecimal digits, or -")
    return DashboardUser(name=name, role=DashboardRole(role), digest=None if digest == "-" else digest)


class Readers:
    """Decides which user sends a request.

    Raises BadConfig if there is an operator, but no place to record acts.
    """

    def __init__(self, settings: DashboardSettings, users: Sequence[DashboardUser]) -> None:
        self._settings = settings
        self._proxies = frozenset(parse_address(address) for address in settings.trusted_proxies)
        self._by_name = {user.name: user for user in users}
        self._by_digest = {user.digest: user for user in users if user.digest}
        operators = [user.name for user in users if user.role.may_act]
        if operators and settings.acts is None:
            raise BadConfig(f"dashboard.acts: expected the path of a database, as {operators[0]} is an operator")

    def find_user(self, headers: Sequence[tuple[bytes, bytes]], client: str) -> DashboardUser | None:
        """Return the user who sends a request; None if the request may read nothing.

        A request with a wrong token is refused, not anonymous.
        """
        credentials = [value for name, value in headers if name == b"authorization"]
        if credentials:
            token = _find_token(credentials[0]) if len(credentials) == 1 else None
            return None if token is None else self._by_digest.get(hashlib.sha256(token).hexdigest())
        settings = self._settings
        if settings.proxy_header is not None and parse_address(client) in self._proxies:
            wanted = settings.proxy_header.lower().encode()
            named = [value.decode("latin-1") for name, value in headers if name == wanted]
            if named:
                return self._by_name.get(named[0]) if len(named) == 1 else None
        if settings.anonymous is None:
            return None
        return DashboardUser(name="", role=settings.anonymous, digest=None)


def _find_token(credentials: bytes) -> bytes | None:
    """Return the token of `Bearer TOKEN`, or the password of `Basic`."""
    scheme, _, value = credentials.partition(b" ")
    if len(value) > LONGEST_TOKEN:
        return None
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() != b"basic":
        return None
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except binascii.Error:
        return None
