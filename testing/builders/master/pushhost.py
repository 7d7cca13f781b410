# SPDX-License-Identifier: GPL-2.0-or-later
"""A host that answers json-pushes of any number of repositories: small and quick, so that its clients are measured."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qs, urlsplit

Pushes = dict[int, list[str]]


def a_node(*words: object) -> str:
    """40 hexadecimal digits that depend on the words alone."""
    return hashlib.sha1("/".join(map(str, words)).encode()).hexdigest()


@dataclass(slots=True)
class HostReply:
    """What to answer instead."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class PushHost:
    """`repositories` has the pushes of each by their ids; `limit` cuts answers and adds a Link; `instead` answers by itself."""

    def __init__(self) -> None:
        self.repositories: dict[str, Pushes] = {}
        self.limit: int | None = None
        self.gives_link = True
        self.instead: Callable[[str], HostReply | None] = lambda target: None
        self.targets: list[str] = []
        self.asked_headers: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self.at_once = self.most_at_once = 0
        self.delay = 0.0
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="push-host", daemon=True)

    def push(self, name: str, *, id: int | None = None, changesets: int = 1) -> int:
        """Add a push; return its id."""
        pushes = self.repositories.setdefault(name, {})
        number = id or max(pushes, default=0) + 1
        pushes[number] = [a_node(name, number, index) for index in range(changesets)]
        return number

    def url(self, name: str) -> str:
        """Return the URL of a repository."""
        return f"http://127.0.0.1:{self.port}/{name}"

    def reply(self, target: str, etag: str | None) -> HostReply:
        """Decide the answer to a question."""
        instead = self.instead(target)
        if instead is not None:
            return instead
        parts = urlsplit(target)
        pushes = self.repositories.get(parts.path.removesuffix("/json-pushes").strip("/"))
        if pushes is None:
            return HostReply(status=404)
        query = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
        after, to = query.get("startID", 0), query.get("endID", 2**60)
        last = max(pushes, default=0)
        tag = f'W/"{last}-{len(pushes)}-{after}-{pushes.get(last, [""])[-1]}"'
        if etag == tag:
            return HostReply(status=304, headers={"ETag": tag})
        found = [number for number in sorted(pushes) if after < number <= to]
        headers = {"ETag": tag, "Content-Type": "application/json"}
        if self.limit is not None and len(found) > self.limit:
            found = found[: self.limit]
            if self.gives_link:
                headers["Link"] = f'</{parts.path.strip("/")}?version=2&startID={found[-1]}>; rel="next"'
        entries = {str(n): {"changesets": pushes[n], "date": 1456826400 + n, "user": "dana"} for n in found}
        return HostReply(headers=headers, body=json.dumps({"lastpushid": last, "pushes": entries}).encode())

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                named = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                etag = next((line[15:] for line in lines if line.lower().startswith("if-none-match: ")), None)
                assert "host" in named
                target = lines[0].split(" ")[1]
                self.targets.append(target)
                self.asked_headers.append(named)
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                if self.delay:
                    await asyncio.sleep(self.delay)
                reply = self.reply(target, etag)
                self.at_once -= 1
                self.statuses.append(reply.status)
                headers = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
                start = f"HTTP/1.1 {reply.status} x\r\n{headers}Content-Length: {len(reply.body)}\r\n\r\n"
                writer.write(start.encode() + reply.body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._converse, "127.0.0.1", 0, backlog=1000))
        self.port = int(server.sockets[0].getsockname()[1])
        self._listening.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
