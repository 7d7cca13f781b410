# SPDX-License-Identifier: GPL-2.0-or-later
"""Bundles of events: what making them does to the process, and forms that only a newer Mercurial reads."""

import io
import os
from pathlib import Path

import pytest
from mercurial import bundle2, commands, encoding
from mercurial import ui as ui_module

from hgext.vcsreplicator.hg.bundles import RepositoryOpener, make_bundle
from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.hg.replica.apply import unbundle
from hgext.vcsreplicator.hg.replica.troubles import trouble_of
from hgext.vcsreplicator.words.records import Reason
from pushlog.versions import factory, initialize


def test_a_push_that_sends_its_own_events_keeps_the_reader_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(encoding.environ, b"HGRCSKIPREPO", raising=False)
    RepositoryOpener(skip_hgrc=False)
    assert b"HGRCSKIPREPO" not in encoding.environ


@pytest.mark.parametrize("name", ["persistent-nodemap", "dirstate-v2", "fileindex-v1"])
def test_a_repository_made_with_a_mercurial_in_rust_is_opened_without_it(tmp_path: Path, name: str) -> None:
    initialize()
    ui = ui_module.ui.load()
    ui.setconfig(b"format", b"use-" + name.encode(), True)
    for slow in (b"revlog.persistent-nodemap", b"dirstate-v2", b"fileindex"):
        ui.setconfig(b"storage", slow + b".slow-path", b"allow")
    made = factory.repository(ui, os.fsencode(tmp_path), create=True)
    repository = RepositoryOpener(skip_hgrc=False).open(str(tmp_path))
    assert repository.requirements == made.requirements
    assert name.encode() in repository.requirements or name == "fileindex-v1"  # which begins with 7.2


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["store/00changelog.i", "store/requires", "bookmarks", "requires"])
def test_a_pipe_in_place_of_a_file_that_mercurial_opens_is_named(tmp_path: Path, name: str) -> None:
    initialize()
    opener, control = RepositoryOpener(skip_hgrc=False), tmp_path / ".hg"
    repository = factory.repository(ui_module.ui.load(), os.fsencode(tmp_path), create=True)
    with repository.lock():  # a link to nothing
        opener.open(str(tmp_path))
    (control / name).unlink(missing_ok=True)
    os.mkfifo(control / name)
    with pytest.raises(OSError, match=f"Not a file: '{control / name}'"):
        opener.open(str(tmp_path))


@pytest.mark.parametrize("name", ["requires", "bookmarks", "store/phaseroots", "cache/branch2-base"])
def test_no_file_that_exhausts_the_memory_is_opened(tmp_path: Path, name: str) -> None:
    initialize()
    opener, control = RepositoryOpener(skip_hgrc=False), tmp_path / ".hg"
    factory.repository(ui_module.ui.load(), os.fsencode(tmp_path), create=True)
    (control / "cache").mkdir(exist_ok=True)
    with open(control / name, "ab") as file:
        file.truncate(1 << 42)
    with pytest.raises(OSError, match=f"File too large: '{control / name}'"):
        opener.open(str(tmp_path))


@pytest.mark.timeout(10)
def test_a_pipe_in_place_of_a_files_history_holds_up_no_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has few workers, and each could wait at one repository."""
    monkeypatch.setitem(encoding.environ, b"HGRCSKIPREPO", b"1")
    port = MasterRepositories({str(tmp_path): ""}, "hg://master")
    repository = factory.repository(ui_module.ui.load(), os.fsencode(tmp_path), create=True)
    (tmp_path / "f").write_text("content")
    commands.commit(repository.ui, repository, addremove=True, message=b"f", user=b"dana")
    history = tmp_path / ".hg/store/data/f.i"
    history.unlink()
    os.mkfifo(history)
    with pytest.raises(OSError, match=f"Not a file: '{history}'"):
        b"".join(make_bundle(port.open(str(tmp_path)), 0, 1, []).pieces)


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("changesets", "changegroup - version='99'"),
        ("parameter", "changegroup - novelty"),
        ("compression", "Stream Parameter - Compression='XX'"),
    ],
)
def test_what_only_a_newer_mercurial_reads_is_refused_by_name(tmp_path: Path, what: str, named: str) -> None:
    initialize()
    repository = factory.repository(ui_module.ui.load(), os.fsencode(tmp_path / "repository"), create=True)
    bundler = bundle2.bundle20(repository.ui)
    if what == "compression":
        bundler.addparam(b"Compression", b"XX")
    part = bundler.newpart(b"changegroup", data=b"")
    part.addparam(b"version", b"99" if what == "changesets" else b"02")
    if what == "parameter":
        part.addparam(b"novelty", b"1")
    bundle = io.BytesIO(b"".join(bundler.getchunks()))
    with repository.lock(), pytest.raises(Exception) as raised, repository.transaction(b"test") as tr:
        unbundle(repository, tr, bundle, 1000)
    trouble = trouble_of(raised.value)
    assert trouble.reason is Reason.UNKNOWN_VERSION
    assert trouble.note == f"bundle: this mirror's Mercurial does not read {named}"
