from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from .localrepo import localrepository
from .transaction import transaction
from .ui import ui as Ui

class bundlepart:
    id: int | None
    type: bytes
    def addparam(self, name: bytes, value: bytes = b"", mandatory: bool = True) -> None: ...
    def getchunks(self, ui: Ui) -> Iterator[bytes]: ...

class unbundlepart:
    id: int
    type: bytes
    params: dict[bytes, bytes]
    def read(self, size: int | None = None) -> bytes: ...
    def consume(self) -> None: ...

class bundle20:
    ui: Ui
    capabilities: dict[bytes, tuple[bytes, ...]]
    def __init__(self, ui: Ui, capabilities: Any = None) -> None: ...
    def setcompression(self, alg: bytes | None, compopts: Any = None) -> None: ...
    def newpart(
        self, typeid: bytes, mandatoryparams: Iterable[Any] = (), advisoryparams: Iterable[Any] = (), data: Any = b""
    ) -> bundlepart: ...
    def getchunks(self) -> Iterator[bytes]: ...
    # A method, which may be replaced in an instance.
    _getcorechunk: Callable[[], Iterator[bytes]]

class unbundle20:
    params: dict[bytes, bytes]
    _compengine: Any
    _fp: IO[bytes]
    def __init__(self, ui: Ui, fp: Any) -> None: ...
    def iterparts(self, seekable: bool = False) -> Iterator[unbundlepart]: ...

class bundleoperation:
    repo: localrepository
    ui: Ui
    source: bytes
    records: Any
    def __init__(
        self,
        repo: localrepository,
        transactiongetter: Callable[[], transaction],
        captureoutput: bool = True,
        source: bytes = b"",
        remote: Any = None,
    ) -> None: ...
    def gettransaction(self) -> transaction: ...

capabilities: dict[bytes, tuple[bytes, ...]]
parthandlermapping: dict[bytes, Callable[[bundleoperation, unbundlepart], None]]

def applybundle(
    repo: localrepository,
    unbundler: unbundle20,
    tr: transaction,
    source: bytes,
    url: bytes | None = None,
    remote: Any = None,
    **kwargs: Any,
) -> bundleoperation: ...
def _processpart(op: bundleoperation, part: unbundlepart) -> None: ...
