# SPDX-License-Identifier: GPL-2.0-or-later
"""What the pushlog writes about a change that has happened runs no hook of the site."""

import subprocess
from pathlib import Path

import pytest

from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

SITE = """
import os
def hook(hooktype=b"", txnname=b"", **_arguments):
    with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as calls:
        print(hooktype.decode(), txnname.decode(), file=calls)
    if txnname in (b"pushlog", b"repairpushlog"):
        raise KeyError("no such transaction")
"""
KINDS = ("pretxnopen", "pretxnclose", "txnclose", "txnabort")


def hg(folder: Path, *arguments: str) -> str:
    hooks = [option for kind in KINDS for option in ("--config", f"hooks.{kind}.site=python:{folder}/site.py:hook")]
    configured = ["--config", "extensions.pushlog=", "--config", "extensions.strip=", *hooks]
    command = [shared_hg(), *configured, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def called_by(folder: Path, *arguments: str) -> set[str]:
    """What the hooks of the site saw of a command."""
    (folder / "calls").unlink(missing_ok=True)
    hg(folder, *arguments)
    file = folder / "calls"
    return set(file.read_text().splitlines()) if file.exists() else set()


def test_a_strip_and_a_repair_call_no_hook_about_the_pushlog(tmp_path: Path) -> None:
    (tmp_path / "site.py").write_text(SITE)
    hg(tmp_path, "init", "server")
    hg(tmp_path, "init", "clone")
    for text in ("a", "b"):
        (tmp_path / "clone" / "file").write_text(text)
        hg(tmp_path, "-R", "clone", "commit", "-A", "-m", text, "-u", "dana")
        hg(tmp_path, "-R", "clone", "push", "server")
    stripped = called_by(tmp_path, "-R", "server", "strip", "-r", "tip")
    assert "pretxnclose strip" in stripped
    assert not [call for call in stripped if "pushlog" in call]
    assert "all 1 changesets across" in hg(tmp_path, "-R", "server", "verifypushlog")
    (tmp_path / "server" / ".hg" / "store" / "pushlog.log").unlink()
    assert called_by(tmp_path, "-R", "server", "repairpushlog") == set()
