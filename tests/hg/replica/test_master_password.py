# SPDX-License-Identifier: GPL-2.0-or-later
"""A master that asks for name and password: mirrors copy from it with those of a file, and say what is wrong with them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench

pytestmark = pytest.mark.processes


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        bench.serve_master(guard=("beta", "open sesame"))
        yield bench


def with_a_gap(bench: Bench) -> Author:
    """A repository of which the log has the newest event alone: the rest must come from the master."""
    author = bench.author("repo")
    for _ in range(3):
        author.push()
    bench.log.append(author.messages()[-1:])
    return author


def auth(bench: Bench, password: str) -> str:
    file = bench.folder / "master.hgrc"
    url = f"master.prefix = {bench.master_url}\nmaster.username = beta\nmaster.password = {password}\n"
    file.touch(mode=0o600)
    file.write_text(f"[hooks]\npretxnopen = false\n[auth]\n{url}")
    return str(file)


def waits_because(bench: Bench, author: Author, words: str) -> None:
    bench.wait_detached(author)
    bench.wait(lambda acks: words in (acks[author.repository].note or ""), words)
    bench.wait_detached(author, "gap")


def test_mirror_copies_from_a_master_that_asks_for_a_password(bench: Bench) -> None:
    author = with_a_gap(bench)
    with bench.mirror(master_auth=auth(bench, "open sesame")):
        bench.wait_applied(author)


def test_a_mirror_with_a_wrong_password_says_so_and_then_goes_on(bench: Bench) -> None:
    author = with_a_gap(bench)
    with bench.mirror(master_auth=auth(bench, "close sesame")):
        waits_because(bench, author, "authorization failed")
        auth(bench, "open sesame")
        bench.wait_applied(author)


def test_mirror_without_its_file_says_so_and_goes_on_once_it_is_there(bench: Bench) -> None:
    author = with_a_gap(bench)
    with bench.mirror(master_auth=str(bench.folder / "master.hgrc")):
        waits_because(bench, author, "master-auth: ")
        auth(bench, "open sesame")
        bench.wait_applied(author)


def test_file_that_others_may_read_is_not_used_until_they_may_not(bench: Bench) -> None:
    author = with_a_gap(bench)
    file = Path(auth(bench, "open sesame"))
    file.chmod(0o640)
    with bench.mirror(master_auth=str(file)):
        waits_because(bench, author, f"master-auth: {file} has mode 0640, expected 0600 or stricter")
        file.chmod(0o600)
        bench.wait_applied(author)
