from collections.abc import Callable, Sequence

class basematcher:
    def __call__(self, fn: bytes) -> bool: ...

def match(
    root: bytes,
    cwd: bytes,
    patterns: Sequence[bytes] | None = None,
    include: Sequence[bytes] | None = None,
    exclude: Sequence[bytes] | None = None,
    default: bytes = b"glob",
) -> basematcher: ...
def never(badfn: Callable[[bytes, bytes], None] | None = None) -> basematcher: ...
