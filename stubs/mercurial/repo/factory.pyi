from collections.abc import Mapping
from typing import Any

from ..interfaces.repository import IPeer
from ..localrepo import localrepository
from ..ui import ui as Ui

def repository(
    ui: Ui,
    path: bytes = b"",
    create: bool = False,
    presetupfuncs: Any = None,
    intents: Any = None,
    createopts: Mapping[bytes, Any] | None = None,
) -> localrepository: ...
def peer(uiorrepo: Ui | localrepository, opts: Mapping[bytes, Any], path: bytes, create: bool = False) -> IPeer: ...
