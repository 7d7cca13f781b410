# SPDX-License-Identifier: GPL-2.0-or-later
"""An aggregator that signs notices: with what mirrors signed, exactly once, and nothing at all while it is off."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.keys.pairs import KeyPair, make_key, read_keys
from hgext.vcsreplicator.keys.signed import CheckedNotice, check_notice, sign_ack
from hgext.vcsreplicator.log import NOTICES, Record, topics
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json
from hgext.vcsreplicator.words.wire import SIGNED
from testing.builders.aggregator.aggregating import send
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.sealing import SealingMirror, roster_of, write_foreign
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock
from tests.aggregator.test_gate import Installation, keyed


class SigningInstallation(Installation):
    """An aggregator that signs notices, or has stopped doing so."""

    def switch(self, *, is_on: bool) -> None:
        self.stop()
        self.settings = replace(self.settings, sign=is_on)
        self.turn()

    @property
    def keys(self) -> tuple[KeyPair, ...]:
        return read_keys(Path(self.settings.key or ""))

    def records(self) -> list[Record]:
        return list(read_records(self.log, find_beginnings(self.log, NOTICES)))

    def checked(self) -> list[CheckedNotice]:
        """Every notice in the log, its signature verified."""
        keys = [each.signing for each in self.keys]
        return [check_notice(record.headers[SIGNED], keys) for record in self.records()]


@pytest.fixture
def signing(tmp_path: Path) -> Iterator[SigningInstallation]:
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    installation = SigningInstallation(log, tmp_path, clock)
    installation.settings = replace(installation.settings, sign=True)
    try:
        installation.turn()
        yield installation
    finally:
        installation.stop()


def push(signing: SigningInstallation, chain: Chain, *mirrors: SealingMirror) -> None:
    """One more event, which these mirrors apply and then serve."""
    send(signing.log, chain.take(1))
    for serving in (len(chain.events) - 1, len(chain.events)):
        for mirror in mirrors:
            mirror.ack(chain.ack(mirror.name, len(chain.events), serving))
        signing.turn()


def test_a_notice_has_the_signatures_of_the_aggregator_and_of_its_mirrors(
    signing: SigningInstallation, tmp_path: Path
) -> None:
    mirrors = keyed(signing, tmp_path, "alpha", "beta")
    chain = Chain("x")
    for _ in range(2):
        push(signing, chain, *mirrors)
    for number, (record, found) in enumerate(zip(signing.records(), signing.checked(), strict=True), 1):
        notice = from_json(Notice, record.value or b"")
        said = found.notice
        assert (said.event, said.digest, said.seq) == (notice.event.id, notice.event.digest, number)
        assert (said.previous, said.roster, said.time) == (dict(notice.previous), notice.roster, notice.time)
        assert [(each.mirror, each.key) for each in found.mirrors] == [(one.name, one.pair.signing) for one in mirrors]
    assert roster_of(signing.log).signing_keys == (signing.keys[0].signing,)


def test_without_signing_no_byte_of_a_notice_or_of_the_roster_differs(
    signing: SigningInstallation, tmp_path: Path
) -> None:
    signing.switch(is_on=False)
    [alpha] = keyed(signing, tmp_path, "alpha")
    push(signing, Chain("x"), alpha)
    [record] = signing.records()
    assert (record.headers, roster_of(signing.log).signing_keys) == ({}, None)


def test_a_mirror_without_a_key_is_named_by_the_word_of_the_aggregator(
    signing: SigningInstallation, tmp_path: Path
) -> None:
    signing.ask(Verb.ADD, "alpha")
    chain, forger = Chain("x"), make_key(tmp_path / "forger")
    send(signing.log, chain.take(1))
    write_foreign(signing.log, sign_ack(forger, chain.ack("alpha", 1, 0)))
    signing.turn()
    write_foreign(signing.log, sign_ack(forger, chain.ack("alpha", 1, 1)))
    signing.turn()
    [found] = signing.checked()
    assert [(each.mirror, each.key) for each in found.mirrors] == [("alpha", None)]


def test_a_new_key_of_the_aggregator_signs_and_older_notices_keep_theirs(
    signing: SigningInstallation, tmp_path: Path
) -> None:
    [alpha] = keyed(signing, tmp_path, "alpha")
    chain, old = Chain("x"), signing.keys[0]
    push(signing, chain, alpha)
    new = make_key(Path(signing.settings.key or ""))
    signing.stop()
    signing.turn()
    push(signing, chain, alpha)
    assert [found.key for found in signing.checked()] == [old.signing, new.signing]


def test_a_commit_that_fails_leaves_one_notice_with_one_signature(signing: SigningInstallation, tmp_path: Path) -> None:
    [alpha] = keyed(signing, tmp_path, "alpha")
    chain = Chain("x")
    send(signing.log, chain.take(1))
    alpha.ack(chain.ack("alpha", 1, 0))
    signing.turn()
    assert signing.session is not None
    alpha.ack(chain.ack("alpha", 1, 1))
    written: list[int] = []

    def fail(messages: list[object]) -> None:
        written.append(sum(getattr(message, "topic", "") == NOTICES for message in messages))
        raise Unavailable("killed between the signature and the commit")

    assert isinstance(signing.log, MemoryLog)
    signing.log.before["commit"] = fail
    with pytest.raises(Unavailable):
        signing.session.step(0.0)
    signing.log.before.clear()
    assert written == [1]
    assert signing.records() == []
    signing.session.close()
    signing.session = None
    signing.turn()
    assert [found.notice.seq for found in signing.checked()] == [1]


def test_an_aggregator_cannot_sign_without_a_file_for_its_key() -> None:
    with pytest.raises(ValueError, match="sign: expected `key` too"):
        AggregatorSettings(sign=True)
