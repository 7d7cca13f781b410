from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

def parserequestfromenv(
    env: dict[str, Any], reponame: bytes | None = None, altbaseurl: bytes | None = None, bodyfh: Any = None
) -> parsedrequest: ...

class multidict:
    def __contains__(self, key: bytes) -> bool: ...
    def __setitem__(self, key: bytes, value: bytes) -> None: ...
    def __getitem__(self, key: bytes) -> bytes: ...
    def get(self, key: bytes, default: bytes | None = None) -> bytes | None: ...
    def getall(self, key: bytes) -> list[bytes]: ...
    def asdictoflists(self) -> dict[bytes, list[bytes]]: ...

class parsedrequest:
    method: bytes
    url: bytes
    advertisedurl: bytes
    advertisedbaseurl: bytes
    apppath: bytes
    dispatchpath: bytes | None
    remoteuser: bytes | None
    remotehost: bytes | None
    reponame: bytes | None
    qsparams: multidict
    headers: MutableMapping[bytes, bytes]
    rawenv: dict[bytes, bytes]

class wsgiresponse:
    status: bytes
    headers: MutableMapping[bytes, bytes]
    def setbodybytes(self, b: bytes) -> None: ...
    def setbodygen(self, gen: Iterable[bytes]) -> None: ...
    def sendresponse(self) -> Iterator[bytes]: ...
