# SPDX-License-Identifier: GPL-2.0-or-later
"""The queue on disk: what was appended comes out in order, over kills, torn tails, damage and full disks."""

import errno
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import structlog

from hgext.vcsreplicator.words.errors import BadConfig
from notifier.services.edge import diskqueue
from notifier.services.edge.diskqueue import DiskQueue
from testing.faults.system import System

LIMIT = 10**6


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diskqueue, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(diskqueue, "READ_BYTES", 50)


def drain(queue: DiskQueue) -> list[bytes]:
    found = []
    while not queue.is_empty:
        found += queue.read()
        queue.drop()
    return found


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def numbers(begin: int, end: int) -> list[bytes]:
    return [b'{"n": %d}' % number for number in range(begin, end)]


def test_values_come_out_in_order_and_leave_no_file(tmp_path: Path, small_files: None) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        for begin in range(0, 60, 3):
            assert queue.append(numbers(begin, begin + 3)) == 3
        assert len(files(tmp_path)) > 5
        assert drain(queue) == numbers(0, 60)
        assert files(tmp_path) == []
        assert queue.room <= LIMIT


def test_what_was_appended_is_there_after_a_kill(tmp_path: Path, small_files: None) -> None:
    killed = DiskQueue(str(tmp_path), LIMIT)
    for begin in range(0, 60, 3):
        killed.append(numbers(begin, begin + 3))
    before = killed.read()
    killed.drop()
    killed.close()  # as the kernel does
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        queue.append(numbers(60, 61))
        found = drain(queue)
    # The file that was being read is read again, from its beginning.
    assert found == numbers(0, 61)
    assert before == found[: len(before)]


def test_a_value_may_be_appended_while_the_last_file_is_read(tmp_path: Path) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        queue.append(numbers(0, 3))
        assert queue.read() == numbers(0, 3)
        queue.append(numbers(3, 5))
        queue.drop()
        assert queue.read() == numbers(3, 5)
        queue.drop()
        assert queue.is_empty
        queue.append(numbers(5, 6))
        assert drain(queue) == numbers(5, 6)


def test_the_bound_takes_what_fits_and_frees_it_when_it_is_read(tmp_path: Path) -> None:
    value = b"x" * 90  # a line of 100 bytes
    with closing(DiskQueue(str(tmp_path), 1000)) as queue:
        assert queue.append([value] * 4) == 4
        assert queue.append([value] * 9) == 6
        assert queue.append([value]) == 0
        assert queue.room == 0
        assert drain(queue) == [value] * 10
        assert queue.append([value] * 11) == 10


def test_the_bound_counts_what_a_former_process_left(tmp_path: Path) -> None:
    with closing(DiskQueue(str(tmp_path), 1000)) as queue:
        queue.append([b"x" * 90] * 8)
    with closing(DiskQueue(str(tmp_path), 1000)) as queue:
        assert queue.append([b"x" * 90] * 8) == 2


@pytest.mark.parametrize("torn", [b"0", b"00000000 {", b"00000000 {}\n", b"\x00" * 5000, b"\n", b"\xff\n\xff"])
def test_a_torn_tail_is_cut_with_one_line(tmp_path: Path, torn: bytes) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        queue.append(numbers(0, 3))
    [name] = files(tmp_path)
    with open(tmp_path / name, "ab") as file:
        file.write(torn)
    with structlog.testing.capture_logs() as lines:
        queue = DiskQueue(str(tmp_path), LIMIT)
    with closing(queue):
        queue.append(numbers(3, 4))
        assert drain(queue) == numbers(0, 4)
    assert [(line["event"], line["size"]) for line in lines] == [("torn tail cut", len(torn))]
    assert files(tmp_path) == []


def test_a_file_that_is_torn_from_its_first_line_on_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "0000000007.log").write_bytes(b"000")
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        assert queue.is_empty
    assert files(tmp_path) == []


def test_a_damaged_line_is_skipped_and_its_file_kept(tmp_path: Path, small_files: None) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        for begin in range(0, 30, 3):
            queue.append(numbers(begin, begin + 3))
    second = tmp_path / files(tmp_path)[1]
    content = second.read_bytes()
    second.write_bytes(content.replace(b'"n"', b'"m"', 1))
    lost = numbers(0, 30).index(content.splitlines()[0][9:])
    with structlog.testing.capture_logs() as lines, closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        assert drain(queue) == [value for number, value in enumerate(numbers(0, 30)) if number != lost]
    assert [line["event"] for line in lines] == ["queue damaged"]
    assert files(tmp_path) == [second.with_suffix(".damaged").name]


