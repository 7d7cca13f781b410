# SPDX-License-Identifier: GPL-2.0-or-later
"""What pushers read during maintenance where accounts may write the repository."""

import os
from pathlib import Path

import pytest
from mercurial import error
from mercurial.ui import ui as Ui

from hooks import maintenance
from pushlog import versions
from pushlog.store import regular


def test_a_pusher_reads_no_file_that_a_link_names(tmp_path: Path) -> None:
    regular.install()
    versions.initialize()
    (tmp_path / "key").write_text("password\n")
    ui = Ui.load()
    ui.setconfig(b"maintenance", b"file", b"maintenance")
    repository = versions.factory.repository(ui, os.fsencode(tmp_path / "repository"), create=True)
    (tmp_path / "repository/.hg/maintenance").symlink_to(tmp_path / "key")
    with pytest.raises(error.Abort) as refusal:
        maintenance.refuse(ui, repository, txnname=b"serve")
    assert refusal.value.message == maintenance.USUAL
