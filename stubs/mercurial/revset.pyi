from .localrepo import localrepository
from .revsetlang import _Tree
from .smartset import abstractsmartset

safesymbols: set[bytes]

def getset(repo: localrepository, subset: abstractsmartset, x: _Tree, order: bytes = b"define") -> abstractsmartset: ...
