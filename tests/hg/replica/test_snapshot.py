# SPDX-License-Identifier: GPL-2.0-or-later
"""A snapshot brings a repository to exactly one sequence of the master, after any interruption, or refuses to begin."""

import contextlib
import hashlib
import io
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from mercurial import bookmarks, error, phases
from mercurial import ui as uimod

from hgext.vcsreplicator.hg import frames
from hgext.vcsreplicator.hg.frames import StreamAnswer
from hgext.vcsreplicator.hg.hashes import fingerprint, lines
from hgext.vcsreplicator.hg.master import offer
from hgext.vcsreplicator.hg.replica import replicated, snapshot
from hgext.vcsreplicator.mirror.comparison import differences
from hgext.vcsreplicator.outbox.file import FORMER, Fork, Outbox
from hgext.vcsreplicator.words.errors import Changing, Diverged, ReplicationError, Unavailable
from hgext.vcsreplicator.words.event import UNKNOWN_SETTINGS, ClientSettings, Type
from pushlog.versions import factory
from testing.builders.mirror.author import Author

pytestmark = pytest.mark.processes

COMMANDS: dict[bytes, Callable[..., Any]] = {
    b"replication-state": offer.read_state,
    b"replication-changesets": offer.bundle_changesets,
}


class Wire:
    """The master's commands called in this process; every answer goes through `harm` first."""

    def __init__(
        self,
        author: Author,
        harm: Callable[[int, bytes], bytes] = lambda number, answer: answer,
        before: Callable[[int], object] = lambda number: None,
    ) -> None:
        self._repo, self._harm, self._before, self.calls = author.repo, harm, before, 0

    def url(self) -> bytes:
        return b"http://master.example/one"

    def _callstream(self, name: bytes, **arguments: bytes) -> io.BytesIO:
        self.calls += 1
        assert self.calls < 100, "the snapshot asks for ever"
        self._before(self.calls)
        self._repo.invalidateall()
        return io.BytesIO(self._harm(self.calls, b"".join(COMMANDS[name](self._repo, *arguments.values()))))


def rewriting(change: Callable[[dict[str, Any], bytes], bytes]) -> Callable[[int, bytes], bytes]:
    """Have a whole answer of other content: `change` changes its header, and returns another body."""

    def harm(_number: int, answered: bytes) -> bytes:
        answer = StreamAnswer(io.BytesIO(answered))
        header = dict(answer.header)
        body = change(header, b"".join(answer.frames()))
        return b"".join(frames.answer(header, [body]))

    return harm


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offer, "CHANGESETS", 2)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Author:
    author = Author(tmp_path_factory.mktemp("made once"), "one")
    for _ in range(6):
        author.push()
    author.obsolete(author.tip)
    author.push()
    author.bookmark("stable", author.tip)
    return author


@pytest.fixture
def author(made_once: Author, tmp_path: Path) -> Author:
    """Seven changesets, one hidden, one draft; bookmarks, markers and pushes."""
    return made_once.copy(tmp_path / "master")


def test_a_master_that_changes_all_the_time_says_so(author: Author) -> None:
    author.repo.svfs.write(b"journal", b"")  # as in a transaction
    with pytest.raises(Changing) as found:
        fingerprint(author.repo, Outbox(author.repo.svfs).newest)
    with pytest.raises(Changing):
        StreamAnswer(io.BytesIO(b"".join(frames.refusal(found.type, str(found.value)))))


def empty(author: Author, folder: Path) -> Any:
    return factory.repository(author.ui, os.fsencode(folder), create=True).unfiltered()


def take(repo: Any, wire: Wire) -> Any:
    with repo.wlock(), repo.lock():
        return snapshot.take_from(repo, wire, now=1.0)


def equal(repo: Any, author: Author) -> bool:
    here = fingerprint(repo, lambda: replicated.read(repo))
    there = fingerprint(author.repo, Outbox(author.repo.svfs).newest)
    return here.seq == there.seq and differences(here, there) == ()


