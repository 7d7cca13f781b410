# SPDX-License-Identifier: GPL-2.0-or-later
"""Histories that need more memory than there is: an account of the group writes them into its own repository."""

import os
import re
import resource
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mercurial import zstd

from hgext.vcsreplicator.log import SERVICES, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.records import RELAY_KEY, ServiceReport
from hgext.vcsreplicator.words.shape import from_json
from hgext.vcsreplicator.words.unexpected import OUT_OF_MEMORY
from testing.builders.master.pushing import Master, events, new_master
from testing.waiting import eventually

pytestmark = pytest.mark.processes

MIB = 1 << 20
# Bytes that each history unpacks to, and that the relay may use besides what it has.
SIZE, ROOM = 2048 * MIB, 256 * MIB


def replace_text(index: Path, chunk: bytes) -> None:
    """Makes this the stored text of a history's first revision."""
    entry = bytearray(index.read_bytes()[:64])
    struct.pack_into(">ii", entry, 8, len(chunk), SIZE - 1)
    data = index.with_suffix(".d")
    index.write_bytes(bytes(entry) if data.exists() else bytes(entry) + chunk)
    if data.exists():
        data.write_bytes(chunk)


def write_deflated(index: Path) -> None:
    packer, zeros = zlib.compressobj(), bytes(16 * MIB)
    first, next_ = (packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    replace_text(index, first + next_ * (SIZE // len(zeros)))


def write_zstandard(index: Path) -> None:
    packer, zeros = zstd.ZstdCompressor(level=1).compressobj(), bytes(16 * MIB)
    replace_text(index, b"".join([*(packer.compress(zeros) for _ in range(SIZE // len(zeros))), packer.flush()]))


def write_hole(index: Path) -> None:
    os.truncate(index, 4 * SIZE)


HOSTILE: dict[str, Callable[[Path], None]] = {
    "deflated": write_deflated,
    "zstandard": write_zstandard,
    "hole": write_hole,
}


@contextmanager
def running(config: Path, master: Master) -> Iterator[subprocess.Popen[bytes]]:
    """The relay as a process of its own."""
    words = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "relay", "--config", str(config)]
    with (
        open(config.with_name("relay.log"), "wb") as lines,
        subprocess.Popen(words, env={**os.environ, "HGRCPATH": ""}, stderr=lines) as process,
    ):
        try:
            eventually(Path(master.socket).exists)
            yield process
        finally:
            process.kill()


def test_a_history_that_no_memory_holds_stops_its_repository_alone(tmp_path: Path) -> None:
    url, config = f"sqlite://{tmp_path}/log.db", tmp_path / "services.toml"
    with open_log(url, creates=True) as log, new_master("acknowledge = outbox") as master:
        log.create(topics())
        config.write_text(
            f'log = "{url}"\n[relay]\nsocket = "{master.socket}"\nsource = "hg://master"\nscan = 1\n'
            f'[relay.roots]\n"{master.root}" = ""\n'
        )
        names = [*HOSTILE, "neighbour"]
        for name in (*names, "quiet"):
            master.create(name)
            master.commit(name, "first")
        master.push("quiet")
        with running(config, master) as relay:
            eventually(lambda: len(events(log)) == len(names) + 1 and len(events(log)["quiet"]) == 2)
            assert resource.prlimit(relay.pid, resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
            relay.send_signal(signal.SIGSTOP)
            for name in names:
                master.push(name)
            for name, write in HOSTILE.items():
                write(master.root / name / ".hg/store/data/file.i")
            write_deflated(master.root / "quiet/.hg/store/00changelog.i")
            [used] = re.findall(r"^VmData:\s+(\d+) kB", Path(f"/proc/{relay.pid}/status").read_text(), re.MULTILINE)
            resource.prlimit(relay.pid, resource.RLIMIT_DATA, (int(used) * 1024 + ROOM, resource.RLIM_INFINITY))
            relay.send_signal(signal.SIGCONT)

            def read_troubles() -> list[str]:
                value = read_table(log, SERVICES).value(SERVICES, f"{RELAY_KEY}hg://master")
                return [] if value is None else [each.text for each in from_json(ServiceReport, value).troubles]

            listed = f"3 repositories ({', '.join(sorted(HOSTILE))}), each: events wait in its outbox: {OUT_OF_MEMORY}"
            refuses = f"quiet: pushes are refused: a file of its history cannot be read: {OUT_OF_MEMORY}"
            eventually(lambda: all(any(part in text for text in read_troubles()) for part in (listed, refuses)))
            assert len(events(log)["neighbour"]) == 2
            for number in range(3):
                master.commit("neighbour", f"later {number}")
                master.push("neighbour")
                eventually(lambda count=number + 3: len(events(log)["neighbour"]) == count)
            assert relay.poll() is None
            assert {name: len(found) for name, found in events(log).items()} == {
                **dict.fromkeys(HOSTILE, 1),
                "quiet": 2,
                "neighbour": 5,
            }
