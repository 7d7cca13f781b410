# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients: users of the broker with a token, an owner, and limited rights.

A client has rights to its own names only. The owner's address is a global parameter of the broker: it is
exported, replicated and restored with the users. There is one for each client, because two operators who change one list would
overwrite each other. A kill amid a change leaves a client with fewer rights, never with more; the same command
completes the change.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hgext.vcsreplicator.words.errors import Refused, quote_value

from .management import Management
from .settings import ADDRESS

# Bytes of chance in a token.
TOKEN_BYTES = 32

# A client's name: it becomes part of names, of an expression, and of a path.
_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_OWNED = re.compile(r"(?:exchange|queue)/([^/]+)/.")
_OWNER = "vcsreplicator-guardian-owner."


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientUser:
    """A client; `is_confined` if it has exactly the rights of the specification."""

    name: str
    owner: str
    is_user: bool
    is_confined: bool


def permissions(client: str) -> dict[str, str]:
    """Return the three expressions that RabbitMQ compares names with.

    RabbitMQ asks `configure` to declare and delete; `write` to publish, for the queue of a binding, and for where dead letters
    and unroutable messages go; `read` to consume, and for the exchange of a binding. The default exchange, `amq.` names and names
    that the broker makes up match none of them. The expressions cannot tell an exchange from a queue.
    """
    name = re.escape(client)
    own = rf"^(exchange|queue)/{name}/.+\z"
    return {"configure": own, "write": own, "read": rf"^(exchange|queue/{name})/.+\z"}


def client_of(name: str) -> str | None:
    """Return the client whose exchange or queue has this name; None if no client's."""
    found = _OWNED.match(name)
    return found[1] if found else None


def is_queue_name(name: str) -> bool:
    """Return whether the specification lets a queue have this name."""
    return name.startswith("queue/") and client_of(name) is not None


class Clients:
    """The clients of one virtual host."""

    def __init__(self, management: Management, vhost: str) -> None:
        self._management, self._vhost = management, vhost

    def add(self, client: str, owner: str, keep: Callable[[str], None]) -> str:
        """Make a client and return its token, which `keep` gets first.

        Raises Refused if the name is taken, or if the name or the owner is malformed.
        """
        if not _CLIENT.match(client):
            raise Refused(f"CLIENT: expected letters, digits, dots, hyphens and underscores, got {quote_value(client)}")
        _check_address(owner)
        if self._management.get("users", client) is not None:
            raise Refused(f"the broker has a user {client!r} already; `user token` makes a new token for a client")
        self._write_owner(client, owner)
        return self._give_token(client, keep)

    def renew_token(self, client: str, keep: Callable[[str], None]) -> str:
        """Replace token and permissions; return the token, which `keep` gets first."""
        self.owner(client)
        return self._give_token(client, keep)

    def change_owner(self, client: str, owner: str) -> None:
        """Change who gets the mails about the client's queues."""
        _check_address(owner)
        self.owner(client)
        self._write_owner(client, owner)

    def owner(self, client: str) -> str:
        """Return the owner's address, "" where the parameter holds none.

        Raises Refused for a client that is not ours.
        """
        found = self._management.get("global-parameters", _OWNER + client)
        if found is None:
            raise Refused(f"{client!r} is not a client of the guardian; `user list` shows those")
        return _read_address(found)

    def remove(self, client: str) -> None:
        """Remove the client's user and owner.

        The broker closes the client's connections. The client's exchanges and queues stay.
        """
        self.owner(client)
        self._management.delete("users", client)
        self._management.delete("global-parameters", _OWNER + client)

    def owners(self) -> dict[str, str]:
        """Return the owner of each client, "" where the parameter holds no address."""
        found = self._management.rows("global-parameters", columns="name,value")
        names = ((str(each.get("name", "")), each) for each in found)
        return {name.removeprefix(_OWNER): _read_address(each) for name, each in names if name.startswith(_OWNER)}

    def all(self) -> list[ClientUser]:
        users = {str(each.get("name")): each for each in self._management.rows("users", columns="name,tags")}
        columns = "user,configure,write,read"
        granted = self._management.rows("vhosts", self._vhost, "permissions", columns=columns)
        rights = {str(each.get("user")): each for each in granted}
        return [
            ClientUser(
                name=name,
                owner=owner,
                is_user=name in users,
                is_confined=not users.get(name, {}).get("tags")
                and all(rights.get(name, {}).get(key) == value for key, value in permissions(name).items()),
            )
            for name, owner in sorted(self.owners().items())
        ]

    def _write_owner(self, client: str, owner: str) -> None:
        self._management.put("global-parameters", _OWNER + client, content={"value": {"owner": owner}})

    def _give_token(self, client: str, keep: Callable[[str], None]) -> str:
        token = secrets.token_urlsafe(TOKEN_BYTES)
        keep(token)
        self._management.put("users", client, content={"password": token, "tags": ""})
        self._management.put("permissions", self._vhost, client, content=permissions(client))
        return token


def _check_address(owner: str) -> None:
    if not ADDRESS.match(owner):
        raise Refused(f"owner: expected a mail address, got {quote_value(owner)}")


def _read_address(parameter: object) -> str:
    value = parameter.get("value") if isinstance(parameter, Mapping) else None
    owner = value.get("owner") if isinstance(value, Mapping) else None
    return owner if isinstance(owner, str) and ADDRESS.match(owner) else ""
