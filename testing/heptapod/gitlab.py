# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of GitLab's internal API that Heptapod's hooks call: it records each call and allows it, or refuses the next push."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs


class GitLab:
    """Answers on a free port of loopback while entered.

    `calls` are the names of the calls and their arguments, oldest first. While `refuses` has a text, no push is allowed, and the
    pusher reads it.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.refuses: str | None = None
        gitlab = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                arguments = {key: values[0] for key, values in parse_qs(self.rfile.read(length).decode()).items()}
                answer = json.dumps(gitlab.answer(self.path.rpartition("/")[2], arguments)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, name: str, arguments: dict[str, str]) -> dict[str, object]:
        """Record the call; what GitLab says."""
        self.calls.append((name, arguments))
        if name == "allowed":
            return {"status": self.refuses is None, "message": self.refuses}
        return {"messages": []}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
