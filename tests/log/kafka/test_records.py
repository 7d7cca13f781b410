# SPDX-License-Identifier: GPL-2.0-or-later
"""Batches that a broker with other settings hands out as a client packed them."""

import struct

import pytest
from kafka.record import MemoryRecords
from kafka.record.util import calc_crc32c

from hgext.vcsreplicator.log.kafka.records import Batches


def packed(codec: int, content: bytes, *, count: int) -> bytes:
    """A batch of format 2 with this content."""
    rest = struct.pack(">hiqqqhii", codec, count - 1, 0, 0, -1, -1, -1, count) + content
    return struct.pack(">qiibI", 7, len(rest) + 9, 0, 2, calc_crc32c(rest)) + rest


@pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_that_cannot_be_unpacked_is_one_record_that_says_so(codec: int) -> None:
    [record] = Batches(MemoryRecords(packed(codec, b"not compressed", count=3))).next_batch()
    assert (record.offset, record.key) == (9, None)
    assert record.value.startswith(b"unreadable: 3 records of one client: ")
