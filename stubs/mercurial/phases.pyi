from collections.abc import Iterable

from .localrepo import localrepository
from .transaction import transaction

public: int
draft: int
secret: int
phasenames: dict[int, bytes]

def advanceboundary(
    repo: localrepository,
    tr: transaction,
    targetphase: int,
    nodes: Iterable[bytes],
    revs: Iterable[int] | None = None,
    dryrun: bool | None = None,
) -> set[int]: ...
def retractboundary(repo: localrepository, tr: transaction, targetphase: int, nodes: Iterable[bytes]) -> None: ...

class phasecache:
    _phaseroots: dict[int, set[int]]
    def phase(self, repo: localrepository, rev: int) -> int: ...
    def nonpublicphaseroots(self, repo: localrepository) -> set[int]: ...
    def invalidate(self) -> None: ...
