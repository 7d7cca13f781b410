# SPDX-License-Identifier: GPL-2.0-or-later
"""What masters and mirrors change in Mercurial's own pages and wire commands."""

import functools

from pushlog import seams

_UNKNOWN = f"{__name__}.unknown"


@functools.cache
def hide_names() -> None:
    """Give hidden changesets the words of absent ones, or raise MissingSeam."""
    seams.wrap("mercurial.scmutil", "_filterederror", seams.loading(_UNKNOWN, "name_as_unknown"))
    seams.wrap("mercurial.scmutil", "resolvehexnodeidprefix", seams.loading(_UNKNOWN, "resolve_prefix"))
    for command in ("between", "branches", "changegroup", "changegroupsubset", "getbundle"):
        seams.wrap("mercurial.wireprotov1server", f"commands.{command}", seams.loading(_UNKNOWN, "refuse_unknown"))
