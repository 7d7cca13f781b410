# SPDX-License-Identifier: GPL-2.0-or-later
"""A release shows the master's settings for clients as they were at its event."""

from typing import Any

import pytest

from hgext.vcsreplicator.hg.replica.checking import check
from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, prepare
from hgext.vcsreplicator.hg.serving import watermark
from hgext.vcsreplicator.mirror.checkpoint import checkpoint_of
from hgext.vcsreplicator.mirror.task import Check
from hgext.vcsreplicator.outbox.folder import Store
from hgext.vcsreplicator.words.event import (
    OFFERS_MARKERS,
    OFFERS_NO_MARKERS,
    UNKNOWN_SETTINGS,
    ClientSettings,
    MasterSettings,
    Type,
)
from hgext.vcsreplicator.words.records import Reason
from hgext.vcsreplicator.words.shape import plain, to_json
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench

pytestmark = pytest.mark.processes

DRAFTS = MasterSettings(evolution=OFFERS_MARKERS, publishing=False)
PUBLISHED = MasterSettings(evolution=OFFERS_NO_MARKERS, publishing=True)


def state(author: Author, settings: MasterSettings) -> None:
    """Have the next event state these settings."""
    author.event(Type.HGRC, settings=settings, hgrc={})


def shown(bench: Bench, author: Author) -> ClientSettings:
    """The settings that clients of the mirror meet."""
    folder = Store(str(bench.home(author) / ".hg"))
    return watermark.read_settings(folder, watermark.read_watermark(folder))


def test_clients_meet_the_settings_of_the_release_and_not_later_ones(bench: Bench, worker: Any) -> None:
    author = bench.author("repo")
    author.push()
    state(author, DRAFTS)
    before = author.seq
    state(author, PUBLISHED)
    assert worker.perform(author, released=before).serving == before
    assert shown(bench, author) == ClientSettings(publishing=False, exchange=True)
    assert worker.perform(author).serving == author.seq
    assert shown(bench, author) == ClientSettings(publishing=True, exchange=False)


def test_an_event_that_states_no_settings_changes_none(bench: Bench, worker: Any) -> None:
    author = bench.author("repo")
    author.push()
    state(author, PUBLISHED)
    state(author, MasterSettings())
    worker.perform(author)
    assert shown(bench, author) == ClientSettings(publishing=True, exchange=False)


def test_a_strip_keeps_the_settings_of_what_is_shown(bench: Bench, worker: Any) -> None:
    author = bench.author("repo")
    author.push()
    state(author, PUBLISHED)
    author.push()
    worker.perform(author)
    before = author.seq
    author.strip(author.tip)
    assert worker.perform(author, released=before).serving == before
    assert shown(bench, author) == ClientSettings(publishing=True, exchange=False)


def test_a_copy_keeps_settings_that_the_master_does_not_state(bench: Bench, worker: Any) -> None:
    author = bench.author("repo")
    bench.serve_master()
    author.push()
    state(author, DRAFTS)
    worker.perform(author)
    before = author.seq
    author.push()
    assert worker.perform(author, released=before, heal=Reason.CORRUPT).serving == before
    assert shown(bench, author) == ClientSettings(publishing=False, exchange=True)
    worker.perform(author, heal=Reason.GAP)
    assert shown(bench, author) == ClientSettings(publishing=False, exchange=True)


def test_a_checkpoint_of_a_former_release_states_no_settings(worker: Any, bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    record = plain(worker.perform(author).checkpoint)
    del record["settings"]
    assert checkpoint_of(to_json(record)).settings == UNKNOWN_SETTINGS


@pytest.mark.parametrize("content", [None, b"1 1 no no\n"])
def test_a_check_writes_settings_again_that_were_lost(bench: Bench, worker: Any, content: bytes | None) -> None:
    author = bench.author("repo")
    author.push()
    state(author, PUBLISHED)
    assert worker.perform(author).serving == author.seq
    file = bench.home(author) / ".hg" / "replicated-settings"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    wanted = Check(repository=author.repository, folder=str(bench.home(author)), seq=author.seq, serving=author.seq)
    checked = check(OpenRepositories(prepare(), 1), bench.settings(), wanted)
    assert (checked.problem, checked.shown, checked.is_undecided) == (None, None, False)
    assert shown(bench, author) == ClientSettings(publishing=True, exchange=False)
