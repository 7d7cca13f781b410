# SPDX-License-Identifier: GPL-2.0-or-later
"""Every entry of the runbook, and every line that a pusher reads, has a test that provokes it."""

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT

from .page import COMMAND, entries
from .provocations import PROVOCATIONS

# Their texts in the tests are shorter.
SHORTER = {
    "ROOT: timed out waiting for the lock of another process, which makes or renames a repository": (
        "timed out waiting for the lock of another"
    ),
    "this change is too large for one event: N heads, N bookmarks, N markers": "too large for one event",
    "the push is kept and is not sent: the log has its event 12 …": "the push is kept and is not sent: the log has",
    "an interrupted strip is being finished": "is being finished",
}


def test_every_entry_is_provoked_and_repaired_by_its_words() -> None:
    # The alert of the aggregator's alarms is a table, each row an entry.
    assert entries().keys() - {"VcsreplicatorAggregatorAlarm"} == PROVOCATIONS.keys()


def test_what_the_edge_set_aside_does_not_replace_what_an_earlier_attempt_has_not_sent(tmp_path: Path) -> None:
    [move] = [found for found in COMMAND.findall(entries()["VcsreplicatorEdgeSetAside"]) if "rejected.log" in found]
    for name in ("rejected.log", "0000000000.log"):
        (tmp_path / name).write_text(name)
    subprocess.run([word.replace("QUEUE", str(tmp_path)) for word in shlex.split(move)])
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["0000000000.log", "rejected.log"]


def lines_for_pushers() -> list[str]:
    """The first column of the table of what a pusher reads."""
    _, _, rest = (CHECKOUT / "docs/push.md").read_text().partition("## What the pusher reads\n")
    return re.findall(r"^\| `(.+?)` \| ", rest.partition("\n## ")[0], re.MULTILINE)


def fixed_part(line: str) -> str:
    """The longest part of a line that is the same every time."""
    parts = re.split(r"…|\b[NHA-Z]{1,}[A-Z]*\b|\b\d[\d.]*s?\b|\b[ab]\b|outbox\.\d+\.log|PROJ|/proj|HASH\.json", line)
    return max((part.strip(" ,:()/") for part in parts), key=len)


def refusals() -> list[str]:
    """The longest fixed part of each text with which the master's extension aborts a change."""
    found = []
    for path in sorted((CHECKOUT / "hgext/vcsreplicator/hg/master").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and "Abort" in ast.unparse(node.exc.func):
                texts = [each.value for each in ast.walk(node.exc.args[0]) if isinstance(each, ast.Constant)]
                texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
                if parts := [part.strip(" :,") for text in texts for part in re.split(r"%[dsr]", text)]:
                    found.append(max(parts, key=len))
    return found


def test_every_text_that_aborts_a_change_is_in_the_table() -> None:
    texts = refusals()
    assert len(texts) > 15
    page = (CHECKOUT / "docs/push.md").read_text()
    assert [text for text in texts if text not in page] == []


@pytest.mark.parametrize("line", lines_for_pushers())
def test_every_line_that_a_pusher_reads_is_provoked(line: str) -> None:
    part = SHORTER.get(line) or fixed_part(line)
    assert len(part) >= 8
    tests = [
        path
        for path in (CHECKOUT / "tests").rglob("*")
        if path.suffix in (".t", ".py") and path.name != "test_table.py"
    ]
    assert any(part in path.read_text(errors="replace") for path in tests), part
