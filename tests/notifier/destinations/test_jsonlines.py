# SPDX-License-Identifier: GPL-2.0-or-later
"""JSON lines: whole lines only, through every change of the file."""

import errno
import json
import os
import stat
import sys
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.delivery.destination import Destination
from notifier.delivery.window import Delivery
from notifier.destinations.jsonlines import JsonLinesSettings, StdoutSettings
from notifier.messages.message import messages
from notifier.messages.public import PublicSettings
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import a_notice, an_event
from testing.faults.permission import under
from testing.faults.system import System

pytestmark = pytest.mark.processes

PUBLIC = PublicSettings(urls={"": "https://hg.example/"})


def opened(file: Path) -> Destination:
    return JsonLinesSettings(file=str(file)).open("lines", SystemClock(), MemoryLog())


def send(destination: Destination, *seqs: int) -> list[str | None]:
    """Errors of the pushes' outcomes."""
    for seq in seqs:
        [message] = messages(a_notice(an_event("x", seq)), seq, PUBLIC)
        destination.submit(Delivery(number=seq, message=message, attempt=1))
    outcomes = destination.outcomes(0)
    assert [outcome.number for outcome in outcomes] == list(seqs)
    return [None if outcome.error is None else str(outcome.error) for outcome in outcomes]


def sequences(file: Path) -> list[int]:
    return [json.loads(line)["sequence"] for line in file.read_text().splitlines()]


def test_line_has_the_message_its_id_and_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    assert send(opened(file), 2) == [None]
    [line] = file.read_text().splitlines()
    content = json.loads(line)
    event = an_event("x", 2)
    assert content["id"] == f"{event.id}.changegroup.1"
    assert content["previous"] == f"{event.previous}.changegroup.1"
    assert content["type"] == "changegroup.1"
    assert content["repository"] == event.repository
    assert content["data"]["repo_url"] == "https://hg.example/x"


def test_no_other_user_may_read_a_new_file(tmp_path: Path) -> None:
    new, kept = tmp_path / "new.jsonl", tmp_path / "kept.jsonl"
    kept.touch()
    kept.chmod(0o644)
    with under(0):
        send(opened(new), 1)
        send(opened(kept), 1)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (new, kept)] == [0o640, 0o644]


def test_renamed_file_is_left_and_a_new_one_begun(tmp_path: Path) -> None:
    file, rotated = tmp_path / "out.jsonl", tmp_path / "out.jsonl.1"
    destination = opened(file)
    send(destination, 1)
    file.rename(rotated)
    send(destination, 2)
    assert (sequences(rotated), sequences(file)) == ([1], [2])


