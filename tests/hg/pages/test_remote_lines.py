# SPDX-License-Identifier: GPL-2.0-or-later
"""The lines of a push over SSH: a client that does not read them keeps no one from the repository."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from hgext.vcsreplicator.hg.pages import remote_lines
from testing.builders.master.pushing import Master, new_master
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

# More than a pipe holds.
LOUD = """
def hook(ui=None, **_arguments):
    for _ in range(3000):
        ui.%s(b"a line that is printed under the lock\\n")
"""
HURRY = "from hgext.vcsreplicator.hg.pages import remote_lines\nremote_lines.PATIENCE = 0.2\n"


def push_and_read_nothing(master: Master) -> int:
    """Push with a client whose end of the server's messages is never read; return the exit code, as the client has the answer."""
    pipe, ssh = master.folder / "messages", master.folder / "deaf-ssh"
    os.mkfifo(pipe)
    ssh.write_text((master.folder / "ssh").read_text().replace('"exec $*"', f'"exec $*" "2<>{pipe}"'))
    ssh.chmod(0o755)
    where = f"ssh://x/{master.root}/one"
    words = [shared_hg(), "-R", str(master.folder / "clone-one"), "push", "--config", f"ui.ssh={ssh}", where]
    environment = {**os.environ, "HGRCPATH": str(master.folder / "client.hgrc"), "USER": "dana"}
    return subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, check=False, timeout=100).returncode


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("how", ["status", "warn"])
def test_a_client_that_reads_no_lines_of_its_push_holds_no_lock(how: str) -> None:
    with new_master() as master:
        hurry, loud = write(master.folder / "hurry.py", HURRY), write(master.folder / "loud.py", LOUD % how)
        master.configure(f"[extensions]\nhurry = {hurry}\n[hooks]\npretxnchangegroup.loud = python:{loud}:hook\n")
        master.create("one")
        master.commit("one", "a")
        assert push_and_read_nothing(master) == 0
        assert master.operate("-R", str(master.root / "one"), "log", "-T", "{desc}") == "a"


def test_a_client_that_reads_late_gets_all_lines() -> None:
    with new_master() as master:
        loud = write(master.folder / "loud.py", LOUD % "status")
        master.configure(f"[hooks]\npretxnchangegroup.loud = python:{loud}:hook\n")
        master.create("one")
        master.commit("one", "a")
        slow = master.folder / "slow-ssh"
        late = (master.folder / "ssh").read_text().replace('"exec $*"', '"$*" "2>&1 >&3 | (sleep 1; cat >&2)"')
        slow.write_text(late.replace("eval", "exec 3>&1\neval"))
        slow.chmod(0o755)
        said = master.push("one", "--config", f"ui.ssh={slow}")
        whole = said.replace("\nremote: ", "")  # the client divides lines, too, where a read ended
        assert whole.count("a line that is printed under the lock") == 3000


def test_a_client_that_reads_a_little_now_and_then_holds_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece waits less than the limit; together they would take a minute."""
    monkeypatch.setattr(remote_lines, "PATIENCE", 0.5)
    end, begin = os.pipe()
    ended = threading.Event()

    def read_slowly() -> None:
        while not ended.wait(0.2):
            os.read(end, 4096)

    reader = threading.Thread(target=read_slowly)
    with open(begin, "wb", buffering=0) as file:
        lines, started = remote_lines.RemoteLines(file), time.monotonic()
        reader.start()
        try:
            lines.write(b"x" * 1_300_000)
            assert time.monotonic() - started < 30
        finally:
            ended.set()
            reader.join()
    os.close(end)
