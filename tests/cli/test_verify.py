# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator verify` says what it waits for while a mirror may still catch up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli import verify
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.mirror.comparison import ComparisonOutcome, Verdict
from hgext.vcsreplicator.mirror.jobs.verify import Round


def make_verdict(path: str) -> Verdict:
    note = "the master has 3 changesets, this mirror nothing"
    return Verdict(mirror="alpha", repository="1" * 32, path=path, outcome=ComparisonOutcome.MISSING, note=note)


@pytest.mark.usefixtures("within_the_run")
def test_what_verify_waits_for_is_said_before_the_verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def compare(*_: object, foretell: Callable[[Verdict], None], report: Callable[[Verdict], None], **__: Any) -> Round:
        foretell(make_verdict("first"))
        report(make_verdict("first"))
        report(make_verdict("second"))
        return Round(left_out=0, undone=0)

    monkeypatch.setattr(verify.verify, "compare", compare)
    url = f"sqlite:///{str(tmp_path / 'log.db').lstrip('/')}"
    file = tmp_path / "x.toml"
    file.write_text(f'log = "{url}"\n[mirror.alpha]\nroot = "{tmp_path}"\n')
    CliRunner().invoke(program, ["topics", "create", "-c", str(file)], catch_exceptions=False)
    ended = CliRunner().invoke(program, ["verify", "--patience", "7", "-c", str(file)])
    assert ended.stderr == (
        "alpha first: missing so far: the master has 3 changesets, this mirror nothing; "
        "comparing again for up to 7 s (--patience)\n"
    )
    assert ended.stdout.count("missing the master") == 2
