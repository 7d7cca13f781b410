# SPDX-License-Identifier: GPL-2.0-or-later
"""The notifier's own database of requests and status."""

from contextlib import closing

import pytest

from hgext.vcsreplicator.words.errors import Unavailable
from notifier.destinations.state import StateDatabase


@pytest.mark.parametrize("content", ["", "{", "[]", "7", "[" * 100_000])
def test_a_damaged_status_of_a_destination_is_one_line(content: str) -> None:
    with closing(StateDatabase(":memory:")) as state:
        state.record_condition("hooks", {}, now=1.0)
        state.run("UPDATE conditions SET content = ?", (content,))
        with pytest.raises(Unavailable, match=r"^notifier\.state: the status of 'hooks' is damaged") as found:
            state.conditions()
    assert str(found.value).isprintable()
