# SPDX-License-Identifier: GPL-2.0-or-later
"""Revsets over a long history: what they find, and how much of the pushlog they read for it."""

import shutil

import pytest
from mercurial import error
from mercurial.node import wdirrev

from pushlog import revsets
from pushlog.store import database
from testing.bench.million_pushes import build
from tests.pushlog.conftest import Place, environment_variable

pytestmark = pytest.mark.processes

PUSHES = 6000


@pytest.fixture(scope="module")
def long_history(tmp_path_factory):
    """A push for every changeset, but that the second of each ten belongs to the push of the first."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "hgrc").write_text("[extensions]\n*:required = yes\npushlog =\n")
    with environment_variable("HGRCPATH", str(folder / "hgrc")):
        build(folder / "long", PUSHES)
        place = Place(folder, "long")
        place.sql("UPDATE changesets SET pushid = pushid - 1 WHERE pushid % 10 = 2")
        yield place


@pytest.fixture
def read(monkeypatch):
    """How many pushes were read."""
    pushes = []
    push, page = database.push, database.page_of_pushes
    monkeypatch.setattr(database, "push", lambda *words: pushes.append(1) or push(*words))
    monkeypatch.setattr(database, "page_of_pushes", lambda *words: [pushes.append(1) or each for each in page(*words)])
    return pushes


HEADS = [revision for revision in range(PUSHES) if revision % 10 != 0]


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        (b"limit(pushhead(), 10)", HEADS[:10]),
        (b"last(pushhead(), 10)", HEADS[:-11:-1]),
        (b"max(pushhead())", HEADS[-1:]),
        (b"limit(pushhead() and not 1:5, 3)", HEADS[5:8]),
    ],
)
def test_pushhead_with_a_limit_reads_what_it_returns(long_history, read, expression, found):
    assert sorted(long_history.repository.revs(expression)) == sorted(found)
    assert len(read) <= 2 * revsets._BLOCK


@pytest.mark.parametrize("expression", [b"pushhead()", b"sort(pushhead(), -rev)", b"not not pushhead()"])
def test_pushhead_without_a_limit_finds_the_last_changeset_of_every_push(long_history, read, expression):
    assert sorted(long_history.repository.revs(expression)) == HEADS
    assert len(read) < 2 * PUSHES


def test_what_is_no_changeset_is_no_head_of_a_push(long_history):
    repository = long_history.repository
    assert list(repository.revs(b"(null + %d) and pushhead()", PUSHES - 1)) == [PUSHES - 1]
    assert list(repository.revs(b"wdir() and pushhead()")) == []
    assert wdirrev not in repository.revs(b"pushhead()")


def test_a_pushlog_that_cannot_be_read_is_told_when_a_lazy_set_is_asked(long_history, tmp_path):
    shutil.copytree(long_history.folder, tmp_path / "copy")
    copy = Place(tmp_path, "copy")
    found = copy.repository.revs(b"pushhead()")
    (copy.folder / ".hg" / "pushlog2.db").write_bytes(b"no database" * 100)
    (copy.folder / ".hg" / "store" / "pushlog.log").unlink(missing_ok=True)
    with pytest.raises(Exception, match="cannot read the pushlog"):
        list(found)


@pytest.mark.parametrize("number", [10**20, -(10**20), 1 << 63, int("9" * 400), (1 << 63) - 1])
def test_a_number_beyond_what_sqlite_holds_is_an_unknown_push(long_history, number):
    assert list(long_history.repository.revs(b"pushid(%s)", b"%d" % number)) == []


@pytest.mark.parametrize(("within", "count"), [(b"1:10", 10), (b"all()", PUSHES)])
def test_a_number_of_days_beyond_what_sqlite_holds_is_all_of_time(long_history, within, count):
    assert len(long_history.repository.revs(within + b" and pushdate(%s)", b"-" + b"9" * 30)) == count


def test_a_number_of_days_that_is_no_date_is_refused(long_history):
    with pytest.raises(error.ParseError, match="too large"):
        long_history.repository.revs(b"pushdate(%s)", b"-" + b"9" * 400)
