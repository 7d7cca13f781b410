from typing import Any

from .ui import ui as Ui

def loadconfigtable(ui: Ui, extname: bytes, configtable: dict[bytes, Any]) -> None: ...
