# SPDX-License-Identifier: GPL-2.0-or-later
"""What an event names is checked before the repository is touched."""

from typing import Any, cast

import pytest

from hgext.vcsreplicator.hg.replica import acts
from hgext.vcsreplicator.words.errors import MalformedEvent


class Named:
    """What `_censor` reads of an event."""

    seq, path = 3, "one"

    def __init__(self, file: str, node: str = "a" * 40) -> None:
        self.detail = {"file": file, "node": node}


@pytest.mark.parametrize(
    "event",
    [Named("../../../hgrc"), Named("a/../b"), Named("/etc/passwd"), Named(""), Named(".hg/hgrc"), Named("a", "-1")],
)
def test_a_censored_file_outside_the_history_is_no_file(event: Named) -> None:
    with pytest.raises(MalformedEvent, match="censored names no file or no node"):
        acts._censor(cast(Any, None), cast(Any, event))
