# SPDX-License-Identifier: GPL-2.0-or-later
"""Who wrote which records, by the files of a broker: readers of Kafka's protocol are not shown it."""

import itertools
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The head of a batch, format 2: offset, length, leader's epoch, format, CRC, attributes, last offset's delta, two times, producer,
# its epoch, first sequence, records.
_HEAD = struct.Struct(">qiiBIhiqqqhii")
_BEFORE_LENGTH = 12


class Batch(NamedTuple):
    """The first offset of a batch, and the producer that wrote it; a newer producer of the same name has a greater epoch."""

    offset: int
    producer: int
    epoch: int


def read_batches(partition: Path) -> Iterator[Batch]:
    """Yield the batches of a partition's folder in order, without those of producers that have no number."""
    for file in sorted(partition.glob("*.log")):
        content, at = file.read_bytes(), 0
        while at + _HEAD.size <= len(content):
            offset, length, *_, producer, epoch, _sequence, _records = _HEAD.unpack_from(content, at)
            at += _BEFORE_LENGTH + length
            if length > 0 and producer >= 0:
                yield Batch(offset, producer, epoch)
            if length <= 0:  # the file is longer than what was written
                break


def find_returned_writers(partition: Path) -> list[str]:
    """Say which producers wrote again after another one; nothing where one replaced the other for good."""
    turns = [writer for writer, _ in itertools.groupby(read_batches(partition), lambda each: each[1:])]
    return [f"{partition.name}: {writer} wrote again" for writer, times in Counter(turns).items() if times > 1]


def find_older_writers(partition: Path) -> list[str]:
    """Say where a producer wrote behind a newer one of the same name, in a partition with several names."""
    found, newest = [], dict[int, int]()
    for batch in read_batches(partition):
        if batch.epoch < newest.get(batch.producer, batch.epoch):
            found.append(f"{partition.name}: {batch} after epoch {newest[batch.producer]}")
        newest[batch.producer] = max(batch.epoch, newest.get(batch.producer, batch.epoch))
    return found
