# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps a push from its transaction is a sentence for its pusher, over HTTP and SSH and to a path."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys

import pytest

from pushlog import versions
from testing.warm_hg import shared_hg
from tests.pushlog.conftest import HG, environment

pytestmark = pytest.mark.processes

# Permissions bind root too.
POWERLESS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
STEP = "(push again later; if this stays, the server's administrators look at that process)"
MASTER = (
    "vcsreplicator =\n[vcsreplicator]\nrole = master\nlog = sqlite://{folder}/log.db\n"
    "[vcsreplicator-roots]\n{folder}/server = server\n"
)


@pytest.fixture(params=["pushlog"] if versions.is_older_than(versions.OLDEST_REPLICATED) else ["pushlog", "master"])
def folder(tmp_path, request):
    """A folder with the empty repository `server` and `client`, which has one changeset."""
    extensions = MASTER.format(folder=tmp_path) if request.param == "master" else ""
    (tmp_path / "hgrc").write_text(
        f"[extensions]\n*:required = yes\npushlog =\n{extensions}[web]\nallow-push = *\npush_ssl = no\n"
        "[ui]\nusername = test\ntimeout = 0\n"
    )
    warm = [shared_hg(environment(tmp_path))]
    assert run(tmp_path, "init", "server", program=warm)[0] == 0
    client = ("--config", "extensions.vcsreplicator=!", "--config", "extensions.pushlog=!")
    assert run(tmp_path, "init", "client", *client, program=warm)[0] == 0
    (tmp_path / "client" / "file").write_text("content")
    assert run(tmp_path, "-R", "client", "commit", "-A", "-q", "-m", "first", *client, program=warm)[0] == 0
    return tmp_path


def run(folder, *arguments, program=(*POWERLESS, HG)):
    variables = {**environment(folder), "USER": "alice"}
    done = subprocess.run(
        [*program, *arguments], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def address(folder, kind):
    """The address of the server, over HTTP, SSH, or in the file system."""
    if kind != "http":
        yield f"ssh://user@dummy/{folder}/server" if kind == "ssh" else str(folder / "server")
        return
    variables = {**environment(folder), "USER": "alice"}
    command = [
        *POWERLESS,
        HG,
        "serve",
        "-R",
        "server",
        "-a",
        "127.0.0.1",
        "-p",
        "0",
        "--print-url",
        "--accesslog",
        os.devnull,
    ]
    with subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        try:
            [line] = itertools.islice((line for line in server.stdout if line.startswith(b"http:")), 1)
            yield f"http://127.0.0.1:{line.decode().strip().rstrip('/').rpartition(':')[2]}"
        finally:
            server.terminate()


def push(folder, kind):
    with address(folder, kind) as there:
        # In place of ssh: run the command, which is the last argument, on this machine.
        ssh = f"{sys.executable} -c 'import subprocess, sys; sys.exit(subprocess.call(sys.argv[-1], shell=True))'"
        options = ("--config", f"ui.ssh={ssh}", "--remotecmd", HG) if kind == "ssh" else ()
        own = ("--config", "extensions.vcsreplicator=!") if kind != "path" else ()
        return run(folder, "-R", "client", "push", there, *options, *own)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["http", "ssh", "path"])
def test_a_pusher_reads_who_holds_the_lock(folder, kind):
    lock = folder / "server" / ".hg" / "store" / "lock"
    lock.symlink_to(f"{socket.gethostname()}/f0:{os.getpid()}")  # of a process that runs, in a container
    status, printed = push(folder, kind)
    assert status == 255
    assert (
        f"process {os.getpid()} on {socket.gethostname()} holds the lock of the repository; nothing was pushed"
        in printed
    )
    assert STEP in printed
    assert "Traceback" not in printed
    assert "500" not in printed
    lock.unlink()
    status, printed = push(folder, kind)
    assert status == 0, printed
    assert "recorded push in pushlog" in printed


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["http", "ssh"])
def test_a_pusher_reads_that_the_server_cannot_lock(folder, kind):
    store = folder / "server" / ".hg" / "store"
    store.chmod(0o555)
    status, printed = push(folder, kind)
    store.chmod(0o755)
    assert status == 255
    assert "the repository cannot be locked: Permission denied; nothing was pushed" in printed
    assert "500" not in printed


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["http", "ssh"])
def test_an_abandoned_transaction_is_rolled_back_or_a_sentence(folder, kind):
    for name in ("journal", "journal.backupfiles"):
        (folder / "server" / ".hg" / "store" / name).write_bytes(b"")
    status, printed = push(folder, kind)
    assert status == 0 or "abandoned transaction found" in printed
    assert status == 0 or "(run 'hg recover' to clean up transaction)" in printed
    assert "stream ended" not in printed
    assert "500" not in printed
