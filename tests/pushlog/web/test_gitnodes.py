# SPDX-License-Identifier: GPL-2.0-or-later
"""Git commits of changesets: read with their neighbours, for every form of the changelog."""

import inspect
import os
import random

import pytest
from mercurial import metadata, revlog
from mercurial import ui as ui_module
from mercurial.revlogutils import constants

from pushlog import versions
from pushlog.versions import factory, initialize, read_revisions
from pushlog.web import gitnodes
from pushlog.web.gitnodes import GitNodes, texts

pytestmark = pytest.mark.processes

initialize()

COMMIT = "c0ffee" * 6 + "c0fe"
NOISE = random.Random(1).randbytes(300_000).hex().encode()
CHANGES = [
    # description, extra
    (b"", {}),
    (b"x", {b"git_commit": COMMIT.encode()}),
    (b"words " * 400, {b"branch": b"stable", b"git_commit": COMMIT.encode(), b"z": b"\0\n"}),
    (b"git_commit: " + COMMIT.encode(), {}),
    (b"words " * 20_000, {b"git_commit": COMMIT.encode()}),
    (b"words", {b"git_commit": b"none"}),
    (b"words", {b"git_commit": b"0" * 40}),
    (b"words", {b"git_commit": b"<script>\xff" * 10_000}),
    (b"words", {b"git_commit": COMMIT[:39].encode() + b" "}),
    (b"words", {b"git_commit": b" ".join([COMMIT[:20].encode(), COMMIT[20:].encode()])}),
]
# What a changeset says is a Git commit only if it is the hash of one.
EXPECTED = [None, COMMIT, COMMIT, None, COMMIT, None, None, None, None, None]


@pytest.fixture(params=["zstd", "zlib", "none"])
def repository(request, tmp_path):
    return make(tmp_path / "repository", request.param, CHANGES)


def make(folder, compression, changes):
    user_interface = ui_module.ui.load()
    user_interface.setconfig(b"format", b"revlog-compression", compression.encode())
    made = factory.repository(user_interface, os.fsencode(folder), create=True).unfiltered()
    with made.lock(), made.transaction(b"test") as transaction:
        parent = made.nullid
        for description, extra in changes:
            parent = made.changelog.add(
                made.nullid,
                metadata.ChangingFiles(),
                description,
                transaction,
                parent,
                made.nullid,
                b"ann",
                b"0 0",
                extra,
            )
    return factory.repository(user_interface, os.fsencode(folder)).unfiltered()


def commits(repository):
    git = GitNodes(repository)
    return [git.of(revision) for revision in repository.changelog]


def test_commits_are_found(repository):
    assert commits(repository) == EXPECTED


@pytest.mark.parametrize("is_inline", [True, False])
@pytest.mark.parametrize("compression", ["zstd", "zlib", "none"])
def test_texts_in_one_piece_are_the_texts(tmp_path, compression, is_inline):
    repository = make(tmp_path / "repository", compression, [*CHANGES, (NOISE, {})])
    log = inline(repository) if is_inline else repository.changelog
    assert read_revisions(log, 0, 1)[2] == is_inline
    small = [revision for revision in log if len(log.revision(revision)) <= 1 << 16]
    assert dict(texts(log, 0, 1000)) == {revision: log.revision(revision) for revision in small}
    assert dict(texts(log, 1, 3)) == {revision: log.revision(revision) for revision in (1, 2)}


def inline(repository):
    """A log of one file, as changelogs of old repositories are while they are small."""

    def opened(**options):
        return revlog.revlog(repository.svfs, target=(constants.KIND_OTHER, b"test"), radix=b"test", **options)

    # Mercurial before 7.2 has no other.
    log = opened(writable=True) if "writable" in inspect.signature(revlog.revlog).parameters else opened()
    log._storedeltachains = False
    with repository.lock(), repository.transaction(b"test") as transaction:
        for number in range(len(CHANGES)):
            text = repository.changelog.revision(number)[:9000]
            log.addrevision(text, transaction, number, repository.nullid, repository.nullid)
    return opened()


def test_commits_of_small_changesets_are_found_without_looking_at_each(tmp_path, monkeypatch):
    monkeypatch.setattr(gitnodes, "_BLOCK", 2)
    monkeypatch.setattr(gitnodes, "_BLOCKS", 1)
    made = make(tmp_path / "repository", "zstd", CHANGES[:4])
    monkeypatch.setattr(type(made.changelog), "revision", None)
    assert commits(made) == EXPECTED[:4]


def test_large_neighbours_are_not_read(tmp_path, monkeypatch):
    made = make(tmp_path / "repository", "zstd", [CHANGES[1], *[(NOISE, {})] * 15])
    read, read_revisions = [], versions.read_revisions
    monkeypatch.setattr(versions, "read_revisions", lambda *asked: read.append(asked) or read_revisions(*asked))
    assert (GitNodes(made).of(0), read) == (COMMIT, [])
