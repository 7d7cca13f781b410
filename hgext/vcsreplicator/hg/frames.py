# SPDX-License-Identifier: GPL-2.0-or-later
"""Answers of the replication-only wire commands, cut into frames.

Frames let a client recognize a truncated answer. A frame is its size (4 bytes, big endian) and that many bytes; a frame of size 0
ends the answer, followed by the SHA-256 of the frames' contents. The first frame is a JSON object: the answer's header, or
`{"error": kind, "message": text}`. An SSH connection can be used for further commands afterwards.
"""

import hashlib
import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..words.errors import Changing, Diverged, MalformedEvent, Unavailable
from ..words.shape import parse

# Bytes of the largest frame.
LARGEST = 16 * 1024 * 1024
_SIZE = struct.Struct(">I")


def answer(header: Mapping[str, Any], body: Iterable[bytes] = ()) -> Iterator[bytes]:
    """Yield the bytes of an answer; empty pieces of the body are left out."""
    total = hashlib.sha256()
    for piece in itertools.chain([json.dumps(header).encode("ascii")], body):
        for start in range(0, len(piece), LARGEST):
            content = piece[start : start + LARGEST]
            total.update(content)
            yield _SIZE.pack(len(content))
            yield content
    yield _SIZE.pack(0)
    yield total.digest()


def refusal(kind: type[Exception], message: str) -> Iterator[bytes]:
    """Return an answer at which clients raise Diverged or Changing, if it is `kind`, else Unavailable."""
    return answer({"error": kind.__name__, "message": message})


class StreamAnswer:
    """An answer as it arrives from `stream`.

    Raises the error that a refusal names, and Unavailable for a broken answer. The hash is at the end, so the content is
    verified only once `frames` is exhausted or `finish` returns.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ended = False
        self._total = hashlib.sha256()
        self.header: Mapping[str, Any] = self._read_header()

    def frames(self) -> Iterator[bytes]:
        """Yield the frames of the body, to the end."""
        while frame := self._read_frame():
            yield frame

    def finish(self) -> None:
        """Read what is left; return once the whole answer has arrived."""
        for _ in self.frames():
            pass

    def _read_header(self) -> Mapping[str, Any]:
        try:
            header = parse(self._read_frame() or b"null", "header", limit=LARGEST)
        except MalformedEvent as problem:
            raise Unavailable(f"the master's answer is not one of replication: {problem}") from problem
        if not isinstance(header, dict):
            raise Unavailable("the master's answer is not one of replication")
        if "error" in header:
            self.finish()
            kinds = {each.__name__: each for each in (Diverged, Changing)}
            raise kinds.get(str(header["error"]), Unavailable)(str(header.get("message"))[:1000])
        return header

    def _read_frame(self) -> bytes:
        if self._ended:
            return b""
        (size,) = _SIZE.unpack(self._read_exactly(_SIZE.size))
        if size > LARGEST:
            raise Unavailable(f"the master's answer is not one of replication: a frame of {size} bytes")
        content = self._read_exactly(size)
        self._total.update(content)
        if size == 0:
            self._ended = True
            if self._read_exactly(self._total.digest_size) != self._total.digest():
                raise Unavailable("the master's answer was damaged on its way")
        return content

    def _read_exactly(self, size: int) -> bytes:
        pieces = []
        while size > 0:
            piece = self._stream.read(size)
            if not piece:
                raise Unavailable("the master's answer broke off")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)
