# SPDX-License-Identifier: GPL-2.0-or-later
"""A file, branch, tag or bookmark may have a name in any writing: pages about it are answered, and name it as RFC 6266 says."""

import os
import subprocess
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from hgext.vcsreplicator.hg.pages.disposition import encode_name
from testing.builders.asked_pages import AskedPages, asked_pages
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

NAMES = ("übersicht", "日本語", 'naïve "quote"')
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
        command = [shared_hg({"HGENCODING": "UTF-8"}), "--config", "ui.username=anna", "-R", str(repo), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

    hg("init", str(repo))
    for name in NAMES:
        (repo / f"{name}.txt").write_text(name)
    hg("commit", "--addremove", "--message", "files")
    for name in NAMES:
        hg("tag", "--rev", "0", f"tag {name}")
        hg("bookmark", "--rev", "0", f"bookmark {name}")
    hg("branch", f"branch {NAMES[0]}")
    hg("commit", "--message", "branch")
    node, count = hg("log", "--rev", "tip", "--template", "{node} {rev}").split()
    (repo / ".hg" / "replicated-watermark").write_text(f"1 1 {int(count) + 1} {node} -\n")
    (repo / ".hg" / "replicated-bookmarks").write_bytes((repo / ".hg" / "bookmarks").read_bytes())
    with asked_pages(root, SITES[request.param] + "[web]\nallow-archive = zip\nencoding = UTF-8\n") as asked:
        yield asked


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_file_of_any_name_is_answered_with_its_name(pages: AskedPages, name: str) -> None:
    answer = pages.get(f"/repo/raw-file/0/{name}.txt")
    assert (answer.status, answer.body.decode(), answer.failure) == (200, name, None)
    assert answer.headers["Content-Disposition"].endswith(f"; filename*=UTF-8''{quote(name, safe='')}.txt")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name", [*(f"{kind} {name}" for kind in ("tag", "bookmark") for name in NAMES), f"branch {NAMES[0]}"]
)
def test_the_archive_of_any_name_is_answered_with_its_name(pages: AskedPages, name: str) -> None:
    answer = pages.get(f"/repo/archive/{name}.zip")
    assert (answer.status, answer.body[:2], answer.failure) == (200, b"PK", None)
    assert answer.headers["Content-Disposition"].endswith(f"; filename*=UTF-8''repo-{quote(name, safe='')}.zip")
    assert pages.alarms() == []


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
