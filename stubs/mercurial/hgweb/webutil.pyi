from typing import Any

from ..context import changectx
from ..localrepo import localrepository
from .hgweb_mod_inner import requestcontext

def commonentry(repo: localrepository, ctx: changectx) -> dict[bytes, Any]: ...
def changelistentry(web: requestcontext, ctx: changectx) -> dict[bytes, Any]: ...
