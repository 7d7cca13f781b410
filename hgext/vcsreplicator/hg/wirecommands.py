# SPDX-License-Identifier: GPL-2.0-or-later
"""The wire commands for mirrors, by name.

`master.offer` answers them. The first call loads it, so that a push does not.
"""

from __future__ import annotations

from mercurial import wireprotov1server

from pushlog import seams

_ANSWERS = f"{__package__}.master.offer"


def register() -> None:
    """Register the commands once; mirrors know them, so no capability announces them."""
    for name, arguments, answer in (
        (b"replication-state", b"firstpush", "answer_state"),
        (b"replication-changesets", b"first tip last", "answer_changesets"),
        (b"replication-fingerprint", b"", "answer_fingerprint"),
    ):
        if name not in wireprotov1server.commands:
            offer = wireprotov1server.wireprotocommand(name, arguments, permission=b"pull")
            offer(seams.loading(_ANSWERS, answer))
