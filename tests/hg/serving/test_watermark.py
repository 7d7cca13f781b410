# SPDX-License-Identifier: GPL-2.0-or-later
"""What `hg serve` on a mirror's repository says over HTTP: bookmarks of exactly the release, or nothing when it shall refuse."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from mercurial import bookmarks

from hgext.vcsreplicator.hg.serving import views, watermark
from hgext.vcsreplicator.log import STATE, NewRecord
from hgext.vcsreplicator.mirror.supervision import boot
from hgext.vcsreplicator.words.event import Tip
from hgext.vcsreplicator.words.records import AggregatorHeartbeat
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench
from testing.waiting import eventually
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, partitions=1) as bench:
        yield bench


# A request that is still being answered has hgweb's own repository object; the next one gets a copy of it.
SECOND_REQUEST = """
import sys
from wsgiref.util import setup_testing_defaults
from mercurial import hgweb, ui
from pushlog.versions import initialize
initialize()
web = hgweb.hgweb(sys.argv[1].encode(), baseui=ui.ui.load())
def ask():
    environ = {"PATH_INFO": "/json-bookmarks"}
    setup_testing_defaults(environ)
    return iter(web(environ, lambda status, headers, failure=None: None))
begun = ask()
next(begun)
print(b"".join(ask()).decode())
"""


def environment_of(bench: Bench) -> dict[str, str]:
    """The environment of what serves the mirror."""
    hgrc = bench.folder / "serve.hgrc"
    hgrc.write_text("[extensions]\n*:required = yes\npushlog=\nvcsreplicator=\n[vcsreplicator]\nrole=mirror\n")
    return {**os.environ, "HGRCPATH": str(hgrc), "HGENCODING": "utf-8", "HGDEMANDIMPORT": "disable"}


@contextlib.contextmanager
def served(bench: Bench, author: Author, *settings: str) -> Iterator[str]:
    """`hg serve` on the mirror's repository, by HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = environment_of(bench)
    command = [shared_hg(environment), "serve", "-R", str(bench.where(author)), "-a", "127.0.0.1", "-p", str(port)]
    command += [word for setting in settings for word in ("--config", setting)]
    with (bench.folder / "serve.log").open("wb") as output:
        serving = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:

        def answers() -> bool:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            return False

        eventually(answers, "hg serve answers")
        yield f"http://127.0.0.1:{port}/"
    finally:
        serving.kill()
        serving.wait()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: bytes = answer.read()
    return content


def by_wire(url: str) -> dict[str, str]:
    lines = get(url + "?cmd=listkeys&namespace=bookmarks").decode().splitlines()
    return {name: node for name, _, node in (line.partition("\t") for line in lines)}


def by_page(url: str) -> dict[str, str]:
    return {each["bookmark"]: each["node"] for each in json.loads(get(url + "json-bookmarks"))["bookmarks"]}


def by_second_page(bench: Bench, author: Author) -> dict[str, str]:
    environment = environment_of(bench)
    command = [Path(shared_hg(environment)).with_name("python"), "-c", SECOND_REQUEST, str(bench.where(author))]
    page = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    return {each["bookmark"]: each["node"] for each in json.loads(page)["bookmarks"]}


def by_clone(bench: Bench, url: str, *options: str) -> dict[str, str]:
    """What a clone has; with a clone bundle on offer it may come from there."""
    target = bench.folder / "clone"
    environment = {**os.environ, "HGRCPATH": os.devnull, "HGENCODING": "utf-8"}
    hg = shared_hg(environment)
    subprocess.run([hg, "clone", "-q", "-U", *options, url, str(target)], env=environment, check=True)
    command = [hg, "-R", str(target), "bookmarks", "-T", "{bookmark}\t{node}\n"]
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    subprocess.run(["rm", "-r", str(target)], check=True)
    return {name: node for name, _, node in (line.partition("\t") for line in told.splitlines())}


def eventful(bench: Bench) -> tuple[Author, Mapping[int, Mapping[str, str]]]:
    """A repository whose bookmarks come, move and go; and which it has after each sequence."""
    author = bench.author("repo")
    nodes = [author.push().after.node for _ in range(3)]
    history: dict[int, dict[str, str]] = {}

    def keep() -> None:
        history[author.seq] = {
            name.decode(): node.decode() for name, node in bookmarks.listbookmarks(author.repo).items()
        }

    keep()
    for name, node in (
        ("main", nodes[0]),
        ("umläut", nodes[1]),
        ("main", nodes[1]),
        ("umläut", None),
        ("new", nodes[0]),
        ("main", "push"),
        ("new", None),
        ("umläut", nodes[2]),
        ("main", nodes[0]),
    ):
        if node == "push":
            node = author.push().after.node
            keep()
        author.bookmark(name, node)
        keep()
    return author, history


