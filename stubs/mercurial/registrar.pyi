from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

def configitem(configtable: dict[bytes, Any]) -> Callable[..., None]: ...

class _Registrar:
    _table: dict[bytes, Any]
    def __init__(self, table: dict[bytes, Any] | None = None) -> None: ...

class command(_Registrar):
    CATEGORY_MAINTENANCE: bytes
    def __call__(
        self,
        decl: bytes,
        options: Sequence[tuple[bytes, bytes, Any, bytes] | tuple[bytes, bytes, Any, bytes, bytes]] = (),
        synopsis: bytes | None = None,
        norepo: bool = False,
        optionalrepo: bool = False,
        inferrepo: bool = False,
        intents: Any = None,
        helpcategory: bytes | None = None,
        helpbasic: bool = False,
    ) -> Callable[[_Function], _Function]: ...

class revsetpredicate(_Registrar):
    def __call__(
        self, decl: bytes, safe: bool = False, takeorder: bool = False, weight: int = 1
    ) -> Callable[[_Function], _Function]: ...

class templatekeyword(_Registrar):
    def __call__(self, decl: bytes, requires: set[bytes] = ...) -> Callable[[_Function], _Function]: ...
