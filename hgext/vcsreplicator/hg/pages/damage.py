# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes that cannot be read, told from faults of the server.

Mercurial reads what a client sent as it goes, and raises what Python raises. Over HTTP that is an internal error, for which an
operator would look.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from mercurial import bundle2, error, wireprototypes
from mercurial.utils import stringutil

if TYPE_CHECKING:
    from mercurial.localrepo import localrepository

# Modules and functions that read what a client sent: Mercurial's, and our checks.
_READ_PUSHED = frozenset(
    {
        ("bundle2", "applybundle"),
        ("bundle2", "processbundle"),
        ("formats", "refuse_content"),
        ("formats", "refuse_incomplete"),
        ("parts", "_read_former"),
        ("pushkey", "push"),
    }
)
# Those that such a function calls, and which run what is the server's.
_RUN_OWN = frozenset({("hook", "pythonhook"), ("localrepo", "transaction"), ("transaction", "close")})
# Bytes of a reason: a client reads it from a parameter of 255.
_REASON = 180


def refuse_damaged(orig: Callable[..., Any], repo: localrepository, cg: Any, *arguments: Any) -> Any:
    """Wrap `exchange.unbundle`: have a client read that its push is damaged.

    Returns 1, which says that the push succeeded, where a bundle asks for no reply: Mercurial alone could not answer.
    """
    try:
        answer = orig(repo, cg, *arguments)
    except Exception as problem:
        refusal = _find_damage(repo, problem)
        if refusal is None:
            raise
        refusal.duringunbundle2 = isinstance(cg, bundle2.unbundle20)  # the form that it reads
        raise refusal from None
    return 1 if answer is None else answer


def answer_pushkey(orig: Callable[..., Any], repo: localrepository, proto: Any, *arguments: bytes) -> Any:
    """Wrap the command `pushkey`, a push of one key: have a client read that it is damaged."""
    try:
        return orig(repo, proto, *arguments)
    except Exception as problem:
        refusal = _find_damage(repo, problem)
        if refusal is None:
            raise
        return wireprototypes.bytesresponse(b"0\n%s\n" % refusal.message)


def _find_damage(repo: localrepository, problem: Exception) -> error.Abort | None:
    """Return the refusal of a push that cannot be read; None if another reason stopped it, such as a fault of the server.

    The transaction must be rolled back. Mercurial's log has the place, in case the fault is a program's of the server.
    """
    if isinstance(problem, (error.Abort, error.BundleValueError, error.PushRaced)):
        return None  # a client can read it
    if isinstance(problem, (MemoryError, error.LockError, error.RepoError)) or _is_of_disk(problem):
        return None
    length, found, is_of_push, place = len(repo.unfiltered()), problem.__traceback__, False, b""
    while found is not None:
        frame, found_at = found.tb_frame, found.tb_lineno
        module, name = frame.f_globals.get("__name__", "").rpartition(".")[2], frame.f_code.co_name
        if (module, name) in _READ_PUSHED:
            is_of_push = True
        elif (module, name) in _RUN_OWN or (isinstance(problem, error.StorageError) and _reads_history(frame, length)):
            is_of_push = False
        place, found = f"{module}:{found_at}".encode(), found.tb_next
    if not is_of_push:
        return None
    reason = _describe(problem)
    repo.ui.log(b"vcsreplicator", b"a push is damaged: %s, %s\n", reason, place)
    return error.Abort(b"the pushed bundle is damaged: %s" % reason)


def _describe(problem: Exception) -> bytes:
    """Describe an exception in printable characters, without a path of the server."""
    kind, text = type(problem).__name__.encode(), stringutil.forcebytestr(problem)
    if isinstance(problem, OSError) and problem.errno is not None:
        return b"an empty folder in the name of a file"
    whole = text if text and isinstance(problem, error.StorageError) else b": ".join(filter(None, (kind, text)))
    return bytes(stringutil.pprint(whole)[1:-1].replace(b"\\'", b"'")[:_REASON])


def _is_of_disk(problem: Exception) -> bool:
    """Return whether the system refused something: Python's own errors of compressed data have no number.

    A file whose name has an empty folder has no place on a disk.
    """
    return isinstance(problem, OSError) and problem.errno is not None and "//" not in str(problem.filename)


def _reads_history(frame: FrameType, length: int) -> bool:
    """Return whether a call reads a file's index, or a revision that was there when the repository had `length` changesets."""
    name, known = frame.f_code.co_name, frame.f_locals
    if name != "_revisiondata":
        return name == "_loadindex"
    rev = known["self"].index.get_rev(known["node"]) if "node" in known else None
    return rev is not None and known["self"].linkrev(rev) < length
