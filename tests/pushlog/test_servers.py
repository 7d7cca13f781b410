# SPDX-License-Identifier: GPL-2.0-or-later
"""Two servers that accept pushes into one repository at once: every push is recorded, none is refused."""

import contextlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from testing.warm_hg import shared_hg
from tests.pushlog.conftest import environment

pytestmark = pytest.mark.processes

PUSHERS, PUSHES = 2, 6


@pytest.fixture
def hg(tmp_path):
    (tmp_path / "hgrc").write_text(
        "[extensions]\n*:required = yes\npushlog =\n[web]\nallow-push = *\npush_ssl = no\n[ui]\nusername = test\n"
    )

    def hg(*arguments):
        command, variables = map(str, arguments), environment(tmp_path)
        return subprocess.run(
            [shared_hg(variables), *command], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )

    return hg


@contextlib.contextmanager
def serving(folder):
    variables = environment(folder)
    command = [shared_hg(variables), "serve", "-R", "shared", "-a", "127.0.0.1", "-p", "0", "--print-url"]
    command += ["--accesslog", os.devnull]  # not the pipe, of which only the first line is read
    process = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with process.stdout:
        try:
            yield "http://127.0.0.1:" + process.stdout.readline().decode().rstrip("/\n").rpartition(":")[2]
        finally:
            process.terminate()
            process.wait()


def test_no_row_is_lost(tmp_path, hg):
    assert hg("init", "shared").returncode == 0
    for number in range(PUSHERS):
        assert hg("init", f"client{number}").returncode == 0

    def push_all(number, address):
        results = []
        for place in range(PUSHES):
            (tmp_path / f"client{number}" / f"file{number}").write_text(str(place))
            hg("commit", "-A", "-R", f"client{number}", "-m", f"{number}.{place}", "-q")
            results.append(hg("push", "-f", "-R", f"client{number}", address))
        return results

    with serving(tmp_path) as first, serving(tmp_path) as second, ThreadPoolExecutor() as threads:
        running = [threads.submit(push_all, number, address) for number, address in enumerate((first, second))]
        results = [result for future in running for result in future.result()]
    assert [result.stderr for result in results if result.returncode] == []
    assert "remote: recorded push in pushlog" in results[0].stdout
    verified = hg("-R", "shared", "verifypushlog")
    total = PUSHERS * PUSHES
    assert verified.stdout == f"pushlog contains all {total} changesets across {total} pushes\n"