def test_removed_file_is_begun_again(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    destination = opened(file)
    send(destination, 1)
    file.unlink()
    send(destination, 2)
    assert sequences(file) == [2]


@pytest.mark.parametrize("torn", [b'{"data": {"he', b"x" * 200_000])
def test_line_cut_short_by_a_crash_is_removed(tmp_path: Path, torn: bytes) -> None:
    file = tmp_path / "out.jsonl"
    destination = opened(file)
    send(destination, 1)
    destination.close()
    with file.open("ab") as handle:
        handle.write(torn)
    send(opened(file), 2)
    assert sequences(file) == [1, 2]


def test_file_with_nothing_but_half_a_line_is_emptied(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_bytes(b'{"da')
    send(opened(file), 1)
    assert sequences(file) == [1]


def test_full_disk_is_waited_out_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.write

    def write(number: int, data: memoryview) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(number, data[:-50])

    file = tmp_path / "out.jsonl"
    destination = opened(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        [error] = send(destination, 1)
    assert error is not None
    assert "No space left on device" in error
    assert file.read_bytes() == b""
    assert send(destination, 1) == [None]
    assert sequences(file) == [1]


def test_a_link_to_another_file_is_not_followed(tmp_path: Path) -> None:
    other, file = tmp_path / "other", tmp_path / "out.jsonl"
    other.write_bytes(b"no line")
    file.symlink_to(other)
    with pytest.raises(Unavailable, match=r"out\.jsonl: is a link; name the file itself"):
        opened(file).start()
    assert other.read_bytes() == b"no line"
    file.unlink()
    destination = opened(file)
    assert send(destination, 1) == [None]
    file.rename(tmp_path / "rotated")
    file.symlink_to(other)
    [error] = send(destination, 1)
    assert error is not None
    assert "is a link" in error
    assert other.read_bytes() == b"no line"


REFUSED = "is a pipe or a device, where no line can be synced; name a regular file"


def test_pipe_is_refused_and_gets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "pipe"
    os.mkfifo(file)
    reader = os.open(file, os.O_RDWR | os.O_NONBLOCK)
    destination = opened(file)
    with pytest.raises(Unavailable, match=REFUSED):
        destination.start()
    assert [send(destination, 1) for _ in range(2)] == [[f"{file}: {REFUSED}"]] * 2
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    os.close(reader)
    file.unlink()
    assert send(destination, 1) == [None]
    assert sequences(file) == [1]


def test_device_is_refused() -> None:
    assert send(opened(Path("/dev/null")), 1) == [f"/dev/null: {REFUSED}"]


def test_file_that_another_writes_is_waited_for(tmp_path: Path, system: System) -> None:
    """With a full disk each would cut what the other had confirmed."""
    file = tmp_path / "out.jsonl"
    first, second = opened(file), opened(file)
    answers: list[list[str | None]] = []
    first_writes = [first]

    def fail(_: str) -> None:
        while first_writes:
            first_writes.pop()
            answers.append(send(second, 2))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert send(first, 1) == [None]
    system.watch(fail, "os.write")
    [error] = send(first, 3)
    assert error is not None
    confirmed = [1, *([2] if answers == [[None]] else [])]
    assert sequences(file) == confirmed
    assert send(second, 2) == [None]
    assert send(first, 4) == [f"{file}: another destination or process writes it; name another file"]


def test_missing_folder_is_waited_out(tmp_path: Path) -> None:
    destination = opened(tmp_path / "later" / "out.jsonl")
    with pytest.raises(Unavailable, match="No such file"):
        destination.start()
    assert send(destination, 1) != [None]
    (tmp_path / "later").mkdir()
    assert send(destination, 1) == [None]


def test_line_counts_once_file_and_name_are_synced(tmp_path: Path, system: System) -> None:
    file = tmp_path / "out.jsonl"
    destination = opened(file)
    with system.refuse(errno.EIO, "os.fsync", at=str(file)):
        [error] = send(destination, 1)
    assert error is not None
    assert "Input/output error" in error
    assert sequences(file) == []
    with system.refuse(errno.EIO, "os.fsync", at=str(tmp_path)):
        assert send(destination, 1) != [None]
    assert send(destination, 1) == [None]
    with system.refuse(errno.EIO, "os.fsync", at=str(tmp_path)):
        assert send(destination, 2) == [None], "its name is on the disk already"
    assert sequences(file) == [1, 2]


def test_file_must_be_named_absolutely() -> None:
    with pytest.raises(ValueError, match="file: expected an absolute path"):
        JsonLinesSettings(file="out.jsonl")


def test_standard_output_gets_lines_and_a_full_one_is_unavailable(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = StdoutSettings().open("lines", SystemClock(), MemoryLog())
    output.start()
    assert send(output, 1, 2) == [None, None]
    assert [json.loads(line)["sequence"] for line in capfdbinary.readouterr().out.splitlines()] == [1, 2]
    file = os.open("/dev/full", os.O_WRONLY)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full := os.fdopen(file, "w"))
        [trouble] = send(output, 3)
    assert trouble is not None
    assert trouble.startswith("standard output: No space left on device; ")
    os.dup2(os.open(os.devnull, os.O_WRONLY), file)  # so that its line can go when it is closed
    full.close()