def test_a_kept_damaged_file_is_never_replaced(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
            queue.append([content, b"sound"])
        [name] = [name for name in files(tmp_path) if name.endswith(".log")]
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes().replace(content, content.upper()))
        with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
            assert drain(queue) == [b"sound"]
    assert [b"FIRST" in (tmp_path / name).read_bytes() for name in files(tmp_path)] == [True, False]


def test_a_file_that_became_shorter_does_not_stop_the_queue(tmp_path: Path, small_files: None) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        for begin in range(0, 30, 3):
            queue.append(numbers(begin, begin + 3))
        first = tmp_path / files(tmp_path)[0]
        first.write_bytes(first.read_bytes()[:-30])
        found = drain(queue)
        assert found[-15:] == numbers(15, 30)
        assert files(tmp_path) == [first.with_suffix(".damaged").name]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_append_takes_nothing_and_the_next_goes_on(tmp_path: Path) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        queue.append(numbers(0, 3))
        with full_disk(100), pytest.raises(OSError):
            queue.append([b"x" * 1000])
        queue.append(numbers(3, 5))
        with full_disk(0), pytest.raises(OSError):
            queue.append([b"x" * 1000])
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        queue.append(numbers(5, 6))
        assert drain(queue) == numbers(0, 6)
    assert files(tmp_path) == []


def test_a_failed_sync_takes_nothing_and_its_file_grows_no_more(tmp_path: Path, system: System) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        queue.append(numbers(0, 3))
        with system.refuse(errno.EIO, "os.fdatasync"), pytest.raises(OSError, match="Input/output"):
            queue.append([b"x" * 100])
        queue.append(numbers(3, 5))
        assert len(files(tmp_path)) == 2
        assert drain(queue) == numbers(0, 5)


def test_failed_appends_leave_one_file_however_many_they_are(tmp_path: Path) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        queue.append(numbers(0, 3))
        with full_disk(0):
            for _ in range(20):
                with pytest.raises(OSError):
                    queue.append([b"x" * 1000])
        assert len(files(tmp_path)) == 2
        queue.append(numbers(3, 5))
        assert len(files(tmp_path)) == 2
        assert drain(queue) == numbers(0, 5)
    assert files(tmp_path) == []


def test_a_value_is_appended_to_a_failed_appends_file_while_it_is_read(tmp_path: Path) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        with full_disk(0), pytest.raises(OSError):
            queue.append([b"x" * 1000])
        assert queue.read() == []
        queue.append(numbers(0, 2))
        queue.drop()
        assert drain(queue) == numbers(0, 2)
    assert files(tmp_path) == []


def test_a_file_whose_folder_could_not_be_synced_holds_nothing(tmp_path: Path, system: System) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        with system.refuse(errno.EIO, "os.fsync", at=str(tmp_path)) as fault:
            for _ in range(2):
                with pytest.raises(OSError, match="Input/output"):
                    queue.append(numbers(0, 1))
        assert len(fault.paths) == 2, "it is synced again"
        queue.append(numbers(1, 2))
        assert drain(queue) == numbers(1, 2)


def test_two_edges_do_not_share_a_queue(tmp_path: Path) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)), pytest.raises(BadConfig, match=r"edge\.queue.*another edge uses it"):
        DiskQueue(str(tmp_path), LIMIT)
    DiskQueue(str(tmp_path), LIMIT).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadConfig, match=r"edge\.queue: .*/file/queue: cannot be used: Not a directory"):
        DiskQueue(str(tmp_path / "file" / "queue"), LIMIT)


def test_what_the_log_refuses_is_kept_for_an_operator(tmp_path: Path) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        queue.set_aside(b'{"a": 1}')
        queue.set_aside(b'{"a": 2}')
        assert [line[9:] for line in (tmp_path / "rejected.log").read_bytes().splitlines()] == [
            b'{"a": 1}',
            b'{"a": 2}',
        ]
        assert (tmp_path / "rejected.log").stat().st_mode & 0o777 == 0o600
        assert queue.is_empty
    (tmp_path / "rejected.log").rename(tmp_path / "0000000000.log")
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        assert drain(queue) == [b'{"a": 1}', b'{"a": 2}']


def test_what_the_log_refuses_is_whole_after_a_torn_line(tmp_path: Path) -> None:
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        queue.set_aside(b'{"a": 1}')
        with (tmp_path / "rejected.log").open("ab") as file:
            file.write(b"01234567 {")
        queue.set_aside(b'{"a": 2}')
    (tmp_path / "rejected.log").rename(tmp_path / "0000000000.log")
    with closing(DiskQueue(str(tmp_path), LIMIT)) as queue:
        assert drain(queue) == [b'{"a": 1}', b'{"a": 2}']
