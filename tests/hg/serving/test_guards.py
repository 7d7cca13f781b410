# SPDX-License-Identifier: GPL-2.0-or-later
"""The ways into a mirror's repository, asked directly: each shows the release alone, or says why nothing can be shown."""

import contextlib
import importlib
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from mercurial import error, hg, pushkey, repoview
from mercurial import ui as uimod
from mercurial.hgweb import common, request

from hgext.vcsreplicator.hg.serving import guards, views, watermark
from hgext.vcsreplicator.mirror.supervision import boot
from pushlog import seams, versions
from testing.builders.mirror.author import Author
from testing.faults.forks import await_fork, begin_fork
from testing.faults.system import System

pytestmark = pytest.mark.processes

MIRROR = (b"vcsreplicator", b"role", b"mirror")
# Changesets that are released; one draft is behind them.
RELEASED = 2


@pytest.fixture
def author(tmp_path: Path) -> Author:
    """A root with two draft children, of which one is released, and a bookmark at each."""
    views.register_views()
    author = Author(tmp_path, "one")
    root = author.push().after.node
    author.push(parent=root, phase=1)
    release(author, push_id=7)
    author.push(parent=root, phase=1)
    author.bookmark("newest", author.tip)
    return author


def release(author: Author, *, push_id: int | None) -> None:
    tip = author.repo.changelog.node(RELEASED - 1).hex()
    shown = watermark.Watermark(seq=3, length=RELEASED, tip=tip, push_id=push_id)
    watermark.write_watermark(author.repo, shown)


def opened(author: Author, *settings: tuple[bytes, bytes, object]) -> Any:
    """The repository, opened with these settings."""
    ui = uimod.ui.load()
    for section, key, value in settings:
        ui.setconfig(section, key, value)
    return versions.factory.repository(ui, os.fsencode(author.folder)).unfiltered()


def silent(folder: Path, seconds: float | None) -> tuple[bytes, bytes, object]:
    """The setting of a mirror whose aggregator was heard so long ago; None for never."""
    file = folder / "fresh"
    if seconds is not None:
        file.touch()
        os.utime(file, (time.time() - seconds, time.time() - seconds))
    return b"vcsreplicator", b"refuse-when-stale", os.fsencode(file)


def reads_bookmarks_of_the_release(repo: Any) -> bool:
    own = object()
    found = guards.open_bookmarks(lambda repo: own, repo)
    return found is not own and found.read() == b""


def test_a_peer_of_a_mirror_gets_the_release_and_another_what_it_asks_for(author: Author) -> None:
    mirror, master = opened(author, MIRROR), opened(author)
    assert guards.choose_wire_view(lambda repo, hidden: b"visible", mirror, False) == views.VIEW
    assert guards.choose_wire_view(lambda repo, hidden: b"visible", master, False) == b"visible"
    assert reads_bookmarks_of_the_release(mirror)
    assert not reads_bookmarks_of_the_release(master)
    assert not reads_bookmarks_of_the_release(opened(author, MIRROR)), "no command of the mirror's own machine"


def test_a_peer_reads_why_a_mirror_shows_nothing(author: Author, tmp_path: Path) -> None:
    def ask(*settings: tuple[bytes, bytes, object]) -> None:
        guards.choose_wire_view(lambda repo, hidden: b"served", opened(author, MIRROR, *settings), False)

    with pytest.raises(error.Abort, match=guards.STALE.decode().strip()):
        ask(silent(tmp_path, None))
    ask(silent(tmp_path, 1.0))
    boot.write(str(tmp_path), "another", {})
    with pytest.raises(error.Abort, match=guards.BEHIND.decode().strip()):
        ask()


@pytest.mark.parametrize(
    ("silence", "is_stale"),
    [(None, False), (0.0, False), (30.0, False), (30.5, True), (-30.0, False), (-30.5, True), (math.inf, True)],
)
def test_a_mirror_is_stale_after_thirty_seconds_of_silence(
    author: Author, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silence: float | None, is_stale: bool
) -> None:
    heard = silent(tmp_path, None if silence == math.inf else 0.0)
    now = os.stat(tmp_path / "fresh").st_mtime if silence != math.inf else 0.0
    monkeypatch.setattr(guards, "time", SimpleNamespace(time=lambda: now + (silence or 0.0)))
    mirror = opened(author, MIRROR, *(() if silence is None else (heard,)))
    with pytest.raises(error.Abort) if is_stale else contextlib.nullcontext():
        guards.choose_wire_view(lambda repo, hidden: b"served", mirror, False)