def test_a_repository_object_stays_with_the_release_it_opened_with(bench: Bench) -> None:
    author = bench.author("repo")
    first, second = (author.push().after for _ in range(2))

    def release(tip: Tip) -> None:
        watermark.write_watermark(
            author.repo, watermark.Watermark(seq=1, length=tip.length, tip=tip.node, push_id=None)
        )

    release(first)
    views.hold_release(author.repo)
    release(second)
    assert views.first_unreleased(author.repo) == first.length


def release_all(bench: Bench, pushes: int) -> tuple[Author, list[Tip], watermark.Watermark]:
    """A repository of so many changesets, what it had after each, and the watermark that shows all of them."""
    author = bench.author("repo")
    tips = [author.push().after for _ in range(pushes)]
    shown = watermark.Watermark(seq=pushes, length=tips[-1].length, tip=tips[-1].node, push_id=None)
    watermark.write_watermark(author.repo, shown)
    return author, tips, shown


def test_a_strip_shows_less_and_what_stays_is_shown_again(bench: Bench) -> None:
    author, tips, shown = release_all(bench, 2)
    watermark.lower_watermark(author.repo, tips[0].length)
    assert watermark.read_watermark(author.repo.vfs) == replace(shown, length=tips[0].length, tip=tips[0].node)
    watermark.raise_watermark(author.repo, tips[1].length)
    assert watermark.read_watermark(author.repo.vfs) == shown


def test_a_new_watermark_is_at_least_two_seconds_younger(bench: Bench) -> None:
    author, _, shown = release_all(bench, 1)
    file = author.repo.vfs.join(watermark.WATERMARK)
    before = int(os.stat(file).st_mtime)
    assert abs(time.time() - before) < 600
    watermark.write_watermark(author.repo, shown)
    assert int(os.stat(file).st_mtime) == before + 2


@pytest.mark.parametrize("pushes", [1, 2])
def test_a_watermark_fits_only_a_changelog_whose_last_shown_entry_is_whole(bench: Bench, pushes: int) -> None:
    author, _, shown = release_all(bench, pushes)
    store = author.repo.svfs
    assert shown.fits_store(store)
    assert not replace(shown, tip="f" * 40).fits_store(store)
    os.truncate(store.join(b"00changelog.d"), os.stat(store.join(b"00changelog.d")).st_size - 1)
    assert not shown.fits_store(store)


def test_every_client_sees_exactly_the_bookmarks_of_the_release(bench: Bench) -> None:
    author, history = eventful(bench)
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
        first = min(history)
        bench.release(author, first)
        bench.wait(lambda acks: acks[author.repository].serving == first, "the first release")
        with served(bench, author) as url:
            for seq, expected in history.items():
                bench.release(author, seq)
                bench.wait(lambda acks, s=seq: acks[author.repository].serving == s, f"release {seq}")  # type: ignore[misc]
                assert by_wire(url) == expected, f"released {seq}"
                with ThreadPoolExecutor(8) as clients:  # hgweb makes copies of its repository for requests at once
                    for seen in clients.map(by_page, [url] * 8):
                        assert seen == expected, f"released {seq}"


def test_what_is_applied_after_a_release_does_not_move_its_bookmarks(bench: Bench) -> None:
    author, history = eventful(bench)
    with bench.mirror():
        shown = sorted(history)[3]
        bench.log.append(author.messages()[:shown])
        bench.release(author, shown)
        bench.wait(lambda acks: (a := acks.get(author.repository)) is not None and a.serving == shown, "release")
        bench.sent[author.repository] = shown
        bench.send(author)
        bench.wait_applied(author)
        with served(bench, author) as url:
            assert by_wire(url) == by_page(url) == by_second_page(bench, author) == history[shown]
            assert by_clone(bench, url) == history[shown]
            assert by_clone(bench, url, "--stream") == history[shown]
            bench.release(author)
            bench.wait_served(author)
            assert by_clone(bench, url, "--stream") == history[author.seq]


def test_a_new_copy_serves_the_bookmarks_of_the_release_until_the_next(bench: Bench) -> None:
    author, history = eventful(bench)
    bench.serve_master()
    shown = sorted(history)[3]
    with bench.mirror():
        bench.log.append(author.messages()[:shown])
        bench.release(author, shown)
        bench.wait(lambda acks: (a := acks.get(author.repository)) is not None and a.serving == shown, "release")
        bench.hg(author, "debugbuilddag", "+1", "--from-existing")  # so it is copied again, at the last event
        bench.sent[author.repository] = shown
        bench.send(author)
        bench.wait_applied(author)
        with served(bench, author) as url:
            assert by_wire(url) == history[shown]
            between = shown + 2
            bench.release(author, between)
            bench.release(author)
            bench.wait_served(author)
            assert by_wire(url) == history[author.seq]


