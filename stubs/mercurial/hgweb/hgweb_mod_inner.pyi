from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..localrepo import localrepository
from ..templater import templater
from ..ui import ui as Ui
from .request import parsedrequest, wsgiresponse

class requestcontext:
    repo: localrepository
    reponame: bytes
    req: parsedrequest
    res: wsgiresponse
    tmpl: templater
    nonce: bytes | None
    def config(self, section: bytes, name: bytes, default: Any = ..., untrusted: bool = True) -> bytes | None: ...
    def configint(self, section: bytes, name: bytes, default: int = ..., untrusted: bool = True) -> int: ...
    def archivelist(self, nodeid: bytes) -> Any: ...
    def sendtemplate(self, name: bytes, **kwargs: Any) -> Iterator[bytes]: ...

class hgweb:
    reponame: bytes | None
    mtime: float
    def __init__(self, repo: localrepository | bytes, name: bytes | None = None, baseui: Ui | None = None) -> None: ...
    def __call__(self, env: Mapping[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]: ...
