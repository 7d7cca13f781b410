# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a disk tells names apart that differ only in case or Unicode form."""

import os
from contextlib import suppress

from ..words.errors import BadConfig

# No repository's name begins with `~`.
_PROBE, _TWINS = "~prob\u00e9", ("~PROB\u00c9", "~probe\u0301")


def expect_exact_names(folder: str, where: str) -> None:
    """Raise BadConfig naming `where` if the disk takes two such names for one.

    It makes a folder there for a moment. After a kill the next call uses and removes it. A folder that is missing, or to
    which this process may not write, is not refused.
    """
    made, *twins = (os.path.join(os.fsencode(folder), name.encode()) for name in (_PROBE, *_TWINS))
    with suppress(OSError):
        with suppress(FileExistsError):
            os.mkdir(made)
        is_folding = any(map(os.path.lexists, twins))
        os.rmdir(made)
        if is_folding:
            raise BadConfig(
                f"{where}: {folder} is on a disk that does not distinguish names that differ only in case or Unicode form: "
                "expected one that does"
            )
