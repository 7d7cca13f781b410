# SPDX-License-Identifier: GPL-2.0-or-later
"""A broker's files show a producer that wrote behind its successor."""

import struct
from pathlib import Path

from testing.services.kafka.batches import Batch, find_older_writers, find_returned_writers, read_batches


def batch(offset: int, producer: int, epoch: int, payload: bytes = b"records") -> bytes:
    behind = struct.pack(">iBIhiqqqhii", 0, 2, 0, 0, 0, 0, 0, producer, epoch, 0, 1) + payload
    return struct.pack(">qi", offset, len(behind)) + behind


def test_a_writer_behind_its_successor_is_found_in_a_brokers_file(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(batch(0, 7, 0) + batch(1, -1, -1) + batch(2, 8, 5) + batch(3, 7, 1) + bytes(100))
    assert list(read_batches(tmp_path)) == [Batch(0, 7, 0), Batch(2, 8, 5), Batch(3, 7, 1)]
    assert find_older_writers(tmp_path) == find_returned_writers(tmp_path) == []
    (tmp_path / "00000000000000000004.log").write_bytes(batch(4, 7, 0))
    [found] = find_older_writers(tmp_path)
    assert "offset=4, producer=7, epoch=0) after epoch 1" in found
    [found] = find_returned_writers(tmp_path)
    assert "(7, 0) wrote again" in found
