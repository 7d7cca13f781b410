# SPDX-License-Identifier: GPL-2.0-or-later
"""Wire paths: the names of repositories in the log.

A repository has the same wire path on every machine, in any folder. A wire path is relative, uses `/`, and stays inside its root
on any mirror: no `..`, no empty or dot-only part, no part that Mercurial or a file system treats specially. It is checked before
any I/O, because it arrives from the log.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from .errors import MalformedEvent

# Characters of a path.
MAX_PATH = 1024
# Bytes of a part.
MAX_PART = 240

# The file in the store of each repository that a mirror writes: its checkpoints.
REPLICA_FILE = b"replicated.log"

_FORBIDDEN_PARTS = frozenset({".", "..", ".hg", ".hglf", ".hgsub", ".hgsubstate"})


def check_path(path: str) -> str:
    """Return the wire path if a mirror may create it; raise MalformedEvent if not."""
    problem = _find_problem(path)
    if problem:
        raise MalformedEvent(f"repository path {path[:80]!r}: {problem}")
    return path


def _find_problem(path: str) -> str | None:
    if not path or len(path) > MAX_PATH:
        return f"expected 1 to {MAX_PATH} characters, got {len(path)}"
    if path.startswith("/") or "\\" in path:
        return "expected a relative path with / between its parts"
    if not path.isprintable() and any(unicodedata.category(character) in ("Cc", "Cs", "Cf") for character in path):
        return "control characters are not allowed"
    for part in path.split("/"):
        if not part or part.lower() in _FORBIDDEN_PARTS:
            return f"the part {part!r} is not allowed"
        if len(part.encode()) > MAX_PART:
            return f"a part is longer than {MAX_PART} bytes"
        if part[0] in "-~" or part[-1] in ". " or part[0] == " ":
            return f"the part {part[:40]!r} begins or ends with a character that is not allowed"
    return None


def check_prefix(prefix: str, where: str) -> None:
    """Raise ValueError naming `where` unless wire paths may begin with this prefix."""
    try:
        if prefix.strip("/"):
            check_path(prefix.strip("/"))
    except MalformedEvent as error:
        raise ValueError(f"{where}: {error}") from error


def is_taken_by_pages(path: str) -> bool:
    """Return whether hgweb answers this path, or one below, with its own files.

    `path` is relative to the root of a web server. hgweb's other names, `index` among them, give way to a repository; names that
    `vcsreplicator web` keeps to itself begin with `~`, or are `.hg`, which no wire path has.
    """
    return path.split("/", 1)[0] == "static"


def twin(path: str) -> str:
    """Return a form of the path that is equal for twins.

    Twins are paths that a file system takes for one if it ignores case or normalises Unicode.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", path).casefold())


def wire_path(local: str, roots: Mapping[str, str]) -> str | None:
    """Return the wire path of a local folder; None outside all roots.

    `roots` are folder → wire prefix; the longest folder that matches decides. With a prefix of "" the wire path is the path
    relative to that root. None also for the root itself, if its prefix is "".
    """
    for root in sorted(roots, key=len, reverse=True):
        folder = root.rstrip("/")
        if local == folder:
            return roots[root].strip("/") or None
        if local.startswith(folder + "/"):
            return "/".join(part for part in (roots[root].strip("/"), local[len(folder) + 1 :]) if part)
    return None
