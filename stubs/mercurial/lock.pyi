from collections.abc import Callable
from types import TracebackType

from .vfs import abstractvfs

def _getlockprefix() -> bytes: ...

class lock:
    held: int
    pid: int
    f: bytes
    vfs: abstractvfs
    def __init__(
        self,
        vfs: abstractvfs,
        fname: bytes,
        timeout: int = -1,
        releasefn: Callable[[], None] | None = None,
        acquirefn: Callable[[], None] | None = None,
        desc: bytes | None = None,
        signalsafe: bool = True,
        dolock: bool = True,
    ) -> None: ...
    def release(self, success: bool = True) -> None: ...
    def __enter__(self) -> lock: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
