# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator web` keeps threads free while requests wait for pushes, and takes no user from a request."""

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.outbox.entry import before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from testing.builders.master.outboxes import Folder, Transaction, following
from testing.services.cache import CHECKOUT
from testing.waiting import PATIENCE, eventually
from testing.warm import warm_starts
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

THREADS = 4
# Bytes of address space that a server gets, so that a failing test leaves memory to others.
MEMORY = 2 * 1024**3


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server of four threads that serves the repository `known`; requests may wait for ten minutes."""
    subprocess.run([shared_hg(), "init", str(tmp_path / "root" / "known")], check=True)
    with serving(tmp_path, "[extensions]\n*:required = yes\npushlog =\n[pushlog]\nmaxwait = 600\n") as url:
        yield f"{url}/known"


@contextmanager
def serving(tmp_path: Path, hgrc: str) -> Iterator[str]:
    """Serve the folder `root` with this hgrc, by four threads; the file `log` has what the server says."""
    (tmp_path / "hgrc").write_text(hgrc)
    where = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "web", "--root", str(tmp_path / "root")]
    environment = {**os.environ, "HGRCPATH": str(tmp_path / "hgrc")}
    words = [*command, "--listen", where, "--threads", str(THREADS)]
    with (tmp_path / "log").open("w") as log, warm_starts():
        server = subprocess.Popen(words, env=environment, stderr=log)
    with server:
        resource.prlimit(server.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
        try:
            eventually(lambda: is_answering(f"http://{where}/?style=raw"), "the server")
            yield f"http://{where}"
        finally:
            server.kill()


def get(url: str) -> bytes:
    with urlopen(url, timeout=PATIENCE) as answer:
        return bytes(answer.read())


def is_answering(url: str) -> bool:
    try:
        return bool(get(url))
    except OSError:
        return False


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["wait", "%77ait"])
def test_requests_that_wait_leave_two_threads_free(url: str, name: str) -> None:
    pool = ThreadPoolExecutor(THREADS)  # its threads end with the server
    waiting = [pool.submit(get, f"{url}/json-pushes?version=2&{name}=9") for _ in range(THREADS)]
    eventually(lambda: sum(each.done() for each in waiting) == 2, "the requests that may not wait to be answered")
    assert get(f"{url}?style=raw")
    answered = [each for each in waiting if each.done()]
    assert [json.loads(each.result()) for each in answered] == [{"lastpushid": 0, "pushes": {}}] * 2


def test_a_probe_gets_a_file_without_a_repository_and_the_newest_push(url: str) -> None:
    assert get(f"{url.removesuffix('/known')}/static/mercurial.js")
    assert json.loads(get(f"{url}/json-pushes?version=2&tipsonly=1"))["lastpushid"] == 0


@pytest.mark.parametrize("key", ["allow_read = dana", "deny_read = eve"])
def test_a_request_without_a_user_meets_the_rules_for_readers(url: str, tmp_path: Path, key: str) -> None:
    subprocess.run([shared_hg(), "init", str(tmp_path / "root" / "ruled")], check=True)
    (tmp_path / "root" / "ruled" / ".hg" / "hgrc").write_text(f"[web]\n{key}\n")
    named = dict.fromkeys(("Remote-User", "Remote_User", "X-Remote-User", "X-Forwarded-User"), "dana")
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{url.replace('known', 'ruled')}?style=raw", headers=named), timeout=PATIENCE)
    assert (refused.value.code, refused.value.reason) == (401, "read not authorized")


@pytest.mark.sample(1)
@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_a_client_behind_a_proxy_copies_nothing_by_the_proxys_address(url: str, tmp_path: Path, header: str) -> None:
    master = (
        f"[extensions]\n*:required = yes\npushlog =\nvcsreplicator =\n[vcsreplicator]\nrole = master\n"
        f"relay = {tmp_path}/nowhere\nacknowledge = outbox\nsnapshot-allow = 127.0.0.1\n"
        f"[vcsreplicator-roots]\n{tmp_path}/root = .\n"
    )
    (tmp_path / "hgrc").write_text(master)
    subprocess.run(
        [shared_hg(), "init", str(tmp_path / "root" / "copied")],
        check=True,
        env={**os.environ, "HGRCPATH": str(tmp_path / "hgrc")},
    )
    (tmp_path / "root" / "copied" / ".hg" / "hgrc").write_text(master)
    state = f"{url.replace('known', 'copied')}?cmd=replication-state&firstpush="
    assert b'"path": "copied"' in get(state)
    with urlopen(Request(state, headers={header: "192.0.2.7"}), timeout=PATIENCE) as answer:
        assert b"this client may not copy this repository" in answer.read()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "expression",
    [
        "desc('r'##'e:(.|.)*Z')",  # takes 2 to the power of the text's length
        "file('set:grep(\"(.|.)*Z\")')",
        "file('listfile:/dev/zero')",  # takes all memory
        "file('listfile:{pipe}')",  # waits for ever
        "0~99999999999999999999",
    ],
)
def test_a_hostile_search_is_answered_and_so_are_others(url: str, tmp_path: Path, expression: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "root" / "known" / "a").write_text("a" * 60)
    subprocess.run(
        [shared_hg(), "commit", "-A", "-m", "a" * 60, "-u", "a"], cwd=tmp_path / "root" / "known", check=True
    )
    hostile = f"{url}/json-log?rev={quote(expression.format(pipe=tmp_path / 'pipe'))}"
    with ThreadPoolExecutor(THREADS) as pool:
        answers = [pool.submit(get, hostile) for _ in range(THREADS)]
        assert get(f"{url}?style=raw")
        assert {json.loads(each.result())["entries"] == [] for each in answers} == {True}


PAGES = ["file", "annotate", "raw-file", "log", "filelog", "diff", "comparison", "json-file"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["c\x01tl", "t\tab", "d/e\x1bx", "del\x7f"])
def test_pages_about_a_file_with_a_control_character_are_answered(tmp_path: Path, name: str) -> None:
    known = tmp_path / "root" / "known"
    subprocess.run([shared_hg(), "init", str(known)], check=True)
    (known / name).parent.mkdir(exist_ok=True)
    (known / name).write_text("content\n")
    subprocess.run([shared_hg(), "commit", "-q", "-A", "-m", "a", "-u", "a"], cwd=known, check=True)
    encoded = quote(name)
    with serving(tmp_path, "[extensions]\n*:required = yes\npushlog =\n") as url:
        folder = f"/known/file/tip/{encoded.rpartition('/')[0]}"
        assert f'href="/known/file/tip/{encoded}"'.encode() in get(url + folder)
        for page in PAGES:
            assert get(f"{url}/known/{page}/tip/{encoded}"), page
        with urlopen(f"{url}/known/raw-file/tip/{encoded}", timeout=PATIENCE) as answer:
            disposition = answer.headers["Content-Disposition"]
        assert disposition.endswith(f"; filename*=UTF-8''{quote(name.rpartition('/')[2], safe='')}")


def test_a_log_line_has_control_characters_of_a_path_escaped(url: str, tmp_path: Path) -> None:
    (tmp_path / "root" / "known" / ".hg" / "hgrc").write_text("no section\n")
    with pytest.raises(HTTPError, match="500"):
        get(f"{url}/file/tip/c%01tl%1Bx")
    said = (tmp_path / "log").read_text()
    assert "c\\u0001tl\\u001bx" in said
    assert said.replace("\n", "").isprintable()


def test_a_repository_of_thousands_of_heads_is_cloned_and_pulled(url: str, tmp_path: Path) -> None:
    """Their names have more bytes than the headers of a request may have."""
    known = str(tmp_path / "root" / "known")
    hg = [shared_hg(), "--cwd", str(tmp_path), "--config", "ui.timeout=60"]
    subprocess.run([*hg, "-R", known, "debugbuilddag", "+1:r" + "<r+1" * 7000], check=True)
    subprocess.run([*hg, "clone", "--quiet", "--noupdate", "--pull", url, "clone"], check=True)
    subprocess.run([*hg, "-R", known, "phase", "--public", "--rev", "all()"], check=True)
    subprocess.run([*hg, "-R", "clone", "pull", "--quiet"], check=True)
    count = [*hg, "-R", "clone", "log", "--rev", "head() and public()", "--template", "x"]
    assert len(subprocess.run(count, check=True, capture_output=True).stdout) == 7000


def answer_to(url: str, headers: str, *, method: str = "POST") -> bytes:
    """The beginning of the answer to a request without its body, empty if the server waits for that."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE) as client:
        client.sendall(f"{method} {address.path}?{address.query} HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n".encode())
        client.shutdown(socket.SHUT_WR)
        return client.recv(12)


