# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror answers clients by its master's settings, not by its own hgrc, and by none of another release."""

import os
from pathlib import Path
from typing import Any

import pytest
from mercurial import error, obsolete, phases
from mercurial import ui as uimod

from hgext.vcsreplicator.hg.serving import following, views, watermark
from hgext.vcsreplicator.words.event import UNKNOWN_SETTINGS, ClientSettings
from pushlog.versions import factory
from testing.builders.mirror.author import Author

pytestmark = pytest.mark.processes


@pytest.fixture
def author(tmp_path: Path) -> Author:
    author = Author(tmp_path, "one")
    author.push()
    return author


def release(author: Author, settings: ClientSettings, seq: int = 1) -> None:
    """Release the repository, with the master's settings at that event."""
    shown = watermark.Watermark(seq=seq, length=len(author.repo), tip=author.tip, push_id=1)
    watermark.write_watermark(author.repo, shown, settings=settings)


def opened(author: Author, *own: tuple[bytes, bytes, object]) -> Any:
    """The repository as a mirror's server opens it, whose own hgrc says this."""
    ui = uimod.ui.load()
    for section, key, value in own:
        ui.setconfig(section, key, value)
    repo = factory.repository(ui, os.fsencode(author.folder)).unfiltered()
    views.hold_release(repo)
    following.follow_master(repo)
    return repo


@pytest.mark.parametrize("own", [b"yes", b"no"])
@pytest.mark.parametrize("publishing", [True, False])
def test_a_mirror_is_publishing_if_its_master_is(author: Author, own: bytes, *, publishing: bool) -> None:
    release(author, ClientSettings(publishing=publishing))
    repo = opened(author, (b"phases", b"publish", own))
    assert repo.publishing() == publishing
    assert (b"publishing" in phases.listphases(repo)) == publishing


@pytest.mark.parametrize("own", [(b"evolution", b"all"), (b"evolution.exchange", b"no"), (b"evolution", b"")])
@pytest.mark.parametrize("exchange", [True, False])
def test_a_mirror_offers_markers_if_its_master_does(
    author: Author, own: tuple[bytes, bytes], *, exchange: bool
) -> None:
    release(author, ClientSettings(publishing=True, exchange=exchange))
    assert obsolete.isenabled(opened(author, (b"experimental", *own)), obsolete.exchangeopt) == exchange


def test_a_mirror_that_knows_no_settings_makes_no_draft_public(author: Author) -> None:
    release(author, UNKNOWN_SETTINGS)
    repo = opened(author, (b"phases", b"publish", b"yes"), (b"experimental", b"evolution", b"all"))
    assert not repo.publishing()
    assert obsolete.isenabled(repo, obsolete.exchangeopt)


DAMAGES = {
    "missing": None,
    "empty": b"",
    "of another release": b"1 2 yes yes\n",
    "of a newer version": b"2 1 yes yes\n",
    "of other words": b"1 1 True False\n",
    "without an end": b"1 1 yes yes",
}


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_settings_that_do_not_belong_to_the_release_are_not_known(author: Author, content: bytes | None) -> None:
    release(author, ClientSettings(publishing=True, exchange=True))
    file = author.folder / ".hg" / "replicated-settings"
    assert file.read_bytes() == b"1 1 yes yes\n"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert views.held_release(opened(author)).settings == UNKNOWN_SETTINGS


def test_a_filter_that_a_mirror_cannot_limit_is_refused(author: Author) -> None:
    with pytest.raises(error.Abort, match="extra-filter-revs: a mirror cannot filter by it"):
        opened(author, (b"experimental", b"extra-filter-revs", b"draft()"))


def test_a_repository_without_a_release_is_not_publishing(author: Author) -> None:
    assert not opened(author).publishing()
