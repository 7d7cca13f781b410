from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..ui import ui as Ui

class hgwebdir:
    ui: Ui
    lastrefresh: float
    repos: list[tuple[bytes, bytes]]
    def __init__(self, conf: Any, baseui: Ui | None = None) -> None: ...
    def __call__(self, env: Mapping[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]: ...
    def refresh(self) -> None: ...
