from collections.abc import Sequence
from typing import Any

from .localrepo import localrepository

def tag(
    repo: localrepository,
    names: Sequence[bytes],
    node: bytes,
    message: bytes,
    local: bool,
    user: bytes | None,
    date: Any,
    editor: Any = False,
) -> None: ...
