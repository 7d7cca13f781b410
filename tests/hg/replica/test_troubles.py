# SPDX-License-Identifier: GPL-2.0-or-later
"""What a note says of a lock that is in the way."""

import errno

import pytest
from mercurial import error, lock

from hgext.vcsreplicator.hg.replica.troubles import trouble_of

HERE = lock._getlockprefix()
FOREIGN = "; that is another machine or container, so Mercurial keeps the lock even if the process is gone"


@pytest.mark.parametrize(
    ("locker", "note"),
    [
        (HERE + b":7", f"locked by {HERE.decode()}:7"),
        (b"elsewhere/f00000c1:7", "locked by elsewhere/f00000c1:7" + FOREIGN),
        (b"7", "locked by 7"),
        (b"", "locked by ?"),
    ],
)
def test_a_note_says_whether_the_owner_of_a_lock_is_on_this_machine(locker: bytes, note: str) -> None:
    found = trouble_of(error.LockHeld(errno.EAGAIN, b"lock", b"", locker))
    assert (found.note, found.passing) == (note, True)
