from typing import IO, Any

from .bundle2 import unbundle20
from .interfaces.repository import IPeer
from .localrepo import localrepository
from .transaction import transaction
from .ui import ui as Ui
from .vfs import abstractvfs

class pulloperation:
    repo: localrepository
    remote: IPeer
    def gettransaction(self) -> transaction: ...

def readbundle(ui: Ui, fh: IO[bytes], fname: bytes | None, vfs: abstractvfs | None = None) -> unbundle20: ...
def push(repo: localrepository, remote: IPeer, **options: Any) -> Any: ...
def pull(repo: localrepository, remote: IPeer, **options: Any) -> Any: ...
