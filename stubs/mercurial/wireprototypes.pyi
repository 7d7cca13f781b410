from collections.abc import Callable, Iterator
from typing import Any

from .hgweb.request import parsedrequest

SSHV1: bytes

class bytesresponse:
    data: bytes
    def __init__(self, data: bytes) -> None: ...

class streamreslegacy:
    gen: Iterator[bytes]
    def __init__(self, gen: Iterator[bytes] | None = None) -> None: ...

class ooberror:
    message: bytes
    def __init__(self, message: bytes) -> None: ...

class commandentry:
    func: Callable[..., Any]
    args: bytes
    permission: bytes

class baseprotocolhandler:
    name: bytes
    # Of an HTTP client only.
    _req: parsedrequest

def decodelist(l: bytes, sep: bytes = b" ") -> list[bytes]: ...
