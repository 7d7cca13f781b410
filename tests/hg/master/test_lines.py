# SPDX-License-Identifier: GPL-2.0-or-later
"""The pusher's line begins a line of its own, also after a hook of the site that left one open."""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from testing.builders.master.pushing import Master, new_master
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

HOOK = """
def hook(ui=None, **_arguments):
    ui.%s(b"View merge request")
"""
KEPT = "relay not reachable: the push is kept and will be sent"


@contextlib.contextmanager
def served(master: Master) -> Iterator[str]:
    """`hg serve` of the repository for the length of a block; its address."""
    words = [shared_hg(), "-R", str(master.root / "one"), "serve", "--port", "0", "--address", "127.0.0.1"]
    environment = {**os.environ, "HGRCPATH": str(master.folder / "master.hgrc"), "USER": "dana"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+?:(\d+)/", server.stdout.readline())
            assert found
            yield f"http://127.0.0.1:{found[1]}/"
        finally:
            server.kill()


def push(master: Master, way: str) -> list[str]:
    """What the pusher reads, line by line."""
    clone = str(master.folder / "clone-one")
    if way == "http":
        with served(master) as url:
            said = master.develop("-R", clone, "push", url)
    elif way == "path":
        said = master.operate("-R", clone, "push", str(master.root / "one"))
    else:
        said = master.push("one")
    return [line.removeprefix("remote: ") for line in said.splitlines()]


@pytest.mark.parametrize("write", ["write", "status", "warn"])
@pytest.mark.parametrize("way", ["ssh", "http", "path"])
def test_the_pushers_line_is_not_glued_to_that_of_a_hook(way: str, write: str) -> None:
    with new_master() as master:
        master.create("one")
        (master.folder / "glue.py").write_text(HOOK % write)
        master.configure(f"[hooks]\nchangegroup.glue = python:{master.folder}/glue.py:hook\n")
        master.commit("one", "a")
        lines = push(master, way)
    assert "View merge request" in lines
    assert KEPT in lines


@pytest.mark.parametrize("way", ["ssh", "http"])
def test_the_output_of_a_program_without_a_line_end_is_not_glued_to(way: str) -> None:
    with new_master() as master:
        master.create("one")
        master.configure("[hooks]\nchangegroup.glue = printf 'View merge request'\n")
        master.commit("one", "a")
        lines = push(master, way)
    assert {"View merge request", KEPT} <= {*lines}


def test_no_empty_line_is_written_where_hooks_end_theirs() -> None:
    with new_master() as master:
        master.create("one")
        (master.folder / "glue.py").write_text(HOOK.replace("request", "request\\n") % "status")
        master.configure(f"[hooks]\ntxnclose.glue = python:{master.folder}/glue.py:hook\n")
        master.commit("one", "a")
        lines = push(master, "ssh")
    assert "" not in lines
    assert lines[-2:] == ["View merge request", KEPT]
