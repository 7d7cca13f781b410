# SPDX-License-Identifier: GPL-2.0-or-later
"""Which requests could be pushes, before their body is read."""

import os
from pathlib import Path

import pytest
from mercurial import encoding

from hgext.vcsreplicator.hg.serving.paths import Pushes, could_push
from hgext.vcsreplicator.hg.serving.web import find_pushes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "a/nested", "group/b", "~vcsreplicator/c"):
        (tmp_path / name / ".hg").mkdir(parents=True)
    return tmp_path


def asks(folder: Path, method: str, where: str, query: str, pushes: Pushes = Pushes.EVERYWHERE) -> bool:
    return could_push(os.fsencode(folder), pushes, method, where, query)


@pytest.mark.parametrize(
    ("method", "where", "query"),
    [
        ("POST", "/a", "cmd=unbundle&heads=666f726365"),
        ("POST", "/a/nested", "cmd=%75nbundle"),
        ("POST", "/group/b", "cmd=putlfile&sha=0"),
        ("PUT", "/group/b/.hg/lfs/objects/" + 64 * "0", ""),
    ],
)
def test_a_push_and_an_upload_to_a_repository_may_be_large(folder: Path, method: str, where: str, query: str) -> None:
    assert asks(folder, method, where, query)
    assert not asks(folder, method, where, query, Pushes.NOWHERE)
    assert not asks(folder, method, where, query, Pushes.BY_REPOSITORY)
    (folder / where.split("/.hg")[0].strip("/") / ".hg" / "hgrc").write_text("[web]\nallow-push = *\n")
    assert asks(folder, method, where, query, Pushes.BY_REPOSITORY)


@pytest.mark.parametrize(
    ("method", "where", "query"),
    [
        ("GET", "/a", "cmd=unbundle"),
        ("POST", "/a", "cmd=heads"),
        ("POST", "/a", "cmd=unbundle&cmd=heads"),
        ("POST", "/a", ""),
        ("POST", "/nosuch", "cmd=unbundle"),
        ("POST", "/group", "cmd=unbundle"),
        ("POST", "/a/../a", "cmd=unbundle"),
        ("POST", "/~vcsreplicator/c", "cmd=unbundle"),
        ("PUT", "/a", "cmd=unbundle"),
        ("PUT", "/nosuch/.hg/lfs/objects/0", ""),
    ],
)
def test_nothing_else_may_be_large(folder: Path, method: str, where: str, query: str) -> None:
    assert not asks(folder, method, where, query)


def test_a_pipe_in_place_of_an_hgrc_permits_nothing(folder: Path) -> None:
    os.mkfifo(folder / "a" / ".hg" / "hgrc")
    assert not asks(folder, "POST", "/a", "cmd=unbundle", Pushes.BY_REPOSITORY)


@pytest.mark.parametrize(
    ("site", "where"),
    [
        ("allow-push = *", Pushes.EVERYWHERE),
        ("allow-push = dana", Pushes.BY_REPOSITORY),
        ("allow-push = *\ndeny_push = mallory", Pushes.NOWHERE),
    ],
)
def test_a_site_that_denies_pushes_takes_no_large_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str, where: Pushes
) -> None:
    """No client has a name here, and Mercurial then refuses each push with any `deny_push`."""
    (tmp_path / "hgrc").write_text(f"[web]\n{site}\n")
    monkeypatch.setitem(encoding.environ, b"HGRCPATH", os.fsencode(tmp_path / "hgrc"))
    assert find_pushes(str(tmp_path)) is where
