from collections.abc import Callable
from typing import Any

def getlist(x: tuple[Any, ...] | None) -> list[tuple[Any, ...]]: ...

class loader:
    _parse: Callable[[bytes], tuple[Any, ...]]

class engine:
    def resource(self, mapping: dict[bytes, Any], key: bytes) -> Any: ...

class templater:
    cache: dict[bytes, bytes]
    defaults: dict[bytes, Any]
    _loader: loader
    def __contains__(self, key: bytes) -> bool: ...
    def render(self, t: bytes, mapping: dict[bytes, Any]) -> bytes: ...
