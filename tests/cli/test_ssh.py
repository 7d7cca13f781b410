# SPDX-License-Identifier: GPL-2.0-or-later
"""A key that runs `vcsreplicator ssh` reaches the repositories below its folders, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli.ssh import find_repository
from hgext.vcsreplicator.words.errors import Refused
from testing.warm_hg import shared_hg
from tests.house.shown import PAGES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    ours = ("repos/.vcsreplicator/deleted/1", "repos/~vcsreplicator/waiting/1", "repos/first/.hg/patches")
    for name in ("repos/first", "repos/a folder/second", "elsewhere", *ours):
        (tmp_path / name / ".hg").mkdir(parents=True)
    (tmp_path / "repos/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "repos/empty").mkdir()
    (tmp_path / "repos/bundle.hg").write_bytes(b"HG20")
    return tmp_path / "repos"


@pytest.mark.parametrize("name", ["first", "a folder/second", "./first/../first"])
def test_the_repository_of_the_request_is_found(root: Path, name: str) -> None:
    found = find_repository(f"hg -R '{root}/{name}' serve --stdio", (root,))
    assert found == root / os.path.normpath(name)


@pytest.mark.parametrize(
    "name",
    [
        "../elsewhere",
        "link",
        "empty",
        "bundle.hg",
        "missing",
        "",
        "../repos",
        "bundle:first",
        ".vcsreplicator/deleted/1",
        "~vcsreplicator/waiting/1",
        "first/.hg/patches",
        pytest.param("n" * 5_000, id="too long"),
    ],
)
def test_nothing_outside_the_folders_and_no_file_is_served(root: Path, name: str) -> None:
    with pytest.raises(Refused, match="not found"):
        find_repository(f"hg -R '{root}/{name}' serve --stdio", (root,))


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "sh",
        "hg -R {root}/\0first serve --stdio",
        "hg init {root}/new",
        "hg -R {root}/first serve --stdio --hidden",
        "hg -R {root}/first serve --stdio; sh",
        "hg -R {root}/first --config=ui.x=1 serve --stdio",
        "hg -R --debugger serve --stdio sh",
        "hg -R '{root}/first serve --stdio",
    ],
)
def test_another_command_is_refused(root: Path, asked: str) -> None:
    with pytest.raises(Refused, match="may only run"):
        find_repository(asked.format(root=root), (root,))


@pytest.mark.processes
def test_the_key_of_a_mirror_may_clone_and_not_push(tmp_path: Path) -> None:
    """With the hgrc of the page, which a policy of ours makes read-only."""
    page = PAGES["docs/by-hand.md"]
    text = page[page.index("[hooks]\npretxnopen.read-only") :]
    (tmp_path / "read-only.hgrc").write_text(text[: text.index("END\n")])
    shell = tmp_path / "ssh"
    shell.write_text(
        f'#!/bin/sh\nHGRCPATH={tmp_path}/read-only.hgrc SSH_ORIGINAL_COMMAND="$2" '
        f"exec {sys.executable} -P -m hgext.vcsreplicator.cli ssh {tmp_path}/repos\n"
    )
    shell.chmod(0o755)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([shared_hg(), *words], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run("init", "repos/first").returncode == 0
    url = f"ssh://master/{tmp_path}/repos/first"
    assert run("--config", f"ui.ssh={shell}", "clone", url, "clone").returncode == 0
    (tmp_path / "clone/f").write_text("text")
    run("-R", "clone", "commit", "-A", "-m", "first", "-u", "dana")
    pushed = run("-R", "clone", "--config", f"ui.ssh={shell}", "push")
    assert "this key may read, and not push" in pushed.stdout + pushed.stderr
    assert run("-R", "repos/first", "log").stdout == ""
