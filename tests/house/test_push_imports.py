# SPDX-License-Identifier: GPL-2.0-or-later
"""A push loads the standard library, Mercurial and those of our modules that record it: measured in the pushing process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT

OURS = {"hgext", "pushlog", "hooks"}
MERCURIALS = {"mercurial", "hgdemandimport", "hgext3rd"}
REPORTER = """
import atexit, os, sys
def report():
    with open(os.environ["MODULES"], "w") as out:
        out.write("\\n".join(loaded()))
def loaded():
    # Mercurial's demand import leaves names in sys.modules that were never loaded.
    return [name for name, module in list(sys.modules.items()) if "Lazy" not in type(module).__name__]
atexit.register(report)
"""
# What shows or repairs pushes, and what a mirror is guarded by.
NOT_FOR_PUSHES = {
    "pushlog.checking",
    "pushlog.fetching",
    "pushlog.limit",
    "pushlog.pushed",
    "pushlog.revsets",
    "pushlog.stripping",
    "pushlog.wire",
    "pushlog.web.commands",
    "hgext.vcsreplicator.hg.hashes",
    "hgext.vcsreplicator.hg.serving.guards",
    "hgext.vcsreplicator.hg.serving.views",
    "hgext.vcsreplicator.hg.master.offer",
    "hgext.vcsreplicator.hg.master.acts.lifecycle",
    "hgext.vcsreplicator.hg.master.acts.moving",
    "hgext.vcsreplicator.hg.master.acts.stripping",
    "hgext.vcsreplicator.hg.master.acts.writing",
}
MASTER = """
[extensions]
*:required = yes
pushlog =
vcsreplicator =
[vcsreplicator]
role = master
log = sqlite:///{folder}/log.db
[vcsreplicator-roots]
{folder}/master = .
"""


def modules_of_a_push(folder: Path, hgrc: str) -> set[str]:
    """Names of all modules in the process of a local push, which is pusher and master in one."""
    (folder / "master").mkdir(parents=True)
    (folder / "reporter.py").write_text(REPORTER)
    (folder / "hgrc").write_text(hgrc)
    environment = {**os.environ, "HGRCPATH": str(folder / "hgrc"), "MODULES": str(folder / "modules")}

    def hg(*arguments: str) -> None:
        command = [str(Path(sys.executable).with_name("hg")), *arguments]
        subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)

    hg("init", "master/one")
    hg("init", "clone")
    (folder / "clone" / "file").write_text("content")
    hg("-R", "clone", "commit", "--addremove", "--message", "first", "--user", "tester")
    hg("-R", "clone", "push", "master/one", "--config", f"extensions.reporter={folder}/reporter.py")
    return set((folder / "modules").read_text().split())


@pytest.mark.processes
def test_a_push_imports_the_standard_library_mercurial_and_us_alone(tmp_path: Path) -> None:
    without = modules_of_a_push(tmp_path / "without", "")
    replicated = modules_of_a_push(tmp_path / "with", MASTER.format(folder=tmp_path / "with"))
    assert list((tmp_path / "with/master/one/.hg/store").glob("outbox.*"))  # else this measured an ordinary push
    added = {name for name in replicated - without if name.split(".")[0] not in sys.stdlib_module_names}
    assert "hgext.vcsreplicator.hg.registration" in added
    assert not {name for name in added if name.split(".")[0] not in OURS | MERCURIALS}
    assert all((CHECKOUT / f"{name.replace('.', '/')}.py").exists() for name in NOT_FOR_PUSHES)
    assert not added & NOT_FOR_PUSHES
    assert "sqlite3" not in replicated  # whose conversion of dates no push needs


# What web pages, other commands, old dates or other classes than `words.value` need; what few changes need.
NOT_OVER_SSH = {
    "dataclasses",
    "hgext.vcsreplicator.hg.master.announcing",
    "hgext.vcsreplicator.hg.master.overlay",
    "hgext.vcsreplicator.outbox.bundles",
    "hgext.vcsreplicator.hg.master.offer",
    "mercurial.hg",
    "pushlog.store.journal",
    "pushlog.web",
    "sqlite3",
}


@pytest.mark.processes
def test_a_server_over_ssh_loads_nothing_for_pages_or_other_commands(tmp_path: Path) -> None:
    (tmp_path / "reporter.py").write_text(REPORTER)
    extensions = f"[extensions]\nreporter = {tmp_path}/reporter.py\n"
    (tmp_path / "hgrc").write_text(extensions + MASTER.replace("[extensions]", "").format(folder=tmp_path))
    environment = {**os.environ, "HGRCPATH": str(tmp_path / "hgrc"), "MODULES": str(tmp_path / "modules")}

    def loaded(*arguments: str) -> set[str]:
        command = [str(Path(sys.executable).with_name("hg")), *arguments]
        subprocess.run(
            command, check=True, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True
        )
        return set((tmp_path / "modules").read_text().split())

    loaded("init", "master/one")
    assert not loaded("-R", "master/one", "serve", "--stdio") & NOT_OVER_SSH
    assert {"mercurial.hg", "pushlog.web.seam"} <= loaded("-R", "master/one", "log")
