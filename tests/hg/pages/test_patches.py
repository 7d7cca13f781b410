# SPDX-License-Identifier: GPL-2.0-or-later
"""What a program that counts changed files finds in the patch that a mirror shows at `raw-rev`."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from testing.builders.asked_pages import asked_pages
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

HGRC = """\
[extensions]
*:required = yes
pushlog =
vcsreplicator =
[vcsreplicator]
role = mirror
"""


def make_changeset(folder: Path) -> str:
    """Make a changeset with a changed binary file, an empty file, a rename and a new mode, and return its node."""

    def hg(*words: str) -> str:
        command = [shared_hg(), "--cwd", str(folder), "--config", "ui.username=anna", *words]
        return subprocess.run(
            command, env={**os.environ, "HGRCPATH": ""}, capture_output=True, text=True, check=True
        ).stdout

    folder.mkdir(parents=True)
    hg("init")
    (folder / "binary").write_bytes(b"\0\1")
    (folder / "old").write_text("one\ntwo\n")
    (folder / "script").write_text("true\n")
    hg("commit", "--addremove", "--message", "one")
    hg("rename", "old", "new")
    (folder / "binary").write_bytes(b"\0\2")
    (folder / "empty").touch()
    (folder / "script").chmod(0o755)
    hg("commit", "--addremove", "--message", "two")
    node = hg("log", "--rev", "tip", "--template", "{node}")
    (folder / ".hg" / "replicated-watermark").write_text(f"1 1 2 {node} -\n")
    return node


@pytest.mark.parametrize(
    ("setting", "named", "by_lines"),
    [
        ("", [], ["/dev/null", "a/old", "b/new", "/dev/null"]),
        ("[diff]\ngit = yes\n", ["binary", "empty", "new", "script"], []),
    ],
    ids=["plain", "git"],
)
def test_a_mirror_shows_patches_in_the_form_that_its_hgrc_names(
    tmp_path: Path, setting: str, named: list[str], by_lines: list[str]
) -> None:
    """In Mercurial's own form most parsers see only the rename, as two files; with `git = yes` each file has its header."""
    node = make_changeset(tmp_path / "root" / "repo")
    with asked_pages(tmp_path / "root", HGRC + setting) as pages:
        answer = pages.get(f"/repo/raw-rev/{node}")
    assert answer.status == 200
    patch = answer.body.decode()
    assert re.findall(r"^diff --git a/.+ b/(.+)$", patch, re.MULTILINE) == named
    assert sorted(re.findall(r"^(?:---|\+\+\+) ([^\t\n]+)", patch, re.MULTILINE)) == sorted(by_lines)
    told = (
        "rename from old\nrename to new\n",
        "old mode 100644\nnew mode 100755\n",
        "new file mode 100644\n",
        "GIT binary patch\n",
    )
    assert all((text in patch) == bool(setting) for text in told)
    plain = [f"diff -r {name}" for name in ("binary", "empty", "new", "old", "script")]
    assert [f"diff -r {name}" for name in re.findall(r"^diff -r .+ (\S+)$", patch, re.MULTILINE)] == (
        [] if setting else plain
    )
