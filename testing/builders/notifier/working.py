# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories of a plain `hg serve`, messages about their pushes in the queue `hg`, and what a worker recorded of them."""

import json
import os
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import amqp
import kombu
from sqlalchemy import create_engine, text

from testing.warm_hg import shared_hg

# Threads of `hg serve` that import lazily at once answer with 500.
ENVIRONMENT = {**os.environ, "HGRCPATH": "", "HGENCODING": "utf-8", "HGDEMANDIMPORT": "disable"}

_kombu: Any = kombu  # has no types


def hg(*words: str) -> str:
    """Run Mercurial without any configuration."""
    return subprocess.run(
        [shared_hg(ENVIRONMENT), *words], check=True, capture_output=True, text=True, env=ENVIRONMENT
    ).stdout


# Changesets with branch and files.
Changesets = dict[str, tuple[str, list[str]]]


class HgHost:
    """Repositories in a folder, served over HTTP for the length of a block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, list[str]] = {}
        folder.mkdir(exist_ok=True)

    def add(self, name: str, changesets: int, *, more: int = 0) -> list[str]:
        """Make a repository with a branch of its own, and `more` changesets on another; return all, oldest first."""
        hg("init", str(self.folder / name))
        history = f"@{name}+{changesets}" + (f"@{name}more+{more}" if more else "")
        hg("-R", str(self.folder / name), "debugbuilddag", "--new-file", history)
        return self._read(name)

    def extend(self, name: str, changesets: int) -> list[str]:
        """Make a repository longer, and return all of its changesets."""
        path = self.folder / name
        hg("-R", str(path), "update", "--quiet", "tip")
        for number in range(changesets):
            (path / f"more{number}-{os.urandom(4).hex()}").write_text("content")
            hg("-R", str(path), "commit", "--addremove", "--quiet", "--user", "dana", "--message", "more")
        return self._read(name)

    def _read(self, name: str) -> list[str]:
        self.nodes[name] = hg("-R", str(self.folder / name), "log", "-r", "all()", "-T", "{node}\n").split()
        return self.nodes[name]

    def changesets(self, name: str) -> "Changesets":
        """Return what a repository says of its changesets."""
        template = "{dict(node, branch=branch, files=files)|json}\n"
        lines = hg("-R", str(self.folder / name), "log", "-r", "all()", "-T", template).splitlines()
        found = [json.loads(line) for line in lines]
        return {each["node"]: (each["branch"], each["files"]) for each in found}

    def url(self, name: str) -> str:
        """Return the URL of a repository."""
        return f"{self.root}{name}"

    def __enter__(self) -> Self:
        conf = self.folder / "web.conf"
        conf.write_text(f"[paths]\n/ = {self.folder}/*\n[web]\nrefreshinterval = 0\n")
        # Standard output is a pipe of which the first line is read: a log of requests would fill it, and the server stand still.
        listening = ["--port", "0", "--address", "127.0.0.1", "--print-url", "--accesslog", os.devnull]
        self._server = subprocess.Popen(
            [shared_hg(ENVIRONMENT), "serve", "--web-conf", str(conf), *listening],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._server.stdout is not None
        self.root = self._server.stdout.readline().strip()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.kill()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()


class HgQueueSender:
    """Sends messages as the destination and the poller do."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = _kombu.Connection(url, transport_options={"confirm_publish": True})
        self._producer = self._connection.Producer()
        self._queue = _kombu.Queue("hg", durable=True)

    def send(self, number: int, repository: str, pushes: Mapping[int, list[str]], *, source: str = "poll") -> None:
        """Send one message of these pushes."""
        entries = [
            {"id": each, "date": 1456826400 + each, "user": "dana@example.com", "changesets": nodes}
            for each, nodes in pushes.items()
        ]
        body = {"type": "hg-push", "repository_id": number, "pushes": entries}
        self.send_raw(json.dumps(body), {"source": source, "repository": repository})

    def send_raw(self, body: str | bytes, headers: Mapping[str, Any], *, queue: str = "hg") -> None:
        """Send any body."""
        self._producer.publish(
            body,
            routing_key=queue,
            declare=[_kombu.Queue(queue, durable=True)],
            headers=dict(headers),
            content_type="application/json",
            content_encoding="utf-8",
            delivery_mode=2,
        )

    def send_unreadable(self, body: bytes) -> None:
        """Send any body, with a header that Python cannot read: a time after the year 9999."""
        message = amqp.Message(body)
        header = b"\x04timeT" + struct.pack(">Q", 10**13)
        properties = struct.pack(">HI", 0x2000, len(header)) + header
        message._serialize_properties = lambda: properties
        channel = self._connection.default_channel
        self._queue(channel).declare()
        channel.basic_publish(message, routing_key="hg")

    def waiting(self, name: str = "hg") -> int:
        """Return how many messages no receiver has taken."""
        return int(self._connection.default_channel.queue_declare(name, passive=True).message_count)

    def take(self, name: str) -> Any:
        """Return the next message of a queue, None if there is none."""
        channel = self._connection.default_channel
        channel.queue_declare(name, durable=True, auto_delete=False)
        return _kombu.Queue(name, durable=True)(channel).get(no_ack=True)

    def declare_full(self, name: str) -> None:
        """Declare a queue that takes no messages."""
        full = {"x-max-length": 0, "x-overflow": "reject-publish"}
        self._connection.default_channel.queue_declare(name, durable=True, auto_delete=False, arguments=full)

    def delete(self, name: str) -> None:
        """Delete a queue with its messages."""
        self._connection.default_channel.queue_delete(name)

    def close(self) -> None:
        """Close the connection."""
        self._connection.release()


QUESTION = """
    SELECT r.url, p.id, m.position, m.node FROM push_changesets m
    JOIN pushes p ON p.repository_id = m.repository_id AND p.id = m.push_id
    JOIN repositories r ON r.id = p.repository_id
    JOIN changesets c ON c.node = m.node JOIN branches b ON b.id = c.branch_id
    ORDER BY r.url, p.id, m.position
"""


def recorded(url: str) -> dict[str, dict[int, list[str]]]:
    """Return what the database says: repository → push → changesets in order."""
    engine = create_engine(url)
    found: dict[str, dict[int, list[str]]] = {}
    try:
        with engine.connect() as connection:
            for repository, push, _, node in connection.execute(text(QUESTION)):
                found.setdefault(repository, {}).setdefault(push, []).append(node)
    finally:
        engine.dispose()
    return found


OF_CHANGESETS = """
    SELECT c.node, b.name, f.path FROM changesets c
    JOIN branches b ON b.id = c.branch_id LEFT JOIN files f ON f.node = c.node
    ORDER BY c.node, f.position
"""


def recorded_changesets(url: str) -> Changesets:
    """Return what the database says of all changesets."""
    engine = create_engine(url)
    found: Changesets = {}
    try:
        with engine.connect() as connection:
            for node, branch, path in connection.execute(text(OF_CHANGESETS)):
                files = found.setdefault(node, (branch, []))[1]
                files += [] if path is None else [path]
    finally:
        engine.dispose()
    return found


def find_children() -> set[int]:
    """The processes that this one has started, of which servers for warm starts are some."""
    return {int(child) for file in Path("/proc/self/task").glob("*/children") for child in file.read_text().split()}
