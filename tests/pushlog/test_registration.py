# SPDX-License-Identifier: GPL-2.0-or-later
"""What Mercurial lists of the extension leads to its own modules, and what a server announces of its limit."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import pushlog
from pushlog import registration
from tests.pushlog.conftest import HG

pytestmark = pytest.mark.processes


def test_an_extension_loaded_by_its_path_uses_its_own_modules(tmp_path):
    copy = shutil.copytree(Path(pushlog.__file__).parent, tmp_path / "copy" / "pushlog")
    for name, text in (("fetching", "added %d pushes"), ("stripping", "changeset will be deleted")):
        module = copy / f"{name}.py"
        module.write_text(module.read_text().replace(text, f"copied: {text}"))
    (tmp_path / "ssh").write_text('shift\neval "$*"\n')
    ui = f"[ui]\nusername = dana\nssh = sh {tmp_path}/ssh\nremotecmd = {HG}\n"
    (tmp_path / "hgrc").write_text(f"[extensions]\n*:required = yes\npushlog = {copy}\nstrip =\n{ui}")
    environment = {**os.environ, "HGRCPATH": str(tmp_path / "hgrc"), "USER": "dana"}

    def hg(*arguments):
        done = subprocess.run([HG, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    hg("init", "server")
    hg("init", "source")
    (tmp_path / "source" / "file").write_text("content")
    hg("-R", "source", "commit", "--addremove", "--message", "first")
    hg("-R", "source", "push", "server")
    assert "copied: added 1 pushes" in hg("clone", f"ssh://dana@here/{tmp_path}/server", "clone")
    assert hg("-R", "clone", "log", "-r", "pushhead()", "-T", "{pushid} {pushuser}") == "1 dana"
    assert "copied: changeset will be deleted" in hg("-R", "clone", "strip", "--no-backup", "0")


@pytest.mark.parametrize(("limit", "announced"), [(3, [b"pushlog-last=3"]), (None, [])])
def test_a_server_announces_the_limit_that_another_extension_sets(server, limit, announced):
    repository = server.repository
    repository.unfiltered()._pushlog_limit = lambda: limit
    words = registration.announce(lambda repo, proto: [b"first"], repository, None)
    assert words == [b"first", b"pushlog", b"pushlog-stream", *announced]
