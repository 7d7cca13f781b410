# SPDX-License-Identifier: GPL-2.0-or-later
"""Which records of a newer version are written to `pending`, and in which order they come back."""

from hgext.vcsreplicator.aggregator.decisions.newer import NewerEvents
from hgext.vcsreplicator.aggregator.decisions.outgoing import Outgoing
from hgext.vcsreplicator.aggregator.decisions.repository import Repository
from hgext.vcsreplicator.log import EVENTS, Record


def record_at(offset: int) -> Record:
    return Record(topic=EVENTS, partition=0, offset=offset, key="x", value=b"1", headers={}, time=1.0)


def kept(newer: NewerEvents, offset: int, *, is_again: bool) -> int:
    """How many records are written for this one."""
    output = Outgoing()
    newer.keep(Repository("x"), record_at(offset), output, is_again=is_again)
    return len(output.messages)


def loaded(*offsets: int) -> NewerEvents:
    newer = NewerEvents()
    for offset in offsets:
        newer.load("x", 0, offset, b"1", {})
    newer.sort()
    return newer


def test_a_record_that_is_met_again_is_written_once() -> None:
    newer = loaded(5)
    assert kept(newer, 5, is_again=True) == 0
    assert [kept(newer, 6, is_again=True) for _ in range(2)] == [1, 0]


def test_a_first_record_is_written_whatever_had_its_place_before() -> None:
    assert kept(loaded(5), 5, is_again=False) == 1


def test_a_record_that_was_taken_is_written_if_it_must_be_kept_again() -> None:
    newer, output = loaded(5), Outgoing()
    newer.give_up(record_at(5), output)
    assert [message.value for message in output.messages] == [None]
    assert kept(newer, 5, is_again=True) == 1


def test_records_come_back_in_the_order_in_which_they_came() -> None:
    newer, found = loaded(5, 9, 7), []
    while (record := newer.next) is not None:
        found.append(record.offset)
        newer.pass_next()
    assert found == [5, 7, 9]
