from collections.abc import Callable

from .hgweb_mod_inner import requestcontext
from .request import parsedrequest

HTTP_BAD_REQUEST: int
HTTP_FORBIDDEN: int
HTTP_NOT_FOUND: int
HTTP_SERVER_ERROR: int

permhooks: list[Callable[[requestcontext, parsedrequest, bytes | None], None]]

def checkauthz(hgweb: requestcontext, req: parsedrequest, op: bytes | None) -> None: ...

class ErrorResponse(Exception):
    code: int
    def __init__(
        self, code: int, message: bytes | None = None, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None: ...
