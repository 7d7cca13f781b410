# SPDX-License-Identifier: GPL-2.0-or-later
"""The remembered Git commits: after any change of the repository or the file, an answer is that of the changeset."""

import os

import pytest
from mercurial import context, repair

from pushlog.web.gitnodes import FILE, GitNodes
from tests.pushlog.conftest import Site

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
WRITTEN = ["1" * 40, None, "2" * 40, "3" * 40, "not a hash", "0" * 40]
COMMITS = [*WRITTEN[:4], None, None]


@pytest.fixture
def opened(tmp_path):
    """Opens a repository of a few changesets on a root, as a process of its own would."""
    repository = Site(tmp_path / "repository", create=True).repository
    for number, commit in enumerate(WRITTEN):
        make(repository, number, commit)
    return lambda: Site(tmp_path / "repository").repository


def make(repository, number, commit):
    def file(repo, ctx, path):
        return context.memfilectx(repo, ctx, path, b"%d" % number)

    extra = {} if commit is None else {b"git_commit": commit.encode()}
    parents = (repository[0].node() if number else repository.nullid, repository.nullid)
    with repository.wlock(), repository.lock(), repository.transaction(b"test"):
        repository.commitctx(
            context.memctx(repository, parents, b"%d" % number, [b"file"], file, user=b"u", date=(0, 0), extra=extra)
        )


def asked(repository):
    """What is answered for every changeset, in a request of its own."""
    git = GitNodes(repository)
    commits = [git.of(revision, repository.changelog.node(revision)) for revision in repository.changelog]
    git.save()
    return commits


def test_a_second_look_needs_no_changeset(opened, monkeypatch):
    assert asked(opened()) == COMMITS
    looked = []
    monkeypatch.setattr(GitNodes, "_look_up", lambda _self, revision, _node: looked.append(revision))
    asked(opened())
    assert looked == []


def test_after_a_strip_nobody_gets_the_commit_of_another(opened):
    asked(opened())
    repository = opened()
    early = GitNodes(repository)
    early.of(0, repository.changelog.node(0))  # has read what the file knew before the strip
    with repository.wlock(), repository.lock():
        repair.strip(repository.ui, repository, [repository.changelog.node(2)], backup=False)
    left = COMMITS[:2] + COMMITS[3:]
    assert [early.of(revision, repository.changelog.node(revision)) for revision in repository.changelog] == left
    assert asked(opened()) == left
    make(opened(), 7, "7" * 40)
    assert asked(opened()) == [*left, "7" * 40]


def test_what_another_process_wrote_meanwhile_is_kept(opened):
    first, second = opened(), opened()
    early, late = GitNodes(first), GitNodes(second)
    early.of(0, first.changelog.node(0))
    late.of(3, second.changelog.node(3))
    late.save()
    early.save()
    assert asked(opened()) == COMMITS


@pytest.mark.parametrize("content", [b"", b"\0" * 24 * len(COMMITS), os.urandom(24 * len(COMMITS) - 1)])
def test_rubbish_in_the_file_is_not_believed(opened, content):
    opened().cachevfs.write(FILE, content)
    assert asked(opened()) == COMMITS
    assert asked(opened()) == COMMITS


def test_a_file_that_cannot_be_read_or_written_is_done_without(opened):
    opened().cachevfs.mkdir(FILE)
    assert asked(opened()) == COMMITS
