from collections.abc import Iterable

from .localrepo import localrepository
from .obsolete import _Marker

def exclusivemarkers(repo: localrepository, nodes: Iterable[bytes]) -> set[_Marker]: ...