PUSHLOG = "[extensions]\n*:required = yes\npushlog =\n"
ROLE = f"{PUSHLOG}vcsreplicator =\n[vcsreplicator]\nrole = "
# Pushes of clients that have no name, and that come without TLS.
OPEN = "[web]\nallow-push = *\npush_ssl = no\n"
ARGUMENTS, PUSH = 16 * 1024**2, 16 * 1024**3


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the repositories `known` and, with a hgrc that permits pushes, `open`."""
    for name, hgrc in (("known", "[web]\ndescription = known\n"), ("open", OPEN)):
        subprocess.run([shared_hg(), "init", str(tmp_path / "root" / name)], check=True)
        (tmp_path / "root" / name / ".hg" / "hgrc").write_text(hgrc)
    return tmp_path / "root"


def test_a_push_of_up_to_16_gib_is_taken_and_a_larger_one_refused(tmp_path: Path, root: Path) -> None:
    with serving(tmp_path, PUSHLOG + OPEN) as url:
        answers = [answer_to(f"{url}/known?cmd=unbundle", f"Content-Length: {length}") for length in (PUSH, PUSH + 1)]
    assert answers == [b"", b"HTTP/1.1 413"], "the first waited for the push, which ended early"


def test_a_large_body_that_is_no_push_is_refused_at_its_header(tmp_path: Path, root: Path) -> None:
    (root / "~deleted" / ".hg").mkdir(parents=True)
    others = ["nosuch", "known", "known?cmd=heads", "nosuch?cmd=unbundle", "?cmd=unbundle", "known/a?cmd=unbundle"]
    others += ["known/.hg?cmd=unbundle", "known/../known?cmd=unbundle", "~deleted?cmd=unbundle"]
    large = f"Content-Length: {ARGUMENTS + 1}"
    with serving(tmp_path, PUSHLOG + OPEN) as url:
        answers = {other: answer_to(f"{url}/{other}", large) for other in others}
        assert answers == dict.fromkeys(others, b"HTTP/1.1 413")
        assert answer_to(f"{url}/known?cmd=unbundle", large, method="PUT") == b"HTTP/1.1 413"
        assert answer_to(f"{url}/known?cmd=unbundle", large) == b""
        assert answer_to(f"{url}/nosuch", f"Content-Length: {ARGUMENTS}") == b""


@pytest.mark.parametrize("hgrc", ["", "[web]\nallow-push = dana\n"])
def test_a_large_push_that_no_hgrc_permits_is_refused_at_its_header(tmp_path: Path, root: Path, hgrc: str) -> None:
    """No client of this server is dana."""
    with serving(tmp_path, f"{ROLE}master\nrelay = /nowhere\nacknowledge = outbox\n{hgrc}") as url:
        answers = [
            answer_to(f"{url}/{name}?cmd=unbundle", f"Content-Length: {ARGUMENTS + 1}") for name in ("known", "open")
        ]
    assert answers == [b"HTTP/1.1 413", b""]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["known", "open"])
def test_a_push_of_more_than_16_mib_arrives(tmp_path: Path, root: Path, name: str) -> None:
    clone = tmp_path / "clone"
    hg = [shared_hg(), "--cwd", str(clone), "--config", "ui.timeout=60"]
    subprocess.run([shared_hg(), "init", str(clone)], check=True)
    (clone / "large").write_bytes(os.urandom(ARGUMENTS + 1))
    subprocess.run([*hg, "commit", "--addremove", "--message", "large", "--user", "dana"], check=True)
    with serving(tmp_path, PUSHLOG + (OPEN if name == "known" else "")) as url:
        subprocess.run([*hg, "push", "--quiet", f"{url}/{name}"], check=True)
    held = [shared_hg(), "--cwd", str(root / name), "log", "--rev", "tip", "--template", "{desc}"]
    assert subprocess.run(held, check=True, capture_output=True).stdout == b"large"


def test_a_mirror_takes_no_body_beyond_arguments(tmp_path: Path, root: Path) -> None:
    (root / "~vcsreplicator").mkdir()
    with serving(tmp_path, f"{ROLE}mirror\n{OPEN}") as url:
        push = f"{url}/open?cmd=unbundle"
        answers = [answer_to(push, f"Content-Length: {length}") for length in (ARGUMENTS, ARGUMENTS + 1)]
    assert answers == [b"", b"HTTP/1.1 413"]
    page = (CHECKOUT / "docs" / "serving.md").read_text()
    assert "| body of a request | 16 MiB (" in page
    assert "16 GiB for a push" in page


@pytest.mark.parametrize("role", ["mirror", "master"])
def test_what_a_server_refuses_of_a_client_is_no_alarm(tmp_path: Path, role: str) -> None:
    (tmp_path / "root" / ("~vcsreplicator" if role == "mirror" else "a")).mkdir(parents=True)
    hgrc = f"[extensions]\n*:required = yes\npushlog =\nvcsreplicator =\n[vcsreplicator]\nrole = {role}\n"
    with serving(tmp_path, hgrc) as url:
        places = {"a%00b": 400, "a%0Db": 400, "a%0Ab": 400, "a%01b": 404, "a%FFb": 404, "a%C2%85b": 404}
        answers = {place: int(answer_to(f"{url}/{place}", "Content-Length: 0")[-3:]) for place in places}
        assert answers == places
        assert answer_to(f"{url}/a%01b", f"Content-Length: {32 * 1024**3}") == b"HTTP/1.1 413"
    said = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line["level"] for line in said} <= {"info", "warning"}


@pytest.mark.parametrize("threads", ["0", "-1", "251"])
def test_a_number_of_threads_that_answers_no_request_is_refused(tmp_path: Path, threads: str) -> None:
    words = ["web", "--root", str(tmp_path), "--listen", "127.0.0.1:1", "--threads", threads]
    done = CliRunner().invoke(program, words)
    assert done.exit_code == 2
    assert "--threads" in done.output


@pytest.mark.parametrize(("name", "reason"), [("missing", "No such file or directory"), ("file", "Not a directory")])
def test_a_root_that_cannot_be_used_is_named_and_not_the_address(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "web", "--listen", f"127.0.0.1:{free_port()}"]
    words = [*command, "--root", str(tmp_path / name)]
    with warm_starts():
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 78
    assert json.loads(done.stderr)["reason"] == f"--root: {tmp_path / name}: cannot be used: {reason}"


@pytest.mark.parametrize(
    ("hgrc", "problem"),
    [
        ("", "no hgrc loads vcsreplicator"),
        (
            "[extensions]\n*:required = yes\npushlog =\nvcsreplicator =\n[vcsreplicator]\nrole = master\n",
            "its hgrc has role = master",
        ),
    ],
)
def test_the_folder_of_a_mirror_is_not_served_without_its_guards(tmp_path: Path, hgrc: str, problem: str) -> None:
    """Mercurial alone, or a master, shows what is not released yet."""
    (tmp_path / "root" / "~vcsreplicator").mkdir(parents=True)
    reason = refusal(tmp_path, hgrc)
    assert reason.startswith(f"--root: {tmp_path / 'root'} is a mirror's, and {problem}")


def test_the_folder_of_a_master_is_not_served_without_the_extension(tmp_path: Path) -> None:
    """Mercurial alone takes pushes that no mirror gets; so it does if it may not read the hgrc."""
    store = tmp_path / "root" / "group" / "a" / ".hg" / "store"
    store.mkdir(parents=True)
    (store.parent / "requires").write_text("store\n")
    Outbox(Folder(str(store))).append(Transaction(), following(before_first_event("a", 1), 1))
    reason = refusal(tmp_path, "")
    assert reason.startswith(
        f"--root: {tmp_path / 'root'} is a master's, and no hgrc loads vcsreplicator, so no mirror"
    )


@pytest.mark.parametrize(
    ("hgrc", "problem"),
    [
        ("[extensions]\n*:required = yes\nbroken = {folder}/broken.py\n", "No module named 'nothing_of_this_name'"),
        ("[extensions]\nmissing:required = yes\nmissing = {folder}/missing.py\n", "No such file or directory"),
        ("no section\n", "no section"),
    ],
    ids=["broken", "missing", "syntax"],
)
def test_an_hgrc_that_mercurial_cannot_use_is_one_line(tmp_path: Path, hgrc: str, problem: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    reason = refusal(tmp_path, hgrc.format(folder=tmp_path))
    assert reason.startswith("hgrc: ")
    assert problem in reason
    assert reason.endswith(": correct what HGRCPATH names")


def refusal(folder: Path, hgrc: str) -> str:
    """Why the folder `root` is not served with this hgrc."""
    (folder / "hgrc").write_text(hgrc)
    command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "web", "--listen", f"127.0.0.1:{free_port()}"]
    with warm_starts():
        done = subprocess.run(
            [*command, "--root", str(folder / "root")],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "HGRCPATH": str(folder / "hgrc")},
            check=False,
        )
    assert done.returncode == 78
    return str(json.loads(done.stderr)["reason"])
