# SPDX-License-Identifier: GPL-2.0-or-later
"""The ASGI applications, asked in this process: what a client sends, as a server hands it on, and what holds of every answer."""

import asyncio
import functools
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import structlog
from starlette.routing import Route

from hgext.vcsreplicator.dashboard.acting import ActEndpoint
from hgext.vcsreplicator.dashboard.settings import DashboardRole
from hgext.vcsreplicator.words.clock import SystemClock
from notifier.messages.raw import ORIGIN, from_line, parse_uri
from notifier.services.edge.application import EdgeApplication
from notifier.services.edge.intake import Outcome
from notifier.services.edge.settings import EdgeSettings
from testing.fuzzing import SECONDS
from testing.waiting import eventually
from tests.dashboard.conftest import (
    AS_OPERATOR,
    AS_READER,
    SECRET,
    Installation,
    client,
    fill,
    fill_notifier,
    settings,
    watching,
)

Application = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[MutableMapping[str, Any]], Awaitable[None]]], Any]

# What stands for a new token in an operator's form, which can be sent once.
TOKEN = b"TOKEN"
# Between two pieces in which a body arrives; behind the last one the client is gone.
NEXT, GONE = b"~", b"~gone~"


class Refused(Exception):
    """The application refused a request."""


class Request(NamedTuple):
    """A request, cut as a server cuts it; a missing part is empty."""

    method: str
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @classmethod
    def read(cls, content: bytes) -> "Request":
        head, _, body = content.partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        method, _, rest = line.partition(b" ")
        path, _, query = rest.removesuffix(b" HTTP/1.1").partition(b"?")
        fields = [each.partition(b":") for each in lines]
        headers = [(name.strip().lower(), value.strip()) for name, _, value in fields]
        return cls(method.decode("latin-1"), path, query, headers, body)

    def is_of_h11(self) -> bool:
        """Return whether the dashboard's server would hand this request on."""
        names, values = [name for name, _ in self.headers], [value for _, value in self.headers]
        return (
            all(re.fullmatch(rb"[!#-'*+.^_`|~0-9A-Za-z-]+", word) for word in (self.method.encode(), *names))
            and not any(re.search(rb"[\0\n\r]", value) for value in values)
            and re.fullmatch(rb"[!-~]+", self.path + self.query) is not None
        )

    def has(self, name: str, value: str) -> bool:
        return [each for field, each in self.headers if field == name.encode()] == [value.encode()]

    def is_of_user(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request has the token of these headers, and no other."""
        wanted = headers["authorization"].removeprefix("Bearer ").encode()
        found = [value.partition(b" ") for name, value in self.headers if name == b"authorization"]
        return [(scheme.lower(), token.strip()) for scheme, _, token in found] == [(b"bearer", wanted)]

    @property
    def arrived(self) -> bytes | None:
        """The body; None if the client left before its end."""
        return None if self.body.endswith(GONE) else self.body.replace(NEXT, b"")


@functools.cache
def runner() -> asyncio.Runner:
    return asyncio.Runner()


def ask(application: Application, request: Request) -> tuple[int, dict[bytes, bytes], bytes] | None:
    """Return status, headers and body of the answer; None without one, for a client that is gone.

    Fails for an exception, an answer that is not one of ASGI, a logged error, and more time than a request may take.
    """
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("10.0.0.7", 5),
        "root_path": "",
        "method": request.method,
        "path": unquote(request.path.decode("latin-1")),
        "raw_path": request.path,
        "query_string": request.query,
        "headers": request.headers,
    }
    is_whole = request.arrived is not None
    pieces = [{"type": "http.request", "body": piece, "more_body": True} for piece in request.body.split(NEXT)]
    pieces[-1]["more_body"] = not is_whole
    coming, sent = iter(pieces), list[MutableMapping[str, Any]]()

    async def receive() -> MutableMapping[str, Any]:
        return next(coming, {"type": "http.disconnect"})

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def call() -> None:
        await application(scope, receive, send)

    began = time.process_time()
    with structlog.testing.capture_logs() as lines:
        runner().run(call())
    took = time.process_time() - began
    assert took < SECONDS, f"{took:.1f} s"
    errors = [line for line in lines if line["log_level"] == "error"]
    assert not errors, errors
    if not sent:
        assert not is_whole, "no answer"
        return None
    start, *bodies = sent
    assert start["type"] == "http.response.start"
    assert {each["type"] for each in bodies} <= {"http.response.body"}
    headers, body = dict(start["headers"]), b"".join(each.get("body", b"") for each in bodies)
    for name, value in start["headers"]:
        assert not {0, 10, 13} & {*name, *value}, "a header of several lines"
    if "content-length" in headers and request.method != "HEAD":
        assert int(headers[b"content-length"]) == len(body)
    return start["status"], headers, body


# The edge


class TakenMessages:
    """An intake that takes every message, and keeps the last one until it is read."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    async def submit(self, line: bytes) -> Outcome:
        self.lines.append(line)
        return Outcome.TAKEN

    def is_able(self) -> bool:
        return True


@functools.cache
def edge() -> tuple[EdgeApplication, TakenMessages]:
    intake, made = (
        TakenMessages(),
        EdgeSettings(listen="unused", max_body_bytes=1000, without_id=("eng-workflow.build",)),
    )
    return EdgeApplication(made, intake, SystemClock()), intake  # type: ignore[arg-type]


def ask_edge(content: bytes) -> object:
    """Submit what a client sends: it is taken whole with 200, or nothing is."""
    request, (application, intake) = Request.read(content), edge()
    answer = ask(application, request)
    taken, intake.lines = intake.lines, []
    assert len(taken) == (answer is not None and answer[0] == 200 and request.path.startswith(b"/submit/"))
    for line in taken:
        raw = from_line(line)
        assert raw.payload == request.arrived
        assert ORIGIN not in raw.attributes
        found = parse_uri(raw.attributes["uri"], raw.attributes.get("args", ""), without_id=("eng-workflow.build",))
        assert f"{found.namespace}.{found.type}" not in EdgeSettings(listen="unused").reserved
    if answer is None:
        return None
    assert answer[0] in (200, 400, 403, 404, 405, 411, 413), answer
    return refuse_or_return(answer)


def refuse_or_return(answer: tuple[int, dict[bytes, bytes], bytes]) -> int:
    if answer[0] >= 400:
        raise Refused(answer[2])
    return answer[0]


# The dashboard


class Dashboard(NamedTuple):
    """The application, and what its operators do."""

    application: Any
    installation: Installation
    acts: ActEndpoint


@functools.cache
def dashboard() -> Dashboard:
    """The pages of an installation whose log is not read any more, so that a page costs little."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    installation = fill()
    installation.notifier = fill_notifier(folder)
    with watching(installation.sources) as watcher:
        eventually(lambda: watcher.view is not None)
        made = settings(folder, anonymous=DashboardRole.GUEST, trusted_proxies=("10.0.0.7",), proxy_header="X-User")
        application: Any = client(installation, watcher, made).app
    [acts] = [each for each in application.routes if isinstance(each, Route) and each.methods == {"POST"}]
    return Dashboard(application, installation, acts.endpoint.__self__)  # type: ignore[attr-defined]


def ask_dashboard(content: bytes) -> object:
    """Ask for a page, or act: only operators do, from our own pages, and no guest reads what is private."""
    made = dashboard()
    request = Request.read(content.replace(TOKEN, made.acts.make_token("olga").encode()))
    if not request.is_of_h11():
        raise Refused
    before = len(made.installation.acts)
    answer = ask(made.application, request)
    assert answer is not None or request.arrived is None
    is_operator = request.is_of_user(AS_OPERATOR)
    if len(made.installation.acts) > before:
        del made.installation.acts[:]
        assert is_operator
        assert request.method == "POST"
        assert unquote(request.path.decode("latin-1")) == "/acts"
        [host] = [value.decode("latin-1").lower() for name, value in request.headers if name == b"host"]
        origins = [
            urlsplit(value.decode("latin-1")).netloc.lower() for name, value in request.headers if name == b"origin"
        ]
        assert request.has("sec-fetch-site", "same-origin") or origins == [host]
        assert answer is not None
        assert answer[0] == 303
    if answer is None:
        return None
    status, headers, body = answer
    assert status < 500, answer
    assert status == 400 or b"content-security-policy" in headers
    may_read = is_operator or request.is_of_user(AS_READER) or request.has("x-user", "proxied")
    assert may_read or SECRET.encode() in content or SECRET.encode() not in body
    return refuse_or_return(answer)


def open_page(address: bytes) -> object:
    """Open any address, as a guest, reader or operator."""
    who: dict[str, str] = ({}, AS_READER, AS_OPERATOR)[len(address) % 3]
    headers = "".join(f"{name}: {value}\r\n" for name, value in who.items())
    return ask_dashboard(b"GET " + address + f" HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())


def send_form(body: bytes) -> object:
    """Send an operator's form with any fields."""
    head = "POST /acts HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nAuthorization: {authorization}"
    kind = "Content-Type: application/x-www-form-urlencoded"
    return ask_dashboard(f"{head.format_map(AS_OPERATOR)}\r\n{kind}\r\n\r\n".encode() + body)
