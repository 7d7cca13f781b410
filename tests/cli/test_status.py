# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator status --watch`: goes on over what happens to the log."""

import pytest
from rich.console import Console, Group
from rich.text import Text

from hgext.vcsreplicator.cli import status
from hgext.vcsreplicator.words.errors import Unavailable


def test_a_watched_status_goes_on_when_the_log_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Console(record=True, width=200, force_terminal=True)
    monkeypatch.setattr(status, "console", lambda: screen)
    monkeypatch.setattr(status.time, "sleep", lambda seconds: None)

    shown = iter(["before", Unavailable("the broker went away"), "after", KeyboardInterrupt()])

    def view() -> Group:
        found = next(shown)
        if isinstance(found, BaseException):
            raise found
        return Group(Text(found))

    with pytest.raises(KeyboardInterrupt):
        status._watch(view)
    printed = screen.export_text()
    assert "trying again: the broker went away" in printed
    assert "after" in printed
