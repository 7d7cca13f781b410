from collections.abc import Callable, Iterator, Sequence
from typing import IO

class config:
    def __init__(self, data: config | None = None) -> None: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def read(
        self,
        path: bytes,
        fp: IO[bytes] | None = None,
        sections: Sequence[bytes] | None = None,
        remap: dict[bytes, bytes] | None = None,
    ) -> None: ...
    def parse(
        self,
        src: bytes,
        data: bytes,
        sections: Sequence[bytes] | None = None,
        remap: dict[bytes, bytes] | None = None,
        include: Callable[[bytes, bytes], None] | None = None,
    ) -> None: ...
    def items(self, section: bytes) -> list[tuple[bytes, bytes]]: ...
    def sections(self) -> list[bytes]: ...
    def get(self, section: bytes, item: bytes, default: bytes | None = None) -> bytes | None: ...