def test_from_nothing_it_leads_to_the_masters_sequence(author: Author, tmp_path: Path) -> None:
    repo = empty(author, tmp_path / "mirror")
    level = take(repo, Wire(author))
    assert (level.seq, level.id, level.digest) == (author.seq, author.last, author.digest)
    assert (level.length, level.push) == (7, author.pushes)
    assert equal(repo, author)


def test_from_an_earlier_sequence_it_leads_to_the_newest(author: Author, tmp_path: Path) -> None:
    repo = empty(author, tmp_path / "mirror")
    take(repo, Wire(author))
    author.push()
    author.bookmark("stable", None)
    author.bookmark("other", author.tip)
    author.obsolete(author.tip)
    assert take(repo, Wire(author)).seq == author.seq
    assert equal(repo, author)


def test_a_master_that_lost_changesets_gives_no_snapshot(author: Author, tmp_path: Path) -> None:
    os.truncate(author.folder / ".hg/store/00changelog.i", 64)
    with pytest.raises(Unavailable, match="lost changesets, perhaps by damage: its newest event left 7 up to"):
        take(empty(author, tmp_path / "mirror"), Wire(author))


@pytest.mark.parametrize("publishing", [True, False])
def test_a_snapshot_has_the_masters_settings_for_clients(author: Author, tmp_path: Path, *, publishing: bool) -> None:
    author.repo.ui.setconfig(b"phases", b"publish", publishing)
    author.repo.ui.setconfig(b"experimental", b"evolution", b"all")
    settings = take(empty(author, tmp_path / "mirror"), Wire(author)).settings
    assert settings == ClientSettings(publishing=publishing, exchange=True)


def test_a_snapshot_of_a_former_master_leaves_its_settings_unknown(author: Author, tmp_path: Path) -> None:
    def drop_settings(header: dict[str, Any], body: bytes) -> bytes:
        header.pop("settings", None)
        return body

    wire = Wire(author, rewriting(drop_settings))
    assert take(empty(author, tmp_path / "mirror"), wire).settings == UNKNOWN_SETTINGS


@pytest.mark.sample(3)
@pytest.mark.parametrize("phase", [phases.archived, phases.internal])
@pytest.mark.parametrize("parent", [phases.public, phases.draft, phases.secret])
def test_what_the_master_has_above_secret_is_secret_on_a_mirror(
    author: Author, tmp_path: Path, phase: int, parent: int
) -> None:
    author.push(phase=parent)
    archived = author.push(phase=parent, count=2).after
    repo = empty(author, tmp_path / "mirror")
    take(repo, Wire(author))
    author.move_above_secret(phase, archived.node)
    assert parent == phases.secret or not equal(repo, author)  # a mirror that shows it is found
    fresh = empty(author, tmp_path / "fresh")
    for each in (repo, fresh):
        take(each, Wire(author))
        assert [each[len(each) - back].phase() for back in (2, 1)] == [parent, phases.secret]
        assert equal(each, author)
        assert dict(lines(each))["phases"] == dict(lines(author.repo))["phases"]


def test_the_replicated_part_of_the_configuration_comes_along(author: Author, tmp_path: Path) -> None:
    (author.folder / ".hg" / "hgrc").write_text("[web]\ndescription = ours\n[hooks]\nincoming = touch /tmp/owned\n")
    repo = empty(author, tmp_path / "mirror")
    assert take(repo, Wire(author)).hgrc == {"web": {"description": "ours"}}
    (author.folder / ".hg" / "hgrc").unlink()
    assert take(repo, Wire(author)).hgrc == {}


