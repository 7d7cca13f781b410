# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator status`: on a narrow terminal, and with `--watch` over what happens to the log."""

import io
from dataclasses import replace

import pytest
from rich.console import Console, Group
from rich.text import Text

from hgext.vcsreplicator.cli import status
from hgext.vcsreplicator.status.summary import MirrorLine, ServiceLine, Summary
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import RoundProgress


def test_a_watched_status_goes_on_when_the_log_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Console(record=True, width=200, force_terminal=True)
    monkeypatch.setattr(status, "console", lambda: screen)
    monkeypatch.setattr(status.time, "sleep", lambda seconds: None)

    shown = iter(["before", Unavailable("the broker went away"), "after", KeyboardInterrupt()])

    def view() -> Group:
        found = next(shown)
        if isinstance(found, BaseException):
            raise found
        return Group(Text(found))

    with pytest.raises(KeyboardInterrupt):
        status._watch(view)
    printed = screen.export_text()
    assert "trying again: the broker went away" in printed
    assert "after" in printed


def test_a_table_keeps_its_shape_on_80_columns_while_there_is_trouble() -> None:
    trouble = "subscription ci of hooks is failing, last: status 503 from https://ci.example.org/hooks/mercurial"
    line = ServiceLine(name="destination webhooks", behind=312, oldest=1.0, seen=3.0, troubles=(trouble, trouble))
    summary = Summary(
        now=5000.0,
        repositories=1,
        events=1,
        announced=1,
        waiting_events=0,
        waiting_repositories=0,
        errors=0,
        mirrors=(),
        services=(line,),
        waiting=(),
        findings=(),
        watched="",
        notes=(),
    )
    output = io.StringIO()
    Console(width=80, file=output).print(status.make_view(summary))
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    [row] = [line for line in lines if line.startswith(" destination webhooks")]
    assert row.split()[2:] == ["312", "83", "min", "ago", "83", "min", "ago", "2"]
    assert " ".join(" ".join(lines).split()).count(f"destination webhooks: {trouble}") == 2


def test_a_mirror_that_verify_compares_has_a_line_that_says_since_when() -> None:
    mirror = MirrorLine(
        name="alpha", repositories=7, behind=0, detached=0, verified=RoundProgress(done=3, total=7, oldest=1000.0)
    )
    summary = Summary(
        now=8200.0,
        repositories=7,
        events=7,
        announced=7,
        waiting_events=0,
        waiting_repositories=0,
        errors=0,
        mirrors=(mirror, replace(mirror, name="beta", verified=None)),
        services=(),
        waiting=(),
        findings=(),
        watched="",
        notes=(),
    )
    output = io.StringIO()
    Console(width=80, file=output).print(status.make_view(summary))
    lines = [line.strip() for line in output.getvalue().splitlines() if "last verified" in line]
    assert lines == ["mirror alpha: last verified: 2 h ago, 3 of 7 in this round"]