def test_a_mirror_that_refuses_when_stale_waits_for_the_aggregator(bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    bench.send(author)
    bench.release(author)
    fresh = bench.root / "~vcsreplicator/fresh"

    def beat(age: float) -> None:
        said = AggregatorHeartbeat(time=time.time() - age, roster=1, held=0)
        bench.log.append([NewRecord(topic=STATE, key="aggregator", value=to_json(said))])

    def status(url: str) -> int:
        try:
            get(url)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        return 200

    with bench.mirror():
        bench.wait_served(author)
        with served(bench, author, f"vcsreplicator.refuse-when-stale={fresh}") as url:
            assert {status(url), status(url + "?cmd=capabilities")} == {503}  # nothing heard at all
            beat(age=-3600)
            eventually(lambda: status(url) == status(url + "?cmd=capabilities") == 200, "it answers")
            for age in (-60, 60):  # the aggregator was silent since, or this machine's clock was set back
                os.utime(fresh, (time.time() - age, time.time() - age))
                assert {status(url), status(url + "?cmd=capabilities")} == {503}
            beat(age=3600)
            eventually(
                lambda: status(url) == status(url + "?cmd=capabilities") == 200,
                "an answer",
            )
        with served(bench, author) as url:
            assert status(url) == 200  # without the setting


def test_a_mirror_answers_503_after_a_power_cut_until_it_is_back(bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    bench.send(author)
    bench.release(author)

    def ask(url: str) -> tuple[int, str | None]:
        try:
            get(url)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Retry-After"]
        return 200, None

    with bench.mirror():
        bench.wait_served(author)
    older = bench.folder / "older"
    shutil.copytree(bench.where(author) / ".hg", older)
    author.push()
    bench.send(author)
    bench.release(author)
    with bench.mirror():
        bench.wait_served(author)
        running = boot.read(str(bench.root))
    assert running is not None
    shutil.rmtree(bench.where(author) / ".hg")
    shutil.copytree(older, bench.root / "repo/.hg")
    boot.write(str(bench.root), "another", running.lacking)
    with served(bench, author) as url:
        assert {ask(url), ask(url + "?cmd=capabilities")} == {(503, "5")}
        with bench.mirror():
            bench.wait_served(author)
            eventually(lambda: ask(url) == ask(url + "?cmd=capabilities") == (200, None), "it answers")
            assert json.loads(get(f"{url}json-rev/tip"))["node"] == author.tip


def test_an_answer_states_how_long_ago_the_aggregator_was_heard(bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    bench.send(author)
    bench.release(author)
    with bench.mirror():
        bench.wait_served(author)
    fresh = bench.folder / "heard"

    def heard(url: str) -> str | None:
        with urllib.request.urlopen(url) as answer:
            value: str | None = answer.headers["X-Vcsreplicator-Heard"]
            return value

    with served(bench, author, f"vcsreplicator.refuse-when-stale={fresh}") as url:
        for age, stated in ((12.5, {"12", "13", "14"}), (-5.0, {"0"})):  # the clock was set back by 5 s
            fresh.touch()
            os.utime(fresh, (time.time() - age, time.time() - age))
            assert heard(url) in stated
    with served(bench, author) as url:
        assert heard(url) is None


def test_the_first_digits_of_a_changeset_mean_what_the_release_means(bench: Bench) -> None:
    author = bench.author("repo")
    nodes = [author.push().after.node for _ in range(80)]
    shown, behind = nodes[:20], nodes[20:]
    digits = [node[:3] for node in shown if any(other.startswith(node[:3]) for other in behind)]
    prefix = next(each for each in digits if digits.count(each) == 1 and not each.isdecimal())
    ambiguous = next(digit for digit in "abcdef" if sum(node.startswith(digit) for node in shown) > 1)
    bench.send(author)
    bench.release(author, 21)
    with bench.mirror():
        bench.wait_applied(author)
        bench.wait(lambda acks: acks[author.repository].serving == 21, "the release served")
    [node] = [node for node in shown if node.startswith(prefix)]
    with served(bench, author) as url:
        assert json.loads(get(f"{url}json-rev/{prefix}"))["node"] == node
        for key in (prefix, f"x{prefix}"):  # Mercurial puts an x where digits alone would be a number
            assert get(f"{url}?cmd=lookup&key={key}").decode() == f"1 {node}\n"
        assert get(f"{url}?cmd=lookup&key={ambiguous}").endswith(b"ambiguous identifier\n")
        assert get(f"{url}?cmd=lookup&key={behind[0][:12]}").startswith(b"0 unknown revision")
