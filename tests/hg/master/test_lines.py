# SPDX-License-Identifier: GPL-2.0-or-later
"""The pusher's line begins a line of its own, also after a hook of the site that left one open."""

import pytest

from testing.builders.master.pushing import Master, new_master

pytestmark = pytest.mark.processes

HOOK = """
def hook(ui=None, **_arguments):
    ui.%s(b"View merge request")
"""
KEPT = "relay not reachable: the push is kept and will be sent"


def push(master: Master, way: str) -> list[str]:
    """What the pusher reads, line by line."""
    clone = str(master.folder / "clone-one")
    if way == "http":
        with master.serve("one") as url:
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
