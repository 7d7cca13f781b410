# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a push came from goes to the log beside its event, and never keeps the event from it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from hgext.vcsreplicator.outbox.entry import before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay.sending import EventSender
from hgext.vcsreplicator.words.event import PushConnection
from hgext.vcsreplicator.words.wire import CONNECTION, read_connection
from testing.builders.master.outboxes import Folder, following

FROM = PushConnection(address="203.0.113.7")


def test_a_record_has_the_connection_of_its_entry_unless_there_is_no_room(tmp_path: Path) -> None:
    log: Any = None
    sender = EventSender(log=log, source="hg://master", make_bundle=lambda *_: None, store_blob=None)  # type: ignore[arg-type, return-value]
    box = Outbox(Folder(str(tmp_path)))
    [bare] = following(before_first_event("x", 1), 1)
    entry = replace(bare, connection=FROM)
    whole, without = sender.message("", entry, box), sender.message("", bare, box)
    assert read_connection(whole.headers) == FROM
    assert whole.value == without.value
    assert CONNECTION not in without.headers
    assert sender.message("", entry, box, room=0) == without
