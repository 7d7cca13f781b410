# SPDX-License-Identifier: GPL-2.0-or-later
"""A file, branch, tag or bookmark may have any name: pages are answered, archives have it, and headers as RFC 6266 says."""

import io
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from hgext.vcsreplicator.hg.pages.disposition import encode_name
from testing.builders.asked_pages import AskedPages, asked_pages
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

NAMES = ("übersicht", "日本語", 'naïve "quote"')
# Names that are not UTF-8, and UTF-8 names that could be taken for what becomes of them in a zip archive.
BYTES = {b"bad\xff\xfe": b"1", b"bad%FF%FE": b"2", b"bad%FF\xfe": b"3", b"bad%FF%FE~": b"4"}
SITES = {
    "plain": "",
    "mirror": "[extensions]\n*:required = yes\npushlog =\nvcsreplicator =\n[vcsreplicator]\nrole = mirror\n",
}


@pytest.fixture(scope="module", params=SITES)
def pages(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[AskedPages]:
    """A repository with these names of files, tags and bookmarks, and a branch; a mirror has released all."""
    root = tmp_path_factory.mktemp("names") / "root"
    repo = root / "repo"
    environment = {**os.environ, "HGRCPATH": "", "HGENCODING": "UTF-8", "HGUSER": "anna"}

    def hg(*words: str) -> str:
        command = [shared_hg(environment), "--config", "ui.username=anna", "-R", str(repo), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

    hg("init", str(repo))
    for name in NAMES:
        (repo / f"{name}.txt").write_text(name)
    for file, content in BYTES.items():
        Path(os.fsdecode(os.fsencode(repo) + b"/" + file)).write_bytes(content)
    hg("commit", "--quiet", "--addremove", "--message", "files")
    for name in NAMES:
        hg("tag", "--rev", "0", f"tag {name}")
        hg("bookmark", "--rev", "0", f"bookmark {name}")
    hg("branch", f"branch {NAMES[0]}")
    hg("commit", "--message", "branch")
    node, count = hg("log", "--rev", "tip", "--template", "{node} {rev}").split()
    (repo / ".hg" / "replicated-watermark").write_text(f"1 1 {int(count) + 1} {node} -\n")
    (repo / ".hg" / "replicated-bookmarks").write_bytes((repo / ".hg" / "bookmarks").read_bytes())
    with asked_pages(root, SITES[request.param] + "[web]\nallow-archive = zip gz bz2\nencoding = UTF-8\n") as asked:
        yield asked


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_file_of_any_name_is_answered_with_its_name(pages: AskedPages, name: str) -> None:
    answer = pages.get(f"/repo/raw-file/0/{name}.txt")
    assert (answer.status, answer.body.decode(), answer.failure) == (200, name, None)
    assert answer.headers["Content-Disposition"].endswith(f"; filename*=UTF-8''{quote(name, safe='')}.txt")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name", [*(f"{kind} {name}" for kind in ("tag", "bookmark") for name in NAMES), f"branch {NAMES[0]}"]
)
def test_the_archive_of_any_name_is_answered_with_its_name(pages: AskedPages, name: str) -> None:
    answer = pages.get(f"/repo/archive/{name}.zip")
    assert (answer.status, answer.body[:2], answer.failure) == (200, b"PK", None)
    assert answer.headers["Content-Disposition"].endswith(f"; filename*=UTF-8''repo-{quote(name, safe='')}.zip")
    assert pages.alarms() == []


def test_a_zip_archive_has_each_name_that_is_not_utf_8_under_its_own(pages: AskedPages) -> None:
    answer = pages.get("/repo/archive/0.zip")
    assert (answer.status, answer.failure, pages.alarms()) == (200, None, [])
    with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
        assert archive.testzip() is None
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    assert len(members) == len(archive.namelist())
    assert {name: content for name, content in members.items() if name.startswith("bad")} == {
        "bad%FF%FE": b"2",
        "bad%FF%FE~": b"4",
        "bad%FF%FE~~": b"3",
        "bad%FF%FE~~~": b"1",
    }


@pytest.mark.parametrize("ending", ["tar.gz", "tar.bz2"])
def test_a_tar_archive_has_the_bytes_of_a_name(pages: AskedPages, ending: str) -> None:
    answer = pages.get(f"/repo/archive/0.{ending}")
    assert (answer.status, answer.failure, pages.alarms()) == (200, None, [])
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
        names = {os.fsencode(name).partition(b"/")[2] for name in archive.getnames()}
    assert names >= set(BYTES)


def test_the_file_of_a_name_that_is_not_utf_8_is_answered(pages: AskedPages) -> None:
    for page in ("raw-file", "file", "annotate", "filelog", "archive"):
        path = "archive/0.zip/bad\udcff\udcfe" if page == "archive" else f"{page}/0/bad\udcff\udcfe"
        answer = pages.get(f"/repo/{path}")
        assert (answer.status, answer.failure, pages.alarms()) == (200, None, []), page


@pytest.mark.parametrize(
    ("header", "encoded"),
    [
        ('inline; filename="é.txt"'.encode(), "inline; filename=\"_.txt\"; filename*=UTF-8''%C3%A9.txt"),
        (b'inline; filename="\xe9.txt"', "inline; filename=\"_.txt\"; filename*=UTF-8''%C3%A9.txt"),
        (
            'attachment; filename=a-"é;.zip'.encode(),
            "attachment; filename=\"a-__;.zip\"; filename*=UTF-8''a-%22%C3%A9%3B.zip",
        ),
        ("é".encode(), "??"),
    ],
)
def test_a_name_beyond_ascii_is_encoded(header: bytes, encoded: str) -> None:
    assert encode_name(header).decode() == encoded
