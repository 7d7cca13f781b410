from collections.abc import Iterable

from .context import basectx
from .localrepo import localrepository

def revsingle(repo: localrepository, revspec: bytes | int | None, default: bytes | None = b".") -> basectx: ...
def revsymbol(repo: localrepository, symbol: bytes) -> basectx: ...
def writereporequirements(
    repo: localrepository, requirements: Iterable[bytes] | None = None, maywritestore: bool = True
) -> None: ...
