from collections.abc import Sequence

from .localrepo import localrepository
from .obsolete import obsstore
from .ui import ui as Ui

def strip(
    ui: Ui, repo: localrepository, nodelist: bytes | Sequence[bytes], backup: bool = True, topic: bytes = b"backup"
) -> None: ...
def deleteobsmarkers(obsstore: obsstore, indices: Sequence[int]) -> int | None: ...

# (the revision to which a strip moves them, their names)
def _bookmarkmovements(repo: localrepository, tostrip: set[int]) -> tuple[int, list[bytes]]: ...
