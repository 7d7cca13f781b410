# SPDX-License-Identifier: GPL-2.0-or-later
"""The share of a member, as brokers describe it. That members divide a topic is in `tests/log/test_contract.py`."""

import pytest

from hgext.vcsreplicator.log.kafka.member import read_share


def test_a_share_has_the_names_of_topics_without_the_prefix() -> None:
    described = {"assigned_partitions": [{"topic": "hg.raw", "partitions": [0, 2]}], "user_data": ""}
    assert read_share(described, "hg.") == [("raw", 0), ("raw", 2)]


@pytest.mark.parametrize("assignment", ["", b"", b"\0\1 of another program", None])
def test_a_member_that_joins_or_is_no_decoder_has_no_share(assignment: object) -> None:
    assert read_share(assignment, "hg.") == []
