# SPDX-License-Identifier: GPL-2.0-or-later
"""The page that starts a newcomer: its commands, typed as they stand there."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testing.checks.agreement import left_behind, processes_below
from testing.services.cache import CHECKOUT
from testing.waiting import eventually
from tests.demo.test_demo import ROLES, about, staying

pytestmark = pytest.mark.processes


def test_a_newcomer_pushes_and_reads_the_notice_by_the_pages_commands(
    tmp_path: Path,
) -> None:
    page = (CHECKOUT / "docs/start.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shown = json.loads(page.partition("The notice:\n")[2].partition("```")[0])
    start, push, look = blocks[-3:]
    assert start == ".venv/bin/vcsreplicator demo --dir demo --stay\n"
    (tmp_path / ".venv").symlink_to(sys.prefix)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HG")}

    def enter(block: str, master: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", block.replace("MASTER", master.rstrip("/"))],
            cwd=tmp_path,
            env={**environment, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (tmp_path / "demo").mkdir()
    with staying(tmp_path / "demo", is_warm=True) as (process, ready):
        master = about(ready)["master"]["url"]
        assert "remote: recorded push in replication log in " in enter(push, master)
        notices = tmp_path / "demo/notices.jsonl"
        eventually(lambda: '"changegroup.1"' in notices.read_text(), what="the notice")
        eventually(lambda: ": passed" in enter(look, master), what="the trace", every=1.0)
        output = enter(look, master)
        notice = json.loads(output.splitlines()[0])
        assert notice["data"]["repo_url"] == "https://hg.example/first"
        assert notice.keys() == shown.keys()
        for word in ("committed", "alpha", "beta", "aggregator"):
            assert word in output
        assert len(list(processes_below(tmp_path))) >= len(ROLES)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert left_behind(tmp_path) == []