class Answer:
    """What a request to hgweb was answered, by Mercurial's own request and response."""

    def __init__(self, repo: Any, **headers: str) -> None:
        environ: dict[str, Any] = {"PATH_INFO": "/", "QUERY_STRING": "", **headers}
        setup_testing_defaults(environ)
        self.status, self.headers = "", dict[str, str]()
        self.request = request.parserequestfromenv(environ)
        self.response = request.wsgiresponse(self.request, self._start)
        web = SimpleNamespace(mtime=5, repo=repo, res=self.response)
        self.body = b"".join(guards.answer_web_request(self._show_page, web, self.request, self.response, repo))

    def _start(self, status: str, headers: Iterable[tuple[str, str]], exc_info: Any = None) -> Callable[..., None]:
        self.status, self.headers = status, dict(headers)
        return lambda part: None

    def _show_page(self, web: Any, req: Any, res: Any, repo: Any) -> Iterable[bytes]:
        guards.state_release(web, req, None)
        res.status = b"200 Script output follows"
        res.headers[b"Content-Type"] = b"text/plain"
        res.setbodybytes(b"page")
        return res.sendresponse()  # type: ignore[no-any-return]

    @property
    def stated(self) -> dict[str, str]:
        """The headers about the release."""
        return {name[16:]: value for name, value in self.headers.items() if name.startswith("X-Vcsreplicator-")}


def test_a_page_of_a_mirror_states_its_release_and_another_nothing(author: Author) -> None:
    mirror, master = opened(author, MIRROR), opened(author)
    answer = Answer(mirror)
    assert (answer.status[:3], answer.body, answer.stated) == ("200", b"page", {"Event": "3", "Pushid": "7"})
    assert reads_bookmarks_of_the_release(mirror)
    answer = Answer(master)
    assert (answer.status[:3], answer.body, answer.stated) == ("200", b"page", {})
    assert not reads_bookmarks_of_the_release(master)
    assert guards._ETAG not in answer.request.rawenv


def test_a_release_without_a_push_states_none_and_no_release_nothing(author: Author) -> None:
    release(author, push_id=None)
    assert Answer(opened(author, MIRROR)).stated == {"Event": "3", "Pushid": "0"}
    (author.folder / ".hg/replicated-watermark").unlink()
    assert Answer(opened(author, MIRROR)).stated == {}


def test_an_answer_without_changes_states_nothing(author: Author) -> None:
    assert Answer(opened(author, MIRROR), HTTP_IF_NONE_MATCH='W/"5"').stated == {}
    assert Answer(opened(author, MIRROR), HTTP_IF_NONE_MATCH='W/"4"').stated != {}


@pytest.mark.parametrize(("seconds", "heard"), [(12.5, {"12", "13", "14"}), (-5.0, {"0"})])
def test_an_answer_states_the_seconds_since_the_aggregator_was_heard(
    author: Author, tmp_path: Path, seconds: float, heard: set[str]
) -> None:
    assert Answer(opened(author, MIRROR, silent(tmp_path, seconds))).stated["Heard"] in heard


def test_a_silence_without_end_is_not_stated(author: Author, tmp_path: Path, system: System) -> None:
    looks = list[str]()

    def remove_before_the_second(path: str) -> None:
        looks.append(path)
        if len(looks) == 2:
            os.unlink(path)

    mirror = opened(author, MIRROR, silent(tmp_path, 1.0))
    system.watch(remove_before_the_second, "os.stat", at="*/fresh")
    stated = Answer(mirror).stated
    assert len(looks) == 2
    assert stated == {"Event": "3", "Pushid": "7"}


@pytest.mark.parametrize("section", [b"web", b"server"])
def test_a_page_in_a_view_that_cannot_be_limited_is_refused(author: Author, section: bytes) -> None:
    answer = Answer(opened(author, MIRROR, (section, b"view", b"drafts")))
    assert answer.status == "500 Internal Server Error"
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.body.startswith(b"a mirror cannot limit the view drafts: ")


