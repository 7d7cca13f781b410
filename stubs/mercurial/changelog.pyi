from typing import Protocol

from .metadata import ChangingFiles
from .revlog import revlog
from .transaction import transaction

def decodeextra(text: bytes) -> dict[bytes, bytes]: ...

class _ChangelogRevision(Protocol):
    @property
    def files(self) -> list[bytes]: ...
    @property
    def manifest(self) -> bytes: ...

class changelog(revlog):
    filteredrevs: frozenset[int]
    _filteredrevs: frozenset[int]
    def add(
        self,
        manifest: bytes,
        files: ChangingFiles,
        desc: bytes,
        transaction: transaction,
        p1: bytes,
        p2: bytes,
        user: bytes,
        date: bytes | None = None,
        extra: dict[bytes, bytes] | None = None,
    ) -> bytes: ...
    def _head_node_ids(self) -> list[bytes]: ...
    def changelogrevision(self, nodeorrev: bytes | int) -> _ChangelogRevision: ...
