from collections.abc import Callable
from typing import Any, TypeVar

from .wireprototypes import commandentry

_Function = TypeVar("_Function", bound=Callable[..., Any])

commands: dict[bytes, commandentry]

def wireprotocommand(
    name: bytes, args: bytes | None = None, permission: bytes = b"push"
) -> Callable[[_Function], _Function]: ...
