# SPDX-License-Identifier: GPL-2.0-or-later
"""Every entry of the runbook, and every line that a pusher reads, has a test that provokes it."""

import ast
import functools
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT
from tests.house.shown import problem
from tests.house.sources import files

from .page import COMMAND, entries
from .provocations import PROVOCATIONS

# Their texts in the tests are shorter.
SHORTER = {
    "this repository refuses changes: it has no event yet, and it is unknown whether the log has another repository at "
    "its path": "it has no event yet, and it is unknown whether the log has another repository at its path",
    "ROOT: timed out waiting for the lock of another process, which makes or renames a repository": (
        "timed out waiting for the lock of another"
    ),
    "this change is too large for one event: N heads, N bookmarks, N markers": "too large for one event",
    "the push is kept and is not sent: the log has its event 12 …": "the push is kept and is not sent: the log has",
    "an interrupted strip is being finished": "is being finished",
    "…/journal: it names '…', which no transaction of Mercurial writes; it is not rolled back": (
        "which no transaction of Mercurial writes; it is not rolled back"
    ),
    "the relay cannot send (blobs: /srv/blobs: no space left on its disk; free some space): the push is kept and will be sent": (
        "the relay cannot send ("
    ),
}


def test_every_entry_is_provoked_and_repaired_by_its_words() -> None:
    # The alert of the aggregator's alarms is a table, each row an entry.
    assert entries().keys() - {"VcsreplicatorAggregatorAlarm"} == PROVOCATIONS.keys()


def test_what_the_edge_set_aside_does_not_replace_what_is_not_sent(tmp_path: Path) -> None:
    [move] = [found for found in COMMAND.findall(entries()["VcsreplicatorEdgeSetAside"]) if "rejected.log" in found]
    for name in ("rejected.log", "0000000000.log"):
        (tmp_path / name).write_text(name)
    subprocess.run([word.replace("QUEUE", str(tmp_path)) for word in shlex.split(move)])
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["0000000000.log", "rejected.log"]


@functools.cache
def texts_of_tests() -> list[str]:
    """The text of each test but this one."""
    return [text for name, text in files("tests/*.py", "tests/*.t") if not name.endswith("test_table.py")]


def lines_for_pushers() -> list[str]:
    """The first column of the table of what a pusher reads."""
    _, _, rest = (CHECKOUT / "docs/push.md").read_text().partition("## What the pusher reads\n")
    return re.findall(r"^\| `(.+?)` \| ", rest.partition("\n## ")[0], re.MULTILINE)


def fixed_part(line: str) -> str:
    """The longest part of a line that is the same every time."""
    parts = re.split(r"…|\b[NHA-Z]{1,}[A-Z]*\b|\b\d[\d.]*s?\b|\b[ab]\b|outbox\.\d+\.log|PROJ|/proj|HASH\.json", line)
    return max((part.strip(" ,:()/") for part in parts), key=len)


# The code that refuses a change, and the pages that say what to do about it.
ROOMS = {
    "hgext/vcsreplicator/hg/master": ("push",),
    "hgext/vcsreplicator/hg/serving": ("push", "serving"),
    "pushlog": ("push", "pushlog"),
    "hooks": ("hooks",),
}
REFUSES = re.compile(r"Abort|PushRaced|ui\.warn")


def texts_of(node: ast.AST, named: dict[str, ast.AST]) -> list[str]:
    """The fixed parts of a message, also of one that has a name in its module."""
    found = []
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in named:
            found += texts_of(named[each.id], {})
        elif isinstance(each, ast.Constant) and isinstance(each.value, str | bytes):
            text = each.value if isinstance(each.value, str) else each.value.decode()
            found += [part.strip(" :,()\n") for part in re.split(r"%[dsr]", text)]
    return found


def refusals(room: str) -> list[str]:
    """The longest fixed part of each text with which the code of a room aborts a change."""
    trees = [ast.parse(path.read_text()) for path in sorted((CHECKOUT / room).rglob("*.py"))]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    named: dict[str, ast.AST] = {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    }
    calls = [node.exc for node in nodes if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    if room == "hooks":  # says why, then returns that it refuses
        calls += [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "ui.warn"]
    texts = [texts_of(call.args[0], named) for call in calls if REFUSES.search(ast.unparse(call.func)) and call.args]
    return [max(parts, key=len) for parts in texts if any(len(part) > 7 for part in parts)]


@pytest.mark.parametrize("room", ROOMS)
def test_every_text_that_aborts_a_change_is_on_its_page(room: str) -> None:
    texts = refusals(room)
    pages = "\n".join((CHECKOUT / f"docs/{page}.md").read_text() for page in ROOMS[room])
    assert texts
    assert [text for text in texts if text not in pages] == []


def refused_lines() -> list[tuple[str, str, str, str]]:
    """The table of refusals: line, meaning, what to do, and when it is over."""
    _, _, rest = (CHECKOUT / "docs/push.md").read_text().partition("### Refusals\n")
    return re.findall(r"^\| (`.+) \| (.*) \| (.*) \| (.*) \|$", rest.partition("\n## ")[0], re.MULTILINE)


def test_a_refusal_has_a_meaning_what_to_do_and_when_it_is_over() -> None:
    rows = refused_lines()
    assert len(rows) > 20
    assert [line for line, *cells in rows if not all(cell.strip() for cell in cells)] == []


@pytest.mark.parametrize("row", refused_lines(), ids=lambda row: row[0])
def test_what_to_do_about_a_refusal_is_typed_where_it_is_provoked(row: tuple[str, str, str, str]) -> None:
    line = row[0].strip("`")
    part = SHORTER.get(line) or fixed_part(line)
    provoking = "\n".join(text for text in texts_of_tests() if part in text)
    for command in [span for cell in row[2:] for span in re.findall("`([^`]+)`", cell) if problem(span) is not None]:
        words = re.sub(r"^(vcsreplicator|hg(?: -R FOLDER)?) ", "", command).split()
        typed = r"[^\n]*?".join(re.sub(r"[A-Z-]{2,}", r"\\S+", re.escape(word)) for word in words)
        assert re.search(typed, provoking), command


@pytest.mark.parametrize("line", lines_for_pushers())
def test_every_line_that_a_pusher_reads_is_provoked(line: str) -> None:
    part = SHORTER.get(line) or fixed_part(line)
    assert len(part) >= 8
    assert any(part in text for text in texts_of_tests()), part
