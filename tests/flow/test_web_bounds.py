# SPDX-License-Identifier: GPL-2.0-or-later
"""The costliest requests of anonymous clients end within their budget, and other clients are answered meanwhile.

`docs/serving.md` has the bounds in a table.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from hgext.vcsreplicator.demo.ports import free_port
from testing.waiting import PATIENCE, eventually
from testing.warm import warm_starts
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

LINES, THREADS, SECONDS = 30_000, 2, 1
NODE = "a" * 40
# As long as a request may be.
LONG = 250_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with small budgets, and a repository with a file of many lines that all changed, and 30 changesets."""
    folder = tmp_path_factory.mktemp("bounds")
    (folder / "hgrc").write_text(
        "[extensions]\n*:required = yes\npushlog =\n[web]\nallow-archive = gz\n[ui]\nusername = a\n"
    )
    environment = {**os.environ, "HGRCPATH": str(folder / "hgrc")}
    repository = folder / "root" / "known"
    subprocess.run([shared_hg(), "init", str(repository)], check=True, env=environment)
    lines = [f"{number * 7919 % LINES}\n" for number in range(LINES)]
    for number in range(30):
        (repository / "file").write_text(f"{number}\n")
        (repository / "large").write_text("".join(lines if number < 29 else reversed(lines)))
        subprocess.run(
            [shared_hg(), "commit", "-q", "-A", "-m", f"{number}"], cwd=repository, check=True, env=environment
        )
    where = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "web", "--root", str(folder / "root")]
    limits = ["--threads", str(THREADS), "--seconds", str(SECONDS), "--memory", "512"]
    with warm_starts():
        server = subprocess.Popen([*command, "--listen", where, *limits], env=environment)
    with server:
        eventually(lambda: is_answering(f"http://{where}/known?style=raw"), "the server")
        yield f"http://{where}/known"
        server.terminate()


def get(url: str) -> int:
    try:
        with urlopen(url, timeout=PATIENCE) as answer:
            while answer.read(2**20):
                pass
            return int(answer.status)
    except HTTPError as refused:
        refused.close()
        return refused.code


def is_answering(url: str) -> bool:
    try:
        return get(url) == 200
    except OSError:
        return False


def repeat(text: str) -> str:
    """The text as often as a request may have it."""
    return text * (LONG // len(text))


REQUESTS = {
    "?cmd=batch&cmds=" + repeat("heads%20%3B").removesuffix("%3B"): 200,
    "?cmd=batch&cmds=" + repeat("branchmap%20%3B").removesuffix("%3B"): 200,
    "?cmd=known&nodes=" + repeat(f"{NODE}+").removesuffix("+"): 200,
    "?cmd=lookup&key=" + repeat("a"): 200,
    "?cmd=between&pairs=" + repeat(f"{NODE}-{'0' * 40}+").removesuffix("+"): None,
    "?cmd=branches&nodes=" + repeat(f"{NODE}+").removesuffix("+"): None,
    "?cmd=getbundle&common=" + repeat(f"{NODE}+").removesuffix("+"): 200,
    "?cmd=getbundle": 200,
    "?cmd=stream_out": 200,
    "?cmd=listkeys&namespace=obsolete": 200,
    "json-pushes?" + repeat(f"changeset={NODE}&"): 404,
    "json-pushes?" + repeat("changeset=tip&"): None,
    "json-pushes?startID=0&full=1": 200,
    "pushloghtml?startID=0&full=1": 200,
    "json-log?revcount=" + "9" * 1000: 200,
    "atom-log?revcount=" + "9" * 1000: 200,
    "graph?revcount=1000000&graphtop=tip": 200,
    "filelog/tip/large?revcount=1000000&patch=1": None,
    "annotate/tip/large": None,
    "comparison/tip/large": None,
    "comparison/tip/large?context=full": None,
    "diff/tip/large": None,
    "archive/tip.tar.gz": 200,
    "log?rev=" + repeat("("): 400,
    "log?rev=" + quote(repeat("a or ") + "a")[:LONG]: 400,
    "log?rev=" + repeat("tip%2B") + "tip": 400,
    "log?rev=" + repeat("word%20"): 400,
    "log?rev=" + "word%20" * 1000: 200,
    "log?rev=" + quote("desc(a) or " * 20 + "desc(a)"): 200,
    "rev/" + repeat("a"): 404,
    "file/tip/" + repeat("a/"): 503,
    "help/" + repeat("a"): 404,
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda text: text[:40])
def test_a_costly_request_ends_while_others_are_answered(url: str, request_: str) -> None:
    separator = "" if request_.startswith("?") else "/"
    with ThreadPoolExecutor(1) as pool:
        costly = pool.submit(get, f"{url}{separator}{request_}")
        assert get(f"{url}/json-pushes") == 200
        expected = REQUESTS[request_]
        status = costly.result()
    assert status == expected if expected else status in (200, 400, 404, 503)
