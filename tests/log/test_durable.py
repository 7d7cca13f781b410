# SPDX-License-Identifier: GPL-2.0-or-later
"""What the embedded log, the blob folder and a mirror's notes call durable is on disk: every write before their word was synced.

The program under strace writes a mark when it was given the word; the worst disk keeps only what a sync had ended before that.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testing.faults import SystemCall, SystemCalls

pytestmark = pytest.mark.processes

LOG = """
import os, sys
from pathlib import Path
from hgext.vcsreplicator.log import EVENTS, STATE, NewRecord, topics
from hgext.vcsreplicator.log.sqlite.adapter import SqliteLog

told = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY)
def tell(word): os.write(told, word.encode())
def message(number): return NewRecord(topic=EVENTS, key=str(number), value=b"1")

with SqliteLog(Path(sys.argv[1], "log.db"), creates=True) as log:
    tell("opened")
    log.create(topics(partitions=2)); tell("created")
    for number in range(3):
        log.append([message(number)]); tell("appended")
    transactor = log.transactor("single"); tell("fenced")
    transactor.commit([message(4)], group="g", positions={(EVENTS, 0): 1}); tell("committed")
    log.acknowledge("g", EVENTS, {0: 2}); tell("acknowledged")
    log._connection.close(); log._connection = None
    log.append([message(5)]); tell("appended anew")
"""
WORDS = ["opened", "created", *["appended"] * 3, "fenced", "committed", "acknowledged", "appended anew"]

BLOBS = """
import os, sys
from hgext.vcsreplicator.log.blobs import open_blobs

told = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY)
for bundle in (b"one", b"other", b"one"):
    open_blobs("file://" + sys.argv[1]).put([b"x" * 100_000, bundle])
    os.write(told, b"stored")
"""

NOTES = """
import os, sys
from pathlib import Path
from hgext.vcsreplicator.mirror.notes import DeletedRepository, Detached, Notes
from hgext.vcsreplicator.words.records import Reason

told = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY)
def tell(word): os.write(told, word.encode())

notes = Notes(Path(sys.argv[1], "notes.db")); tell("opened")
notes.detach(Detached(repository="r", path="p", partition=0, offset=5, reason=Reason.SLOW, note="", since=1.0)); tell("detached")
notes.record_deletion(DeletedRepository(repository="d", path="p", incarnation="i", seq=3, since=1.0)); tell("deleted")
notes.request_heal("r", who="dana", now=1.0); tell("requested")
notes.rejoin("r"); tell("rejoined")
"""


def path_of(call: SystemCall) -> str:
    """The file that a call writes or syncs, or the folder that it changes."""
    if call.name in ("link", "rename", "mkdir", "unlink"):
        return os.path.dirname(re.findall(r'"([^"]*)"', call.text)[-1])
    return re.search(r"<([^>]*)>", call.text)[1]


def unsynced(calls: list[SystemCall], folder: Path, told: Path) -> list[tuple[str, set[str]]]:
    """Each word that was given, and what of `folder` was not on disk by then."""
    found: list[tuple[str, set[str]]] = []
    waiting: set[str] = set()
    for call in calls:
        if call.name in ("write", "pwrite64", "link", "rename", "mkdir"):
            path = path_of(call)
            if path == str(told):
                found.append((re.search(r'"([^"]*)"', call.text)[1], set(waiting)))
            elif Path(path).is_relative_to(folder) and not path.endswith("-shm"):  # which is rebuilt from the WAL
                waiting.add(path)
                if call.name in ("link", "rename"):
                    source, target = re.findall(r'"([^"]*)"', call.text)
                    waiting |= {target} if source in waiting else set()
        elif call.name in ("fsync", "fdatasync"):
            waiting.discard(path_of(call))
        elif call.name == "unlink":
            waiting.discard(re.findall(r'"([^"]*)"', call.text)[-1])
    return found


@pytest.mark.parametrize(
    ("program", "words"),
    [(LOG, WORDS), (BLOBS, ["stored"] * 3), (NOTES, ["opened", "detached", "deleted", "requested", "rejoined"])],
    ids=["log", "blobs", "notes"],
)
def test_nothing_waits_for_the_disk_once_it_is_called_durable(tmp_path: Path, program: str, words: list[str]) -> None:
    folder, told = tmp_path / "folder", tmp_path / "told"
    folder.mkdir()
    calls = SystemCalls(log=tmp_path / "strace.log").made(
        [sys.executable, "-c", program, str(folder), str(told)], lambda argv: subprocess.run(argv, check=True)
    )
    mine = [call for call in calls if str(tmp_path) in call.text and "log.db-wake" not in call.text]
    assert unsynced(mine, folder, told) == [(word, set()) for word in words]
    syncs = [call for call in mine if call.name in ("fsync", "fdatasync")]
    assert len(syncs) >= len(set(words)), "the program's files are seen"
