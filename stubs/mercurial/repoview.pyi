from collections.abc import Callable
from typing import Any

from .localrepo import localrepository

filtertable: dict[bytes, Callable[..., frozenset[int]]]

def filterrevs(repo: localrepository, filtername: bytes | None, visibilityexceptions: Any = None) -> frozenset[int]: ...
