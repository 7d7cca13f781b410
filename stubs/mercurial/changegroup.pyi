from collections.abc import Iterable, Iterator
from typing import IO

from .localrepo import localrepository

class cgpacker:
    def generate(
        self, commonrevs: Iterable[int], clnodes: Iterable[bytes], fastpathlinkrev: bool, source: bytes
    ) -> Iterator[bytes]: ...

class cg1unpacker:
    _stream: IO[bytes]
    def __init__(self, fh: IO[bytes], alg: bytes | None) -> None: ...

def safeversion(repo: localrepository) -> bytes: ...
def getbundler(version: bytes, repo: localrepository) -> cgpacker: ...
def allsupportedversions(repo: localrepository) -> set[bytes]: ...
