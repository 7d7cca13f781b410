# SPDX-License-Identifier: GPL-2.0-or-later
"""RabbitMQ's management API over HTTP.

Answers are limited in time and size, and lists are read by pages. What the broker answers is untrusted, since names and arguments
in it come from its clients. Errors: `Unavailable` if the API does not answer, `BadConfig` if the other side is not a management API
or refuses the user, `Refused` if the API refuses the request.
"""

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import urllib3

from hgext.vcsreplicator.words.errors import BadConfig, Refused, Unavailable, visible
from hgext.vcsreplicator.words.version import VERSION

from ...clients.authorities import trusting
from ...clients.http.connection import CONNECT_PATIENCE, ConnectionPool, TlsPool, read_in_time
from .settings import GuardianSettings

# Seconds until an answer must be whole; the broker gathers lists from all its nodes.
ANSWER_PATIENCE = 30.0

# Bytes of an answer.
LARGEST_ANSWER = 16 * 1024 * 1024

# Rows of a page.
PAGE = 500
# Most pages that are read: two million queues.
MOST_PAGES = 4000

ENABLE = "enable it on the broker with `rabbitmq-plugins enable rabbitmq_management`"


class Management:
    """The API that `management_url` names; errors name the configuration `file`."""

    def __init__(self, settings: GuardianSettings, file: str) -> None:
        """Read the settings; open no connection yet.

        Raises BadConfig if the password cannot be read, Unavailable if `ca_file` cannot be read.
        """
        parts = urlsplit(settings.management_url)
        self._key = f"{file}: guardian.management-url"
        self._user = unquote(parts.username or "guest")
        self._base = parts.path.rstrip("/") + "/api/"
        password = (
            settings.password.read(f"{file}: guardian.password")
            if settings.password
            else unquote(parts.password or "guest")
        )
        self._headers = {
            "authorization": "Basic " + base64.b64encode(f"{self._user}:{password}".encode()).decode(),
            "content-type": "application/json",
            "user-agent": f"vcsreplicator/{VERSION}",
        }
        host = parts.hostname or ""
        self._pool: urllib3.HTTPConnectionPool
        if parts.scheme == "https":
            self._pool = TlsPool(host, parts.port or 15671, ssl_context=trusting(settings.ca_file))
        else:
            self._pool = ConnectionPool(host, parts.port or 15672)
        self._address = f"{host}:{self._pool.port}"

    def check(self, vhost: str) -> None:
        """Raise BadConfig unless the guardian can work with this API.

        It must be a management API, the user an administrator, and the virtual host must exist.
        """
        overview = self.get("whoami")
        tags = overview.get("tags") if isinstance(overview, Mapping) else None
        names = tags.split(",") if isinstance(tags, str) else tags
        if not isinstance(names, list):
            raise self._is_something_else()
        if "administrator" not in names:
            raise BadConfig(f"{self._key}: expected a user with the tag administrator, {self._user!r} lacks it")
        if self.get("vhosts", vhost) is None:
            raise BadConfig(self._key.replace("management", "broker") + f": the broker has no virtual host {vhost!r}")

    def get(self, *path: str, **query: str | int) -> Any:
        """Return what the broker says at this path, None if there is no such thing."""
        return self._request("GET", path, query)

    def rows(self, *path: str, columns: str) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a list, page by page, in the order of their names."""
        for page in range(1, MOST_PAGES + 1):
            found = self.get(*path, page=page, page_size=PAGE, sort="name", columns=columns)
            if found is None:
                return
            items, pages = found, 1  # not every list has pages
            if isinstance(found, Mapping):
                items, pages = found.get("items"), found.get("page_count", 0)
            is_list = isinstance(items, list) and all(isinstance(each, Mapping) for each in items)
            if not is_list or type(pages) is not int:
                raise self._is_something_else()
            yield from items
            if page >= pages:
                return

    def put(self, *path: str, content: Mapping[str, Any]) -> None:
        """Create or replace what is at this path."""
        if self._request("PUT", path, {}, content) is None:
            raise Refused(f"{self._address}: there is no {'/'.join(path[:-1])} to write {path[-1]!r} in")

    def delete(self, *path: str) -> bool:
        """Delete what is at this path; return whether it was there."""
        return self._request("DELETE", path, {}) is not None

    def close(self) -> None:
        self._pool.close()

    def _request(
        self, method: str, path: tuple[str, ...], query: Mapping[str, Any], content: Mapping[str, Any] | None = None
    ) -> Any:
        target = self._base + "/".join(quote(part, safe="") for part in path)
        if query:
            target += "?" + urlencode(query)
        body = None if content is None else json.dumps(content).encode()
        status, data = self._send_request(method, target, body)
        if status == 404 and _parse(data) is not None:
            return None
        if status == 401:
            raise BadConfig(
                f"{self._key}: {self._address} refuses the user {self._user!r} ({_read_reason(data)}): expected the password"
                " of a user with the tag administrator"
            )
        if status >= 500:
            raise Unavailable(f"{self._address}: the management API answers {status}: {_read_reason(data)}")
        if status in (200, 201, 204):
            found = _parse(data) if data else {}
            if found is not None:
                return found
        if 400 <= status < 500 and status != 404:
            raise Refused(f"{self._address}: {method} {'/'.join(path)}: {status}: {_read_reason(data)}")
        raise self._is_something_else()

    def _send_request(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        """Send one request and return status and body of the answer."""
        try:
            response = self._pool.urlopen(
                method,
                target,
                body=body,
                headers=self._headers,
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=urllib3.Timeout(connect=CONNECT_PATIENCE, read=ANSWER_PATIENCE),
            )
            data = read_in_time(response, LARGEST_ANSWER + 1)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            # RemoteDisconnected is a BadStatusLine too, but then there was no answer.
            causes = [each for each in _list_causes(error) if not isinstance(each, http.client.RemoteDisconnected)]
            if any(isinstance(each, http.client.BadStatusLine) for each in causes):  # an answer that is not HTTP
                raise self._is_something_else() from error
            if any(isinstance(each, ssl.SSLCertVerificationError) for each in causes):
                raise BadConfig(
                    f"{self._key}: {self._address}: {_describe_cause(error)}: expected a certificate for this host by an authority"
                    " in guardian.ca-file, or of the system"
                ) from error
            hint = (
                f"; if the broker runs, {ENABLE}"
                if any(isinstance(each, ConnectionRefusedError) for each in causes)
                else ""
            )
            raise Unavailable(
                f"{self._address}: the management API does not answer: {_describe_cause(error)}{hint}"
            ) from error
        if len(data) > LARGEST_ANSWER:
            response.close()
            raise Unavailable(f"{self._address}: an answer of more than {LARGEST_ANSWER} bytes to {target}")
        return response.status, data

    def _is_something_else(self) -> BadConfig:
        return BadConfig(f"{self._key}: {self._address} answers, but is not RabbitMQ's management API; {ENABLE}")


def _parse(data: bytes) -> Any:
    """Return the answer's JSON; None if it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _read_reason(data: bytes) -> str:
    found = _parse(data)
    text = str(found.get("reason") or found.get("error")) if isinstance(found, Mapping) else "no reason"
    return visible(text)[:200]


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        yield from (each for each in error.args if isinstance(each, BaseException))
        error = error.__cause__ or error.__context__


def _describe_cause(error: BaseException) -> str:
    innermost = list(_list_causes(error))[-1]
    return visible(str(innermost) or type(innermost).__name__)[:200]
