from collections.abc import Iterable, Iterator

from .localrepo import localrepository

class cgpacker:
    def generate(
        self, commonrevs: Iterable[int], clnodes: Iterable[bytes], fastpathlinkrev: bool, source: bytes
    ) -> Iterator[bytes]: ...

def safeversion(repo: localrepository) -> bytes: ...
def getbundler(version: bytes, repo: localrepository) -> cgpacker: ...
