# SPDX-License-Identifier: GPL-2.0-or-later
"""Payloads of hostile clients: streams that cost more than they look."""

import gzip

import pytest
import zstandard

from notifier.services.decode.payload import unpack
from notifier.services.decode.rejection import DecodingError

PARTS = {"gzip": gzip.compress(b"1", mtime=0), "zstd": zstandard.ZstdCompressor().compress(b"1")}


@pytest.mark.parametrize("kind", PARTS)
def test_a_stream_may_have_a_hundred_parts(kind: str) -> None:
    assert unpack(PARTS[kind] * 100, 1000) == b"1" * 100


@pytest.mark.parametrize("kind", PARTS)
def test_a_stream_of_very_many_parts_is_refused_before_they_are_unpacked(kind: str) -> None:
    with pytest.raises(DecodingError, match="more than 100 gzip members or zstd frames"):
        unpack(PARTS[kind] * 101, 1000)


@pytest.mark.parametrize("kind", PARTS)
def test_content_of_the_limit_is_unpacked_and_one_byte_more_is_not(kind: str) -> None:
    assert unpack(PARTS[kind] * 5, 5) == b"11111"
    with pytest.raises(DecodingError, match="more than 4 bytes"):
        unpack(PARTS[kind] * 5, 4)


@pytest.mark.parametrize("padding", [1, 511, 100_000])
def test_zeros_behind_a_gzip_stream_are_no_part_of_it(padding: int) -> None:
    assert unpack(gzip.compress(b"{}") + bytes(padding), 100) == b"{}"
    assert unpack(gzip.compress(b"{") + bytes(padding) + gzip.compress(b"}") + bytes(padding), 100) == b"{}"
