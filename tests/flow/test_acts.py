# SPDX-License-Identifier: GPL-2.0-or-later
"""Creation, rename, deletion and configuration act on a mirror at their release: clients see what was released before."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from hgext.vcsreplicator.aggregator import loop
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import NOTICES
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.status.follower import Follower
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.aggregator.aggregating import ask, mirrors
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import NAME, PATIENCE, Bench
from testing.checks.checker import everything
from testing.waiting import eventually
from testing.warm import warm_starts

pytestmark = pytest.mark.processes


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, partitions=1) as bench:
        yield bench


class Web:
    """What the mirror's web server answers."""

    def __init__(self, url: str) -> None:
        self._url = url

    def status(self, path: str) -> int:
        try:
            self._get(path + "?cmd=capabilities")
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        return 200

    def heads(self, path: str) -> list[str]:
        """The heads of the repository at this path, as clients see them."""
        return self._get(path + "?cmd=heads").decode().split()

    def _get(self, where: str) -> bytes:
        with urllib.request.urlopen(self._url + where, timeout=60) as answer:
            content: bytes = answer.read()
        return content


@contextlib.contextmanager
def served(bench: Bench) -> Iterator[Web]:
    """`vcsreplicator web` over the mirror's root."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hgrc = bench.folder / "serve.hgrc"
    hgrc.write_text("[extensions]\n*:required = yes\npushlog=\nvcsreplicator=\n[vcsreplicator]\nrole=mirror\n")
    program = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "web", "--role", "mirror"]
    program += ["--root", str(bench.root), "--listen", f"127.0.0.1:{port}"]
    environment = {**os.environ, "HGRCPATH": str(hgrc), "HGENCODING": "utf-8"}
    with (bench.folder / "serve.log").open("wb") as output, warm_starts():
        serving = subprocess.Popen(program, env=environment, stdout=output, stderr=output)
    try:

        def answers() -> bool:
            assert serving.poll() is None, (bench.folder / "serve.log").read_text()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            return False

        eventually(answers, "the web server answers")
        yield Web(f"http://127.0.0.1:{port}/")
    finally:
        serving.kill()
        serving.wait()


def pushed(bench: Bench, path: str, **members: int) -> Author:
    author = bench.author(path, **members)
    author.push()
    bench.send(author)
    return author


def test_a_created_repository_has_no_url_before_its_release(bench: Bench) -> None:
    with bench.mirror(), served(bench) as web:
        author = pushed(bench, "project/repo")
        bench.wait_applied(author)
        assert web.status("project/repo") == 404
        assert not (bench.root / "project").exists()
        bench.release(author)
        bench.wait_served(author)
        assert web.heads("project/repo") == [author.tip]


def test_a_renamed_repository_keeps_its_url_until_the_release(bench: Bench) -> None:
    with bench.mirror(), served(bench) as web:
        author = pushed(bench, "old/repo")
        bench.release(author)
        bench.wait_served(author)
        before = author.tip
        author.rename(bench.master_root, "new/repo")
        author.push()
        bench.send(author)
        bench.wait_applied(author)
        assert (web.status("new/repo"), web.heads("old/repo")) == (404, [before])
        bench.release(author, 3)
        bench.wait(lambda acks: acks[author.repository].serving == 3, "the rename served")
        assert (web.status("old/repo"), web.heads("new/repo")) == (404, [before])
        bench.release(author)
        bench.wait_served(author)
        assert web.heads("new/repo") == [author.tip]
    assert not (bench.root / "old").exists()


def test_a_deleted_repository_is_served_until_the_release(bench: Bench) -> None:
    with bench.mirror(), served(bench) as web:
        former = pushed(bench, "repo")
        bench.release(former)
        bench.wait_served(former)
        former.event(Type.DELETED)
        bench.send(former)
        bench.wait_applied(former)
        former.folder.rename(bench.folder / "gone")
        successor = pushed(bench, "repo", generation=2)
        bench.wait_applied(successor)
        assert web.heads("repo") == [former.tip]
        bench.release(former, deleted=True)
        bench.wait_served(former)
        assert web.status("repo") == 404
        bench.release(successor)
        bench.wait_served(successor)
        assert web.heads("repo") == [successor.tip]


def test_who_may_read_changes_at_the_release(bench: Bench) -> None:
    with bench.mirror(), served(bench) as web:
        author = pushed(bench, "repo")
        bench.release(author)
        bench.wait_served(author)
        author.event(Type.HGRC, hgrc={"web": {"deny_read": "*"}})
        author.push()
        bench.send(author)
        bench.wait_applied(author)
        assert web.status("repo") == 200
        bench.release(author)
        bench.wait_served(author)
        assert web.status("repo") == 401
        author.event(Type.HGRC, hgrc={})
        bench.send(author)
        bench.wait_applied(author)
        assert web.status("repo") == 401
        bench.release(author)
        bench.wait_served(author)
        assert web.heads("repo") == [author.tip]


def test_a_copy_of_the_master_keeps_url_and_readers_of_the_release(bench: Bench) -> None:
    bench.serve_master()
    with bench.mirror(), served(bench) as web:
        author = bench.author("closed")
        author.event(Type.HGRC, hgrc={"web": {"deny_read": "*"}})
        author.push()
        bench.send(author)
        bench.release(author)
        bench.wait_served(author)
        author.rename(bench.master_root, "open")
        author.event(Type.HGRC, hgrc={})
        author.push()
        bench.send(author)
        bench.wait_applied(author)
        bench.request_heal(author)
        bench.wait_detached(author)
        bench.wait_applied(author)
        assert (web.status("closed"), web.status("open")) == (401, 404)
        bench.release(author, 4)  # what the copy cannot show alone
        bench.wait(lambda acks: acks[author.repository].floor == author.seq, "its floor")
        assert (web.status("closed"), web.status("open")) == (401, 404)
        bench.release(author)
        bench.wait_served(author)
        assert (web.status("closed"), web.heads("open")) == (404, [author.tip])


def test_two_repositories_swap_their_names(bench: Bench) -> None:
    with bench.mirror(), served(bench) as web:
        first, second = pushed(bench, "a"), pushed(bench, "b")
        for author in (first, second):
            bench.release(author)
        bench.wait_served(first, second)
        for author, path, generation in ((first, "between", 1), (second, "a", 2), (first, "b", 2)):
            author.generation = generation
            author.rename(bench.master_root, path)
        bench.send(first, second)
        bench.wait_applied(first, second)
        assert (web.heads("a"), web.heads("b"), web.status("between")) == ([first.tip], [second.tip], 404)
        bench.release(second)  # whose place is not free yet
        bench.wait_served(second)
        assert web.heads("a") == [second.tip]
        bench.release(first)
        bench.wait_served(first)
        assert (web.heads("a"), web.heads("b"), web.status("between")) == ([second.tip], [first.tip], 404)
    assert {found.folder for found in bench.found().values()} == {str(bench.root / "a"), str(bench.root / "b")}


def test_a_late_mirror_gives_the_url_to_the_newest_repository(bench: Bench) -> None:
    with bench.mirror(), served(bench) as web:
        former = pushed(bench, "repo")
        bench.release(former)
        bench.wait_served(former)
        former.folder.rename(bench.folder / "gone")
        successor = pushed(bench, "repo", generation=2)
        bench.release(successor)
        bench.wait_served(successor)
        assert web.heads("repo") == [successor.tip]
        assert former.tip in bench.hg(former, "log", "-T", "{node}")


def test_what_was_applied_and_not_released_is_found_at_the_next_start(bench: Bench) -> None:
    renamed, deleted = pushed(bench, "old"), pushed(bench, "deleted")
    created = bench.author("created")
    for author in (renamed, deleted):
        bench.release(author)
    with bench.mirror():
        bench.wait_served(renamed, deleted)
        renamed.rename(bench.master_root, "new")
        deleted.event(Type.DELETED)
        bench.send(renamed, deleted, created)
        bench.wait_applied(renamed, deleted, created)
    assert (bench.root / "old/.hg").exists()
    assert (bench.root / "deleted/.hg").exists()
    with bench.mirror():
        bench.release(renamed)
        bench.release(created)
        bench.release(deleted, deleted=True)
        bench.wait_served(renamed, deleted, created)
    folders = {found.folder for found in bench.found().values()}
    assert folders == {str(bench.root / "new"), str(bench.root / "created")}


def test_a_backup_keeps_what_was_deleted_until_another_has_it(bench: Bench) -> None:
    with bench.mirror(backup=True), served(bench) as web:
        former = pushed(bench, "repo")
        former.event(Type.DELETED)
        bench.send(former)
        bench.release(former, deleted=True)
        bench.wait_served(former)
        former.folder.rename(bench.folder / "gone")
        successor = pushed(bench, "repo", generation=2)
        bench.release(successor)
        bench.wait_served(successor)
        assert web.heads("repo") == [successor.tip]
    assert former.tip in bench.hg(former, "log", "-T", "{node}")


def test_a_repository_whose_whole_life_is_over_is_never_made(bench: Bench) -> None:
    deleted_and_noticed(bench)
    with bench.mirror():
        eventually(bench.everything_passed, "everything read")
    assert bench.found() == {}
    assert not (bench.root / "~vcsreplicator/aside").exists()


def test_a_backup_gets_a_repository_whose_whole_life_is_over(bench: Bench) -> None:
    author = deleted_and_noticed(bench)
    with bench.mirror(backup=True):
        eventually(bench.everything_passed, "everything read")
    assert author.tip in bench.hg(author, "log", "-T", "{node}")


def deleted_and_noticed(bench: Bench) -> Author:
    author = pushed(bench, "repo")
    author.event(Type.DELETED)
    bench.send(author)
    bench.release(author, deleted=True, noticed=author.seq)
    return author


def test_what_was_stripped_since_is_passed_over_and_the_ack_says_more(bench: Bench) -> None:
    with bench.mirror(), served(bench) as web:
        author = pushed(bench, "repo")
        stays = author.tip
        author.push()
        author.event(Type.HGRC, hgrc={"web": {"description": "text"}})
        author.strip(author.tip)
        bench.send(author)
        bench.release(author, 3)
        bench.wait(lambda acks: (a := acks.get(author.repository)) is not None and a.floor == 5, "its floor")
        bench.release(author)
        bench.wait_served(author)
        assert web.heads("repo") == [stays]
        assert bench.ack(author).floor == 0  # type: ignore[union-attr]


def test_a_release_that_an_operator_must_make_possible_is_told_once(bench: Bench) -> None:
    first, second = bench.author("here/repo"), bench.author("there/repo")
    with bench.mirror(paths={"here": "served", "there": "served"}):
        bench.send(first, second)
        bench.wait_applied(first, second)  # neither has a URL yet
        bench.release(first)
        bench.wait_served(first)
        bench.release(second)
        ack = bench.wait_detached(second, "refused")
        assert "here/repo" in (ack.note or "")
        first.push()
        bench.send(first)
        bench.wait_applied(first)
        detached = REGISTRY.get_sample_value("vcsreplicator_mirror_detachments_total", {"reason": "refused"})
        first.push()
        bench.send(first)
        bench.wait_applied(first)
        assert detached == REGISTRY.get_sample_value("vcsreplicator_mirror_detachments_total", {"reason": "refused"})
        bench.release(first)
        bench.wait_served(first)
        first.event(Type.DELETED)
        bench.send(first)
        bench.release(first, deleted=True)
        bench.wait_served(first)
        bench.request_heal(second)
        bench.wait_served(second)
    assert (bench.root / "served/repo/.hg").exists()


@pytest.fixture
def deciding(bench: Bench) -> Iterator[None]:
    """The aggregator runs, and the bench's mirror is in the roster."""
    stop, ready = threading.Event(), threading.Event()
    with open_log(bench.url, creates=True) as log:
        ask(log, Verb.ADD, NAME)
        thread = threading.Thread(target=lambda: loop.run(AggregatorSettings(), log, stop=stop, ready=ready.set))
        thread.start()
        try:
            assert ready.wait(PATIENCE)
            yield
        finally:
            stop.set()
            thread.join()