def test_what_is_pushed_meanwhile_is_in_it_or_follows(author: Author, tmp_path: Path) -> None:
    repo = empty(author, tmp_path / "mirror")

    def push(_number: int, answer: bytes) -> bytes:
        author.push()
        return answer

    level = take(repo, Wire(author, push))
    assert level.seq < author.seq
    assert level.length == len(repo.changelog)
    take(repo, Wire(author))
    assert equal(repo, author)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_broken_off_at_any_byte_it_goes_on_with_what_it_has(author: Author, tmp_path: Path, every: int) -> None:
    whole = Wire(author)
    sizes: list[int] = []
    take(empty(author, tmp_path / "whole"), Wire(author, lambda _number, answer: sizes.append(len(answer)) or answer))
    assert whole.calls == 0
    places = [
        (number, keep)
        for number, size in enumerate(sizes, 1)
        for keep in sorted({0, 1, 3, 4, 5, size // 3, size // 2, size - 5, size - 4, size - 1})
    ]
    assert len(places) >= 50
    for number, keep in places[::every]:
        repo = empty(author, tmp_path / f"mirror-{number}-{keep}")
        cut = Wire(author, lambda call, answer, n=number, k=keep: answer[:k] if call == n else answer)
        with pytest.raises(Unavailable):
            take(repo, cut)
        assert replicated.read(repo) is None
        repo.invalidateall()
        take(repo, Wire(author))
        assert equal(repo, author)


@pytest.mark.parametrize("places", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_a_flipped_bit_anywhere_is_noticed_and_nothing_of_it_stays(author: Author, tmp_path: Path, places: int) -> None:
    sizes: list[int] = []
    take(empty(author, tmp_path / "whole"), Wire(author, lambda _number, answer: sizes.append(len(answer)) or answer))
    for number, size in enumerate(sizes, 1):
        for place in range(0, size, max(1, size // places)):

            def flip(call: int, answer: bytes, n: int = number, p: int = place) -> bytes:
                return answer[:p] + bytes([answer[p] ^ 0x10]) + answer[p + 1 :] if call == n else answer

            repo = empty(author, tmp_path / f"mirror-{number}-{place}")
            with pytest.raises(Exception):  # noqa: B017 - Mercurial says it in many ways
                take(repo, Wire(author, flip))
            repo.invalidateall()
            assert replicated.read(repo) is None
            take(repo, Wire(author))
            assert equal(repo, author)


def test_another_history_is_refused_and_left_alone(author: Author, tmp_path: Path) -> None:
    repo = empty(author, tmp_path / "mirror")
    take(repo, Wire(author))
    other = Author(tmp_path / "elsewhere", "other")
    for _ in range(9):
        other.push()
    before = replicated.read(repo)
    with pytest.raises(Diverged):
        take(repo, Wire(other))
    repo.invalidateall()
    assert (replicated.read(repo), len(repo.changelog)) == (before, 7)


def test_a_master_that_lost_history_is_refused(author: Author, tmp_path: Path) -> None:
    repo = empty(author, tmp_path / "mirror")
    take(repo, Wire(author))
    author.strip(author.tip)
    with pytest.raises(Diverged, match="expected 6 changesets"):
        take(repo, Wire(author))


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(
    "change", ["UPDATE pushlog SET date = date + 1 WHERE id = ?", "DELETE FROM pushlog WHERE id = ?"]
)
def test_a_master_whose_push_is_not_the_newest_here_is_copied_anew(
    author: Author, tmp_path: Path, change: str, after: int
) -> None:
    """A restored master gives the ids of lost pushes to others, which have the same changesets if these are pushed again."""
    repo = empty(author, tmp_path / "mirror")
    take(repo, Wire(author))
    with contextlib.closing(sqlite3.connect(author.folder / ".hg/pushlog2.db")) as database, database:
        if change.startswith("DELETE"):
            database.execute("DELETE FROM changesets WHERE pushid = ?", [author.pushes])
        database.execute(change, [author.pushes])
    author.bookmark("other", author.tip)
    for _ in range(after):
        author.push()
    with pytest.raises(Diverged, match=f"the master's push {author.pushes - after} is another one"):
        take(repo, Wire(author))
    new = empty(author, tmp_path / "new")
    take(new, Wire(author))
    assert equal(new, author)


def test_a_master_without_events_says_so(tmp_path: Path) -> None:
    author = Author(tmp_path / "master", "one")
    bare = factory.repository(uimod.ui.load(), os.fsencode(tmp_path / "bare"), create=True).unfiltered()
    repo = empty(author, tmp_path / "mirror")
    author.repo = bare
    with pytest.raises(ReplicationError, match="no event yet"):
        take(repo, Wire(author))


def test_what_a_former_master_did_not_send_reaches_no_mirror(author: Author, tmp_path: Path) -> None:
    """The new master continues from an earlier event: the mirror would have another history, for an operator to heal."""
    repo, box = empty(author, tmp_path / "mirror"), Outbox(author.repo.svfs)
    box.set_fork(Fork(reason="hg://new is the master now", master=FORMER))
    with pytest.raises(Unavailable, match="hg://new is the master now"):
        take(repo, Wire(author))
    *_, newest = box.kept()
    box.mark_sent(newest.sent())
    assert take(repo, Wire(author)).seq == author.seq


@pytest.mark.parametrize("call", range(2, 7))
def test_a_master_that_loses_changesets_meanwhile_is_copied_in_the_end(
    author: Author, tmp_path: Path, call: int
) -> None:
    last = author.tip

    def strip(number: int) -> None:
        if number == call:
            author.strip(last)

    repo = empty(author, tmp_path / "mirror")
    try:
        take(repo, Wire(author, before=strip))
    except Unavailable:
        take(repo, Wire(author))
    except Diverged:
        repo = empty(author, tmp_path / "anew")
        take(repo, Wire(author))
    assert equal(repo, author)


@pytest.mark.parametrize("call", [1, 3])
def test_another_incarnation_is_no_continuation_of_what_is_here(author: Author, tmp_path: Path, call: int) -> None:
    repo = empty(author, tmp_path / "mirror")
    take(repo, Wire(author))
    author.push()

    def adopt(number: int) -> None:
        if number == call:
            author.incarnation, author.seq, author.last, author.digest = "d" * 32, 0, None, "0" * 64
            author.event(Type.SYNC, detail={"reason": "adopted", "bootstrap": "false"})

    with pytest.raises(Diverged, match="continues as incarnation d"):
        take(repo, Wire(author, before=adopt))
    level = replicated.read(repo)
    assert level is not None
    assert level.incarnation != "d" * 32
    assert len(repo.changelog) == (7 if call == 1 else 8)


def test_a_master_that_is_locked_says_so_soon(author: Author, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offer, "LOCK_SECONDS", 0)
    monkeypatch.setattr(offer, "check_allowed", lambda ui, proto: None)
    os.symlink("elsewhere.example:1", author.folder / ".hg/store/lock")
    answer = offer.guard(offer.read_state)(author.repo, None, b"")
    with pytest.raises(Unavailable, match="locked"):
        StreamAnswer(io.BytesIO(b"".join(answer.gen)))


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_master_that_asks_for_another_password_meanwhile_is_waited_for(
    author: Author, tmp_path: Path, call: int
) -> None:
    def refuse(number: int) -> None:
        if number == call:
            raise error.Abort(b"authorization failed")

    repo = empty(author, tmp_path / "mirror")
    with pytest.raises(Unavailable, match=r"http://master\.example/one: authorization failed"):
        take(repo, Wire(author, before=refuse))
    take(repo, Wire(author))
    assert equal(repo, author)


@contextlib.contextmanager
def answering(status: int, page: bytes = b"", asked: list[str] | None = None) -> Iterator[str]:
    """The URL of a web server that is no master; `asked` gets the paths that it is asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/one"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [404, 500, 502, 503])
def test_a_web_server_that_answers_with_an_error_is_waited_for(status: int) -> None:
    with answering(status) as url, pytest.raises(Unavailable, match=f"{url}: HTTP Error {status}") as told:
        snapshot.master_newest_event(uimod.ui.load(), url)
    assert isinstance(told.value.__cause__, HTTPError)
    assert told.value.__cause__.fp.isclosed()


def test_a_url_that_is_no_master_is_told_in_a_line() -> None:
    with answering(200, b"<html>\n<body>Welcome!</body>") as url, pytest.raises(Unavailable) as told:
        snapshot.master_newest_event(uimod.ui.load(), url)
    assert str(told.value) == f"{url}: '{url}' does not appear to be an hg repository"


def test_no_files_of_a_store_are_read_where_a_page_answers() -> None:
    asked: list[str] = []
    with answering(200, b"", asked) as url, pytest.raises(Unavailable, match="does not appear to be an hg repository"):
        snapshot.master_newest_event(uimod.ui.load(), url)
    assert asked == ["/one?cmd=capabilities"]


def test_a_header_that_is_nested_too_deep_is_waited_for() -> None:
    content = b"[" * 3000
    frame = len(content).to_bytes(4, "big") + content
    with pytest.raises(Unavailable, match="not one of replication"):
        StreamAnswer(io.BytesIO(frame + bytes(4) + hashlib.sha256(content).digest()))


WRONG_MEMBERS = (
    *(("last", value) for value in (None, "7", -1, True, 2**70)),
    *(("after", {"length": 7, "node": node}) for node in ("x", "\ud800", "1" * 39)),
    *(("phases", {phase: ["1" * 40]}) for phase in ("x", "-1", "3", "\u0661", "9" * 5000)),
    *(("phases", {"1": [node]}) for node in ("x", "1" * 39, "\ud800")),
    *(("bookmarks", {"x": node}) for node in ("", "x", "1" * 39)),
    *(("bookmarks", {name: "1" * 40}) for name in ("two\nlines", "", "\ud800")),
    *(("last_push", value) for value in (None, -1, True)),
    *(("markers", value) for value in (None, -1)),
    *(("level", {"path": path}) for path in ("../other", "/", "", "a/~vcsreplicator")),
    *(("level", {name: "x"}) for name in ("repository", "incarnation", "id", "digest")),
    *(("level", {"seq": value}) for value in (0, -1)),
)


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "value"), WRONG_MEMBERS)
def test_a_header_with_a_wrong_member_is_waited_for(made_once: Author, tmp_path: Path, name: str, value: Any) -> None:
    """None: the member is missing."""

    def change(header: dict[str, Any], body: bytes) -> bytes:
        if name in header:
            header[name] = {**header[name], **value} if name == "level" else value
            if value is None:
                del header[name]
        return body

    expect_waiting(made_once, tmp_path, change)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "row",
    [
        *(b"", b"{", b"7", b"{}", b'"word"', b"[" * 3000, b"[]", b"[1, 2, 3]", b'[1, "u", 2, [], 5]'),
        *(b'["1", "u", 2, []]', b"[1, 2, 2, []]", b'[1, "u", null, []]', b'[1, "u", 2, "x"]', b'[1, "u", 2, [3]]'),
        *(b'[-1, "u", 2, []]', b'[1, "u", %d, []]' % 2**70, b'[1, "u", 2, ["x"]]', b'[1, "\\ud800", 2, []]'),
    ],
)
def test_a_push_that_cannot_be_read_is_waited_for(made_once: Author, tmp_path: Path, row: bytes) -> None:
    def change(header: dict[str, Any], body: bytes) -> bytes:
        return body[: header["markers"]] + row + b"\n" if header.get("markers") else body

    expect_waiting(made_once, tmp_path, change)


@pytest.mark.sample(2)
@pytest.mark.parametrize("markers", [b"x", b"\x01" + b"\xff" * 60, b"\0" * 9, b"\x01" + bytes(60)])
def test_markers_that_cannot_be_read_are_waited_for(made_once: Author, tmp_path: Path, markers: bytes) -> None:
    def change(header: dict[str, Any], body: bytes) -> bytes:
        rows = body[header.get("markers", 0) :]
        if not header.get("markers"):
            return body
        header["markers"] = len(markers)
        return markers + rows

    expect_waiting(made_once, tmp_path, change)


def expect_waiting(made_once: Author, folder: Path, change: Callable[[dict[str, Any], bytes], bytes]) -> None:
    """A master that answers so is waited for, and no part of the answer but changesets stays."""
    repo = empty(made_once, folder / "mirror")
    with pytest.raises(Unavailable, match="the master's answer"):
        take(repo, Wire(made_once, rewriting(change)))
    assert replicated.read(repo) is None
    assert (bookmarks.listbookmarks(repo), len(repo.obsstore)) == ({}, 0)
