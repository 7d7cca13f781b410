# SPDX-License-Identifier: GPL-2.0-or-later
"""What a push without a relay does for deleted repositories, beside sending its own events."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hgext.vcsreplicator.hg.master import sending
from hgext.vcsreplicator.outbox.entry import before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from testing.builders.master.outboxes import Folder, Transaction, following


@pytest.mark.parametrize("is_shown", [False, True])
def test_a_deleted_repository_that_the_disk_hides_holds_up_no_other(tmp_path: Path, is_shown: bool) -> None:
    """A transient error is not taken for the rest of an interrupted removal."""
    deleted, sent, lines = tmp_path / ".vcsreplicator" / "deleted", list[str](), list[tuple[bytes, ...]]()
    for name in ("a", "b"):
        store = deleted / name / ".hg" / "store"
        store.mkdir(parents=True)
        Outbox(Folder(str(store))).append(Transaction(), following(before_first_event(name, 1), 1))
    control = deleted / "a" / ".hg"
    if not is_shown:
        (control / "store").rename(control / "hidden")
        (control / "store").symlink_to("store")  # who looks gets ELOOP
    ui = SimpleNamespace(log=lambda *texts: lines.append(texts))
    sender: Any = SimpleNamespace(send=lambda folder, box: sent.append(Path(folder).name))
    sending._send_deleted(ui, sender, str(tmp_path))
    assert sorted(sent) == (["a", "b"] if is_shown else ["b"])
    assert control.exists() is not is_shown
    assert len(lines) == (not is_shown)
