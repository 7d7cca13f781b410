# SPDX-License-Identifier: GPL-2.0-or-later
"""A push loads the standard library, Mercurial and those of our modules that record it: measured in the pushing process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT
from testing.waiting import eventually
from testing.warm_hg import shared_hg

# Imports what it uses, and nothing else; a warm one has imported all.
COLD = str(Path(sys.executable).with_name("hg"))
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
    "pushlog.attribute",
    "pushlog.checking",
    "pushlog.fetching",
    "pushlog.limit",
    "pushlog.pushed",
    "pushlog.revsets",
    "pushlog.store.restart",
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

    def hg(program: str, *arguments: str) -> None:
        subprocess.run([program, *arguments], check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)

    warm = shared_hg(environment)
    hg(warm, "init", "master/one")
    hg(warm, "init", "clone")
    (folder / "clone" / "file").write_text("content")
    hg(warm, "-R", "clone", "commit", "--addremove", "--message", "first", "--user", "tester")
    hg(COLD, "-R", "clone", "push", "master/one", "--config", f"extensions.reporter={folder}/reporter.py")
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
        subprocess.run(
            [COLD, *arguments], check=True, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True
        )
        return set((tmp_path / "modules").read_text().split())

    subprocess.run([shared_hg(environment), "init", "master/one"], check=True, cwd=tmp_path, env=environment)
    assert not loaded("-R", "master/one", "serve", "--stdio") & NOT_OVER_SSH
    assert {"mercurial.hg", "pushlog.web.seam"} <= loaded("-R", "master/one", "log")


HELLO = b"hello\nbetween\npairs 81\n" + b"0" * 40 + b"-" + b"0" * 40
PUSHLOG = "[extensions]\n*:required = yes\npushlog =\n"
# What records a push: loaded only once the client has its first answer.
WHILE_THE_CLIENT_WORKS = {
    "_sqlite3",
    "mercurial.bookmarks",
    "mercurial.context",
    "mercurial.manifest",
    "pushlog.recording",
    "pushlog.store.appendfile",
    "pushlog.store.boot",
    "pushlog.store.connections",
    "pushlog.store.database",
    "pushlog.store.derivation",
    "pushlog.store.entry",
    "pushlog.store.frames",
    "pushlog.store.session",
    "pushlog.store.statements",
    "pushlog.store.storage",
}
# What writes its event.
OF_AN_EVENT = {
    "pushlog.api",
    "pushlog.store.disk",
    *(
        f"hgext.vcsreplicator.{name}"
        for name in ("outbox.entry", "outbox.file", "relay.client", "words.digest", "words.event", "hg.observe")
    ),
    *(
        f"hgext.vcsreplicator.hg.master.{name}"
        for name in ("capture", "creation", "durability", "formats", "pushes", "refusals", "reporting", "transactions")
    ),
}
SERVED = [(PUSHLOG, WHILE_THE_CLIENT_WORKS), (MASTER, WHILE_THE_CLIENT_WORKS | OF_AN_EVENT)]


class Server:
    """`hg serve --stdio` of a new repository, which writes down its modules at its end."""

    def __init__(self, folder: Path, hgrc: str) -> None:
        (folder / "reporter.py").write_text(REPORTER)
        reporter = f"[extensions]\nreporter = {folder}/reporter.py\n"
        (folder / "hgrc").write_text(reporter + hgrc.format(folder=folder))
        self._modules = folder / "modules"
        environment = {**os.environ, "HGRCPATH": str(folder / "hgrc"), "MODULES": str(self._modules)}
        init = [shared_hg(environment), "init", "master/one"]
        subprocess.run(init, check=True, cwd=folder, env=environment, capture_output=True)
        command = [COLD, "-R", "master/one", "serve", "--stdio"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe)

    def list_modules(self) -> set[str]:
        return set(self._modules.read_text().split())


@pytest.mark.sample(1)
@pytest.mark.processes
@pytest.mark.parametrize(("hgrc", "awaited"), SERVED, ids=["pushlog", "master"])
def test_a_client_that_leaves_no_time_gets_its_answers_at_once(tmp_path: Path, hgrc: str, awaited: set[str]) -> None:
    server = Server(tmp_path, hgrc)
    answer, _ = server.process.communicate(HELLO)
    assert b"pushlog" in answer
    assert not server.list_modules() & awaited


@pytest.mark.sample(1)
@pytest.mark.processes
@pytest.mark.parametrize(("hgrc", "awaited"), SERVED, ids=["pushlog", "master"])
def test_a_server_loads_what_a_push_uses_while_its_client_works(tmp_path: Path, hgrc: str, awaited: set[str]) -> None:
    server = Server(tmp_path, hgrc)
    with server.process as process:
        assert process.stdin is not None
        process.stdin.write(HELLO)
        process.stdin.flush()
        eventually(lambda: _waits_for_input(process), "the server waits for its next request")
        process.stdin.close()
    assert server.list_modules() >= awaited


def _waits_for_input(server: "subprocess.Popen[bytes]") -> bool:
    """Return whether a process is blocked in reading from the pipe that we write to."""
    number, file, *_ = [*Path(f"/proc/{server.pid}/syscall").read_text().split(), ""]
    pipe = os.readlink(f"/proc/self/fd/{server.stdin.fileno()}") if server.stdin else ""
    return number == "0" and os.readlink(f"/proc/{server.pid}/fd/{int(file, 16)}") == pipe
