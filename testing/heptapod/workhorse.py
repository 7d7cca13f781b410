# SPDX-License-Identifier: GPL-2.0-or-later
"""Heptapod's WSGI application on a port of loopback, run by Heptapod's Python; in front of it what GitLab Workhorse would say.

    python workhorse.py PORT FILE

`FILE` is a JSON object, read again for each request: the headers for each path.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from heptapod.wsgi import hgserve


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(environ: dict[str, Any], respond: Any) -> Iterable[bytes]:
    """Answer as Heptapod does, for the user whom Workhorse would have authenticated."""
    headers = json.loads(Path(sys.argv[2]).read_text())
    for name, value in headers.get(environ["PATH_INFO"].partition(".hg")[0], {}).items():
        environ[f"HTTP_X_HEPTAPOD_{name}"] = value
    body: Iterable[bytes] = hgserve(environ, respond)
    return body


if __name__ == "__main__":
    with make_server("127.0.0.1", int(sys.argv[1]), serve, handler_class=_Quiet) as server:
        server.serve_forever()
