# SPDX-License-Identifier: GPL-2.0-or-later
"""The refusal of pushes that bring a copy of a whole store, or an address.

Mercurial writes such a copy past every hook, so nothing of it would be recorded. It fetches an address under its lock, for as long
as the other server likes, and from any machine that it can reach.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mercurial import bundle2, error

from . import seams, versions

if TYPE_CHECKING:
    from mercurial.bundle2 import bundleoperation, unbundlepart
# With it a bundle names an address, which the receiver fetches.
_ADDRESS = b"remote-changegroup"


@functools.cache
def refuse_pushed() -> None:
    """Refuse parts of bundles that are streams if a push brings them, and addresses.

    A process does so once. Clones and pulls still bring streams (`tests/hg/master/stream.t`). From then on Mercurial does not know
    the part that names an address, even in a pull, and does not offer to take it.
    """
    versions.initialize()  # a program that only loads extensions has no parts yet, and would get unguarded ones later
    streams = {name: handler for name, handler in bundle2.parthandlermapping.items() if name.startswith(b"stream")}
    if not streams:
        raise seams.MissingSeam("mercurial.bundle2.parthandlermapping has no part that is a stream")
    bundle2.parthandlermapping.pop(_ADDRESS, None)
    bundle2.capabilities.pop(_ADDRESS, None)
    bundle2.parthandlermapping.update({name: _guard_handler(handler) for name, handler in streams.items()})


def _guard_handler(handler: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @functools.wraps(handler)  # with its `params`, which Mercurial checks
    def guarded(operation: bundleoperation, part: unbundlepart) -> None:
        if operation.source == b"push":  # what `exchange.unbundle` says
            raise error.Abort(b"a push cannot bring a copy of a whole store; push changesets instead")
        handler(operation, part)

    return guarded
