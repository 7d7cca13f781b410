# SPDX-License-Identifier: GPL-2.0-or-later
"""The pages of a folder of repositories, asked without a network.

hgweb's settings are for the whole process, so the WSGI application has a process of its own.
"""

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from testing.warm_hg import shared_hg

PROGRAM = """
import base64, io, json, sys
from wsgiref.util import setup_testing_defaults
from hgext.vcsreplicator.hg.serving.web import application
from hgext.vcsreplicator.service import configure_logging
configure_logging("web")
web = application(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    given = json.loads(line)
    body = base64.b64decode(given["body"])
    environ = {"QUERY_STRING": given["query"], "REMOTE_ADDR": "127.0.0.1", **given["members"]}
    environ["PATH_INFO"] = given["path"].encode("utf-8", "surrogateescape").decode("latin-1")
    if body:
        environ |= {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
    setup_testing_defaults(environ)
    answer, written = [], []
    def start(status, headers, failure=None):
        if failure and written:
            raise failure[1]
        answer.append((status, headers))
        return written.append
    failure = None
    try:
        for piece in web(environ, start):
            written.append(piece)
    except Exception as problem:
        failure = repr(problem)
    status, headers = answer[-1] if answer else ("500", [])
    said = base64.b64encode(b"".join(written)).decode()
    print(json.dumps([int(status[:3]), dict(headers), said, failure]), flush=True)
"""


class Answer(NamedTuple):
    """What a client gets; `failure` is the exception that ended the body early."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    failure: str | None


class AskedPages:
    """The pages of the repositories below `root`, with this hgrc; `log` has the lines of the service."""

    def __init__(self, program: subprocess.Popen[str], log: Path) -> None:
        self._program, self.log = program, log

    def get(self, path: str, query: str = "", *, body: bytes = b"", **members: Any) -> Answer:
        """Ask for a page; with a body by POST. `members` go into the environment of the request."""
        given = {"path": path, "query": query, "body": base64.b64encode(body).decode(), "members": members}
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        print(json.dumps(given), file=self._program.stdin, flush=True)
        status, headers, said, failure = json.loads(self._program.stdout.readline())
        return Answer(status, headers, base64.b64decode(said), failure)

    def alarms(self) -> list[dict[str, Any]]:
        """The lines of the log for which an operator must act."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["level"] == "error"]


@contextmanager
def asked_pages(root: Path, hgrc: str) -> Iterator[AskedPages]:
    """Serve the repositories below `root` with this hgrc, until the block ends."""
    file, log = root.parent / "pages.hgrc", root.parent / "pages.log"
    file.write_text(hgrc)
    environment = {**os.environ, "HGRCPATH": str(file)}
    with (
        log.open("w") as lines,
        subprocess.Popen(
            [Path(shared_hg(environment)).with_name("python"), "-c", PROGRAM, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=lines,
            text=True,
            env=environment,
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n", log.read_text()
        yield AskedPages(program, log)
        program.stdin.close()
