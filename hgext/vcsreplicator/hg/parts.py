# SPDX-License-Identifier: GPL-2.0-or-later
"""The parts of bundles that may arrive here.

A part can be within the payload of another, which it interrupts. Mercurial's handler is then given no repository, but still works
with its network.
"""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

from mercurial import bundle2, changegroup, error
from mercurial.utils import stringutil

if TYPE_CHECKING:
    from mercurial.localrepo import localrepository

# All that `hg push` sends, with evolve and topic too; and a part that bundles in files have, which does nothing.
_PUSHED = frozenset(
    b"replycaps check:heads check:updated-heads check:bookmarks check:phases changegroup phase-heads pushkey obsmarkers bookmarks "
    b"pushvars cache:rev-branch-cache".split()
)
# With it a client says that it cannot send the rest of a part.
_INTERRUPTING = frozenset({b"error:abort"})
# Packages whose handlers may do harm; no client sends their other parts in a push.
_SHIPPED = frozenset({"mercurial", "hgext", "pushlog"})
# In place of the size of a piece of a payload: a part follows.
_INTERRUPT = -1
_SIZE = struct.Struct(">i")
# Bytes of the largest header of a part: 510 parameters, whose names and values have 255 bytes at most.
_LARGEST_HEADER = 512 * 1024
# Bytes of a bundle that are kept in memory while it is checked; more go to a temporary file.
_SPOOLED = 1024 * 1024
# Bytes of a push in the former form, unpacked.
_UNPACKED = 1024**3
# Bytes that are read at a time.
_PIECE = 128 * 1024


def check_push(orig: Callable[..., Any], repo: localrepository, cg: Any, heads: Any, source: bytes, url: bytes) -> Any:
    """Wrap `exchange.unbundle`: refuse parts that no push needs.

    Raises Abort before Mercurial takes a lock. So while others wait for the repository, a push only adds what has arrived.
    """
    if not isinstance(cg, bundle2.unbundle20):
        with tempfile.SpooledTemporaryFile(_SPOOLED) as whole:
            return orig(repo, _read_former(cg, whole), heads, source, url)
    bundle: Any = cg
    with tempfile.SpooledTemporaryFile(_SPOOLED) as whole:
        try:
            if _is_compressed(bundle):  # no client does that, and a small one could unpack to any size
                raise error.Abort(b"a push cannot be compressed", hint=b"push with hg push")
            if not hasattr(bundle._fp, "seek"):  # it still arrives, and the lock would wait for its sender
                _copy(bundle._fp, whole)
                bundle._fp = whole
            start = bundle._fp.tell()
            _check_parts(bundle._fp)
            bundle._fp.seek(start)
        except Exception as problem:
            problem.duringunbundle2 = True  # type: ignore[attr-defined] # Mercurial then answers so that the client can read it
            raise
        return orig(repo, bundle, heads, source, url)


def _read_former(cg: Any, whole: IO[bytes]) -> Any:
    """Read a push in the form before Mercurial 3.5 whole; return it unpacked.

    Its client compresses it, and Mercurial alone would unpack it while it holds the lock. Raises Abort for another form, and if it
    becomes too large.
    """
    if not isinstance(cg, changegroup.cg1unpacker):
        raise error.Abort(b"a push cannot bring this form of a bundle", hint=b"push with hg push")
    _copy(cg._stream, whole, most=_UNPACKED)
    return changegroup.cg1unpacker(whole, b"UN")


def _is_compressed(bundle: Any) -> bool:
    """Read the bundle's parameters, and return whether its parts are compressed.

    Raises Abort where Mercurial takes their form for a mistake of its own, and BundleValueError for unknown ones.
    """
    try:
        return bool(bundle.compressed())
    except error.BundleValueError:
        raise
    except ValueError as problem:
        raise error.Abort(b"the pushed bundle is damaged: %s" % stringutil.forcebytestr(problem)) from problem


def _copy(stream: Any, whole: IO[bytes], most: float = math.inf) -> None:
    while piece := stream.read(_PIECE):
        whole.write(piece)
        if whole.tell() > most:
            raise error.Abort(
                b"the push has more than %d bytes" % most, hint=b"push less at once, or with Mercurial 3.5"
            )
    whole.seek(0)


def _check_parts(file: IO[bytes]) -> None:
    """Raise Abort for a part that no push needs, or a damaged bundle.

    Reads only headers.
    """
    depth = 0  # of the parts that are open here: the last one interrupts that before it
    while True:
        size = _read_size(file)
        if depth and size == _INTERRUPT:
            size = _read_size(file)
            if not size:
                continue  # Mercurial allows an interruption without a part
            is_part = True
        else:
            is_part = not depth and size > 0
        if size < 0 or (is_part and size > _LARGEST_HEADER):
            raise error.Abort(b"the pushed bundle is damaged: a size of %d" % size)
        if is_part:
            _check_name(_read_exactly(file, size), _INTERRUPTING if depth else _PUSHED)
            depth += 1
        elif size:
            file.seek(size, os.SEEK_CUR)
        elif depth:
            depth -= 1
        else:
            return


def _check_name(header: bytes, allowed: frozenset[bytes]) -> None:
    """Raise Abort for a part that is not allowed.

    Mercurial passes over a part that it does not know, if the client does not insist on it: a name in lower case. So it does over
    what a client's extension offers to an extension of the site: this process no longer knows such a part.
    """
    name = header[1 : 1 + header[0]]
    kind = name.lower()
    handler = bundle2.parthandlermapping.get(kind)
    if kind == name and kind not in allowed and handler and handler.__module__.partition(".")[0] not in _SHIPPED:
        bundle2.parthandlermapping.pop(kind, None)  # another thread may be quicker
    if kind not in allowed and (kind != name or kind in bundle2.parthandlermapping):
        raise error.Abort(
            b"a push cannot bring this part: %s" % stringutil.pprint(kind),
            hint=b"a push brings changesets, phases, bookmarks and markers; push with hg push",
        )


def _read_size(file: IO[bytes]) -> int:
    (size,) = _SIZE.unpack(_read_exactly(file, _SIZE.size))
    return int(size)


def _read_exactly(file: IO[bytes], size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise error.Abort(b"the pushed bundle is cut off")
    return found