def is_known(bench: Bench, mirror: str) -> bool:
    with contextlib.closing(Follower(bench.log)) as follower:
        roster = follower.update().roster
    return roster is not None and roster.mirror(mirror) is not None


def told(bench: Bench) -> list[tuple[str, int]]:
    """The notices so far: paths and sequences."""
    records = everything(bench.log, (NOTICES,))
    events = [from_json(Notice, record.value or b"").event for record in records]
    return [(f"{event.path}.{event.generation}", event.seq) for event in events]


@pytest.mark.usefixtures("deciding")
def test_while_one_mirror_is_away_the_others_show_what_notices_have_named(bench: Bench) -> None:
    with bench.mirror(), served(bench) as web:
        former, moved = pushed(bench, "repo"), pushed(bench, "old")
        bench.wait_served(former, moved)
        tips = {author: author.tip for author in (former, moved)}
        eventually(lambda: len(told(bench)) == 4, "four notices")
        ask(bench.log, Verb.ADD, "beta")  # which is not there yet
        eventually(lambda: is_known(bench, "beta"), "the second mirror in the roster")
        for author in (former, moved):
            author.push()
        former.event(Type.DELETED)
        moved.rename(bench.master_root, "new")
        moved.event(Type.HGRC, hgrc={"web": {"deny_read": "*"}})
        bench.send(former, moved)
        former.folder.rename(bench.folder / "gone")
        successor = pushed(bench, "repo", generation=2)
        bench.wait_applied(former, moved, successor)
        assert (web.heads("repo"), web.heads("old")) == ([tips[former]], [tips[moved]])
        assert web.status("new") == 404
        assert len(told(bench)) == 4
        with mirrors(bench.url, "beta"):
            bench.wait_served(moved, successor)
            eventually(lambda: len(told(bench)) == 11, "all notices")
        assert (web.heads("repo"), web.status("old"), web.status("new")) == ([successor.tip], 404, 401)
    assert [seq for path, seq in told(bench) if path == "repo.1"] == [1, 2, 3, 4]
    assert told(bench).index(("repo.1", 4)) < told(bench).index(("repo.2", 1))
