from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import IO, Any

from .vfs import abstractvfs

UNDO_BACKUP: bytes

def cleanup_undo_files(
    report: Callable[[bytes], None], vfsmap: Mapping[bytes, abstractvfs], undo_prefix: bytes = b"undo"
) -> None: ...

class transaction:
    changes: dict[bytes, Any]
    hookargs: dict[bytes, bytes]
    # The rest of the attributes are private: what of the journal, which `pushlog.store.journal` and `hg.master.durability` write.
    _backupentries: list[tuple[bytes, bytes, bytes, bool]]
    _backupmap: dict[bytes, int]
    _backupsfile: IO[bytes]
    _file: IO[bytes]
    _filegenerators: dict[bytes, tuple[int, Iterable[bytes], Callable[..., None], bytes, bool]]
    _journal: bytes
    _newfiles: set[bytes]
    _offsetmap: dict[bytes, int]
    _opener: abstractvfs
    _queue: list[list[tuple[bytes, int]]]
    _tmp_files: set[bytes]
    _vfsmap: dict[bytes, abstractvfs]
    def add(self, file: bytes, offset: int) -> None: ...
    def addbackup(
        self, file: bytes, hardlink: bool = True, location: bytes = b"", for_offset: bool = False
    ) -> None: ...
    def addabort(self, category: bytes, callback: Callable[[transaction], None]) -> None: ...
    def addfinalize(self, category: bytes, callback: Callable[[transaction], None]) -> None: ...
    def addpostclose(self, category: bytes, callback: Callable[[transaction], None]) -> None: ...
    def addvalidator(self, category: bytes, callback: Callable[[transaction], None]) -> None: ...
    def addfilegenerator(
        self,
        genid: bytes,
        filenames: Iterable[bytes],
        genfunc: Callable[..., None],
        order: int = 0,
        location: bytes = b"",
        post_finalize: bool = False,
    ) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def registertmp(self, tmpfile: bytes, location: bytes = b"") -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> transaction: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
