from collections.abc import Iterable, Iterator
from typing import Any

from .localrepo import localrepository
from .transaction import transaction

# predecessor, successors, flags, metadata, date, parents
_Marker = tuple[
    bytes, tuple[bytes, ...], int, tuple[tuple[bytes, bytes], ...], tuple[float, int], tuple[bytes, ...] | None
]

_fm1version: int
exchangeopt: bytes

def isenabled(repo: localrepository, option: bytes) -> bool: ...
def encodemarkers(markers: Iterable[_Marker], addheader: bool = False, version: int = 0) -> Iterator[bytes]: ...
def createmarkers(
    repo: localrepository, relations: Iterable[tuple[Any, ...]], flag: int = 0, date: Any = None, metadata: Any = None
) -> None: ...

class obsstore:
    repo: localrepository
    predecessors: dict[bytes, set[_Marker]]
    successors: dict[bytes, set[_Marker]]
    def __iter__(self) -> Iterator[_Marker]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def add(self, transaction: transaction, markers: Iterable[_Marker]) -> int: ...
    def create(
        self,
        transaction: transaction,
        prec: bytes,
        succs: Iterable[bytes] = (),
        flag: int = 0,
        parents: Iterable[bytes] | None = None,
        date: Any = None,
        metadata: dict[bytes, bytes] | None = None,
        ui: Any = None,
    ) -> bool: ...
    def mergemarkers(self, transaction: transaction, data: bytes) -> int: ...
