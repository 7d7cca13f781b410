# SPDX-License-Identifier: GPL-2.0-or-later
"""A process that answers like S3 and SNS and keeps nothing: what remains is the cost of the destination itself.

Of each request, which it reads whole, it looks at the first line and the length: PUT stores an object, POST publishes. moto works
like the cloud, and is slower than the destination.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
STORED = b'HTTP/1.1 200 OK\r\nETag: "0"\r\nContent-Length: 0\r\n\r\n'


def _answer(request: bytes, body: bytes) -> bytes:
    if request.startswith(b"PUT "):
        return STORED
    text = b"<PublishResponse><PublishResult><MessageId>stub</MessageId></PublishResult></PublishResponse>"
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)


class Conversation(asyncio.Protocol):
    """One connection, which stays open."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._received = transport, b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._received, 0, end + 2)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._received) < whole:
                return
            self._transport.write(_answer(self._received[:end], self._received[end + 4 : whole]))
            self._received = self._received[whole:]


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(Conversation, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def stub_cloud() -> Iterator[str]:
    """The URL of the stub, for the length of a block."""
    with subprocess.Popen([sys.executable, str(Path(__file__))], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(_serve())
