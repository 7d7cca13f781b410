# SPDX-License-Identifier: GPL-2.0-or-later
"""An archive of any changeset that can be pushed is whole."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from testing.builders.asked_pages import asked_pages
from testing.builders.master.changegroups import Revision, bundle, changeset, content, manifest, part
from tests.hg.pages.test_files import History, hgrc

pytestmark = pytest.mark.processes


def list_zip(packed: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return archive.namelist()


def list_tar(packed: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return archive.getnames()


def test_an_archive_of_any_date_is_whole(tmp_path: Path) -> None:
    """Mercurial commits no such dates, and takes them from others."""
    (tmp_path / "root").mkdir()
    history = History(tmp_path / "root" / "repo")
    file = Revision(text=b"text")
    named = manifest((b"file", file.node, b""))
    for date in ("-99999999999999 0", "0 0", "99999999999999 0"):
        change = changeset(named, b"file", date=date.encode())
        pushed = part(b"CHANGEGROUP", content(change, [named], {b"file": [file]}), version=b"02")
        (tmp_path / "pushed").write_bytes(bundle(pushed, reply=False))
        history.hg("unbundle", str(tmp_path / "pushed"))
    with asked_pages(tmp_path / "root", hgrc(None, tmp_path) + "[web]\nallow-archive = zip gz bz2\n") as pages:
        for number in (6, 7, 8):
            for kind in ("zip", "tar.gz", "tar.bz2"):
                answer = pages.get(f"/repo/archive/{number}.{kind}")
                assert (answer.status, answer.failure, pages.alarms()) == (200, None, []), (number, kind)
                names = list_zip(answer.body) if kind == "zip" else list_tar(answer.body)
                assert [name.rpartition("/")[2] for name in names] == [".hg_archival.txt", "file"]
