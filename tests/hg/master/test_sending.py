# SPDX-License-Identifier: GPL-2.0-or-later
"""What a push without a relay does for deleted repositories, beside sending its own events."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hgext.vcsreplicator.hg.master import sending
from hgext.vcsreplicator.log import SERVICES, NewRecord, topics
from hgext.vcsreplicator.outbox.entry import before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.words.records import MASTER_KEY, MasterRecord
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.outboxes import Folder, Transaction, following


class Sender:
    """It sends to a log, and only notes what."""

    def __init__(self) -> None:
        self.log, self.source, self.sent = MemoryLog(), "hg://old", list[str]()
        self.log.create(topics())

    def send(self, folder: str, box: Outbox) -> None:
        self.sent.append(Path(folder).name)


def delete_two(root: Path) -> Path:
    """The folder of two deleted repositories that are not sent yet."""
    deleted = root / ".vcsreplicator" / "deleted"
    for name in ("a", "b"):
        store = deleted / name / ".hg" / "store"
        store.mkdir(parents=True)
        Outbox(Folder(str(store))).append(Transaction(), following(before_first_event(name, 1), 1))
    return deleted


@pytest.mark.parametrize("is_shown", [False, True])
def test_a_deleted_repository_that_the_disk_hides_holds_up_no_other(tmp_path: Path, is_shown: bool) -> None:
    """A transient error is not taken for the rest of an interrupted removal."""
    control, lines = delete_two(tmp_path) / "a" / ".hg", list[tuple[bytes, ...]]()
    if not is_shown:
        (control / "store").rename(control / "hidden")
        (control / "store").symlink_to("store")  # who looks gets ELOOP
    ui, sender = SimpleNamespace(log=lambda *texts: lines.append(texts)), Sender()
    sending.send_deleted(cast(Any, ui), cast(Any, sender), str(tmp_path))
    assert sorted(sender.sent) == (["a", "b"] if is_shown else ["b"])
    assert control.exists() is not is_shown
    assert len(lines) == (not is_shown)


def test_a_push_to_a_former_master_sends_no_deletion(tmp_path: Path) -> None:
    deleted, sender = delete_two(tmp_path), Sender()
    record = MasterRecord(source="hg://new", mirror="alpha", replaces=("hg://old",), time=1.0)
    sender.log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=to_json(record))])
    sending.send_deleted(cast(Any, None), cast(Any, sender), str(tmp_path))
    assert sender.sent == []
    assert len(list(deleted.iterdir())) == 2