def test_a_page_of_a_mirror_that_shows_nothing_says_why(author: Author, tmp_path: Path) -> None:
    answer = Answer(opened(author, MIRROR, silent(tmp_path, 60.0)))
    assert (answer.status, answer.body) == ("503 Service Unavailable", guards.STALE)
    assert answer.headers["Retry-After"] == guards.RETRY_AFTER
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("configured", "view"), [(None, b"served"), (b"immutable", b"immutable"), (b"drafts", b"base")]
)
def test_pages_show_the_configured_view_of_the_release(author: Author, configured: bytes | None, view: bytes) -> None:
    mirror, master = opened(author, MIRROR), opened(author)
    for repo in (mirror, master):
        # The repository's owner may set the view of pages, an untrusted one too.
        repo.ui._ucfg.set(b"web", b"view", configured, b"hgrc of another user")
        repo.ui._ucfg.set(b"server", b"view", b"drafts", b"hgrc of another user")
    assert guards.choose_web_view(lambda repo: repo, mirror).filtername == views.limited_view(view)
    assert guards.choose_web_view(lambda repo: repo, master) is master
    assert Answer(mirror).status[:3] == ("500" if configured == b"drafts" else "200")


def test_a_command_on_a_path_sees_what_mercurial_shows(author: Author) -> None:
    repo = opened(author, MIRROR)
    views.hold_release(repo)
    limited = repo.filtered(views.VIEW)
    assert guards.open_behind_path(lambda peer: limited, None).filtername == b"served"
    assert guards.open_behind_path(lambda peer: repo, None) is repo


def test_drafts_that_are_not_released_are_not_listed(author: Author) -> None:
    roots = [author.repo.changelog.node(rev).hex().encode() for rev in (1, 2)]
    for repo, listed in ((opened(author, MIRROR), roots[:1]), (opened(author), roots)):
        assert guards.list_phases(lambda repo: dict.fromkeys(roots, b"1"), repo) == dict.fromkeys(listed, b"1")


def in_a_fork(act: Callable[[], None]) -> None:
    """Do what changes Mercurial for the whole process."""
    assert await_fork(begin_fork(act)) == 0


# A way in of each kind, by the seam that is wrapped.
WAYS = [
    ("mercurial.exchanges.peer", "server_filtername"),
    ("mercurial.localrepo", "localpeer.local"),
    ("mercurial.bookmarks", "_getbkfile"),
    ("mercurial.phases", "listphases"),
    ("mercurial.hgweb.hgweb_mod_inner", "getwebview"),
    ("mercurial.hgweb.hgweb_mod_inner", "hgweb._runwsgi"),
    ("mercurial.hgweb.webutil", "filectx"),
    ("mercurial.streamclone", "allowservergeneration"),
    ("mercurial.exchange", "unbundle"),
]


def find_ways() -> list[Any]:
    found = []
    for module, name in WAYS:
        place = versions.find_places(module, name, seams.SEAMS[module][name])[0]
        owner, last = seams._find_owner(importlib.import_module(place.module), place.name)
        found.append(vars(owner)[last] if isinstance(owner, type) else getattr(owner, last))
    return found


def test_every_way_in_is_guarded_once() -> None:
    def act() -> None:
        for name in [name for name in repoview.filtertable if name.startswith(b"replicated")]:
            del repoview.filtertable[name]
        before, watched = find_ways(), ("path", watermark.WATERMARK)
        hg.foi[:] = [each for each in hg.foi if each != watched]
        guards.install()
        installed = find_ways()
        assert [way for way, old, new in zip(WAYS, before, installed, strict=True) if old is new] == []
        assert views.VIEW in repoview.filtertable
        assert pushkey._namespaces[b"phases"][1] is installed[WAYS.index(("mercurial.phases", "listphases"))]
        guards.install()
        assert find_ways() == installed
        assert hg.foi.count(watched) == common.permhooks.count(guards.state_release) == 1

    in_a_fork(act)


def test_a_mercurial_with_another_repository_is_refused() -> None:
    def act() -> None:
        hg.foi[:] = [each for each in hg.foi if each != ("path", watermark.WATERMARK)]
        seams.SEAMS["mercurial.localrepo"]["localrepository.cancopy"] = "self another"
        with pytest.raises(seams.MissingSeam, match="cancopy takes"):
            guards.install()

    in_a_fork(act)
