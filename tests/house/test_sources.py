# SPDX-License-Identifier: GPL-2.0-or-later
"""The rules of the house see every file that Git would, and every node that they ask for."""

import ast
import subprocess

import pytest

from testing.services.cache import CHECKOUT
from tests.house.sources import KINDS, TEXTS, files, nodes, texts_of

SOURCE = '''
"""What stands alone."""
import a
class B:
    async def c(self):
        if (lambda: d if e else f)():
            from g import h
            return {"i": [j.k for l in m], **n}
        return f"o {p['q'] if r else s:>{t}} u", b"v"
'''


@pytest.mark.parametrize(
    "patterns",
    [
        (),
        ("hooks/*.py", "docs/systemd/*.service", "Makefile", ".ci/run"),
        ("*.md", ":!tests/golden"),
        ("docs", ":!docs/decisions/*.md", ":!docs/log.md"),
    ],
    ids=" ".join,
)
def test_files_are_those_that_git_lists(patterns: tuple[str, ...]) -> None:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = set(subprocess.check_output(listing, cwd=CHECKOUT, text=True).splitlines())
    assert [name for name, _ in files(*patterns)] == sorted(name for name in names if (CHECKOUT / name).is_file())


def test_every_node_of_a_source_is_found() -> None:
    found = nodes(SOURCE)
    everywhere = list(ast.walk(ast.parse(SOURCE)))
    for kind in KINDS.difference(TEXTS):
        assert len(found[kind]) == sum(type(node) is kind for node in everywhere), kind


def test_texts_are_whole_and_those_that_stand_alone_are_none() -> None:
    assert sorted(texts_of(SOURCE, "§")) == ["i", "o § u", "v"]
