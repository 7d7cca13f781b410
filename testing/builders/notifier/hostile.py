# SPDX-License-Identifier: GPL-2.0-or-later
"""A host that answers `hg pull` with what it likes, and can leave an answer without an end."""

import struct
import threading
import zlib
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, quote, urlsplit

_BUNDLE2 = "HG20\nbookmarks\nchangegroup=01,02\nlistkeys\nphases=heads\nremote-changegroup=http\nstream=v2"

# Requirements of a repository that Mercurial makes by default.
_REQUIREMENTS = "generaldelta,revlogv1,sparserevlog"

# The end of a payload, and that of a bundle.
_END = bytes(4)

# The beginning of a last file: Mercurial reads answers in pieces, and would wait for the rest of a short one.
_LAST_SIZE, _LAST = 10_000_000, bytes(500_000)


def part(name: bytes, parameters: Mapping[bytes, bytes], *payload: bytes) -> bytes:
    """Return a mandatory part of a bundle."""
    header = bytes([len(name)]) + name.upper() + struct.pack(">IBB", 0, len(parameters), 0)
    header += b"".join(bytes([len(key), len(value)]) for key, value in parameters.items())
    header += b"".join(key + value for key, value in parameters.items())
    chunks = b"".join(struct.pack(">i", len(chunk)) + chunk for chunk in payload)
    return struct.pack(">i", len(header)) + header + chunks + _END


def interrupted(outer: bytes, inner: bytes) -> bytes:
    """Return a part with another one within its payload."""
    return outer.removesuffix(_END) + struct.pack(">i", -1) + inner + _END


def bundle(*parts: bytes) -> bytes:
    """Return a bundle with these parts."""
    return b"HG20" + struct.pack(">i", 0) + b"".join(parts) + _END


class HostileHost:
    """Answers `getbundle` with `bundle`, or, within a block, knows only the older stream clone, of these `files`.

    That one has no end. `content_type` is that of all answers, `asked` has the commands that it was asked, and `answers` what it
    answers to each.
    """

    def __init__(self, *, bundle: bytes = b"", files: Mapping[bytes, bytes] | None = None) -> None:
        capabilities = ["batch", "branchmap", "getbundle", "known", "lookup", "httpheader=1024", "clonebundles"]
        capabilities += ["stream-preferred", f"streamreqs={_REQUIREMENTS}"]
        capabilities += [f"bundle2={quote(_BUNDLE2)}"] if files is None else []
        stream = b"0\n%d 1000000\n" % (len(files or {}) + 1)
        stream += b"".join(b"%s\0%d\n%s" % (name, len(content), content) for name, content in (files or {}).items())
        stream += b"last\0%d\n" % _LAST_SIZE + _LAST
        self.answers = {
            "capabilities": " ".join(capabilities).encode(),
            "batch": b"a" * 40 + b"\n;",
            "heads": b"a" * 40 + b"\n",
            "getbundle": zlib.compress(bundle),
            "stream_out": stream,
        }
        self.content_type = "application/mercurial-0.1"
        self.asked: list[str] = []
        self._ending = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/x"

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                command = parse_qs(urlsplit(self.path).query).get("cmd", [""])[0]
                host.asked.append(command)
                answer = host.answers.get(command, b"")
                self.send_response(200)
                self.send_header("Content-Type", host.content_type)
                self.send_header("Connection", "close")
                if command != "stream_out":
                    self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                self.wfile.flush()
                if command == "stream_out":
                    host._ending.wait()

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def backup_files(*entries: Sequence[bytes]) -> bytes:
    """Return a `journal.backupfiles` with these entries: place, file, and the copy that a rollback puts there."""
    return b"2\n" + b"".join(b"\0".join((*entry, b"0")) + b"\n" for entry in entries)
