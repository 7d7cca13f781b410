from collections.abc import Callable
from typing import Any

__all__: list[str]

class webcommand:
    def __init__(self, name: bytes) -> None: ...
    def __call__(self, func: Callable[..., Any]) -> Any: ...
