from typing import Any

from ..context import basectx
from ..context import changectx as _changectx
from ..localrepo import localrepository
from .hgweb_mod_inner import requestcontext
from .request import parsedrequest

def commonentry(repo: localrepository, ctx: _changectx) -> dict[bytes, Any]: ...
def changelistentry(web: requestcontext, ctx: _changectx) -> dict[bytes, Any]: ...
def changectx(repo: localrepository, req: parsedrequest) -> basectx: ...
