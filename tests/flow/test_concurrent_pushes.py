# SPDX-License-Identifier: GPL-2.0-or-later
"""Many push at once, also to the same repositories, through several `hg serve` processes of one master."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Barrier

import pytest

from hgext.vcsreplicator.log import EVENTS
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.wire import decode
from testing.builders.cluster import Cluster
from testing.builders.developer import Developer
from testing.builders.load import developer_environment
from testing.checks import agreement, checker
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

# Pushes to a repository, each through another server.
SERVERS = 4


# `hg serve` lets five connections wait for it; on a loaded machine the kernel refuses the sixth of many developers.
WAITING = """
from mercurial.hgweb import server

def extsetup(ui):
    server.MercurialHTTPServer.request_queue_size = 256
"""


@contextmanager
def serving(cluster: Cluster) -> Iterator[str]:
    """A `hg serve` process with all of the master's repositories; its URL.

    Its threads import lazily and see half-made modules then: a server of many switches that off.
    """
    settings = cluster.folder / "serve.conf"
    settings.write_text(f"[paths]\n/ = {cluster.master_root}/*\n")
    waiting = cluster.folder / "serve_many.py"
    waiting.write_text(WAITING)
    output = (cluster.folder / "output/hg-serve.log").open("ab")
    environment = {**cluster.about["master"]["env"], "HGDEMANDIMPORT": "disable"}
    process = subprocess.Popen(
        [
            shared_hg(environment),
            "serve",
            "--config",
            f"extensions.serve_many={waiting}",
            "--web-conf",
            str(settings),
            "-a",
            "127.0.0.1",
            "-p",
            "0",
            "--accesslog",
            os.devnull,  # not the pipe, of which only the first line is read
        ],
        env=environment,
        cwd=cluster.folder,
        stdout=subprocess.PIPE,
        stderr=output,
    )
    assert process.stdout is not None
    try:
        told = process.stdout.readline().decode()  # listening at http://127.0.0.1:PORT/ (bound to …)
        yield told.split()[2]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        output.close()


def develop(folder: Path, environment: dict[str, str], places: list[tuple[str, str]], begin: Barrier) -> list[str]:
    """One developer, who makes a changeset for each of some repositories and pushes them one after the other; what hg printed."""
    folder.mkdir(parents=True)
    with Developer(folder, environment) as developer:
        for name, _ in places:
            clone = folder / name
            code, output = developer.hg("init", clone)
            assert code == 0, output
            (clone / "file").write_text(f"{folder.name} for {name}\n")
            code, output = developer.hg("--cwd", clone, "commit", "-A", "-m", f"{folder.name} for {name}")
            assert code == 0, output
        begin.wait(600)  # two hundred who make a changeset each take minutes on a loaded machine
        return [developer.hg("-R", folder / name, "push", "-f", url)[1] for name, url in places]


def push_at_once(folder: Path, repositories: int, developers: int) -> None:
    """Four pushes to each repository by so many developers at once; each must be recorded, told, and on every mirror."""
    pushes = SERVERS * repositories
    with ExitStack() as stack:
        url = f"sqlite:///{str(folder / 'log.db').lstrip('/')}"
        log = stack.enter_context(open_log(url, creates=True))
        log.create(checker.remembering_topics())
        cluster = stack.enter_context(Cluster(folder, "--log", url))
        names = [f"repository-{number}" for number in range(repositories)]
        with Developer(folder, cluster.about["master"]["env"]) as administrator:
            for name in names:
                assert administrator.hg("init", cluster.repository(name))[0] == 0
        servers = [stack.enter_context(serving(cluster)) for _ in range(SERVERS)]
        places = [
            (names[push % repositories], servers[push // repositories] + names[push % repositories])
            for push in range(pushes)
        ]
        begin, environment = Barrier(developers), developer_environment(cluster)
        each_one = pushes // developers
        with ThreadPoolExecutor(developers) as pool:
            work = [
                pool.submit(
                    develop,
                    folder / "work" / str(number),
                    environment,
                    places[number * each_one : (number + 1) * each_one],
                    begin,
                )
                for number in range(developers)
            ]
            outputs = [output for each in work for output in each.result()]
        assert len(outputs) == pushes
        refused = [output for output in outputs if "recorded push in pushlog" not in output]
        assert not refused, refused[0]
        agreement.settle(cluster, log, names, timeout=240)

        order: dict[str, list[int]] = {}
        ids = []
        for record in checker.everything(log, (EVENTS,)):
            event = decode(record.value or b"").header.event
            if event is not None:
                order.setdefault(event.path, []).append(event.seq)
                ids.append(event.id)
        assert order == {name: list(range(1, SERVERS + 2)) for name in names}
        assert len(ids) == len(set(ids))
        report = checker.check(checker.history(log))
        assert not report.violations, report.violations[:5]
        assert report.notices == pushes + repositories
        with agreement.Examiner(cluster) as examiner:
            for name in names[:5]:
                assert not examiner.disagreements(name) + examiner.damages(name)


@pytest.mark.timeout(900)
def test_twelve_pushes_to_three_repositories_by_six_at_once(tmp_path: Path) -> None:
    push_at_once(tmp_path, 3, 6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("at_once", [25, 200])
def test_two_hundred_pushes_to_fifty_repositories_at_once(tmp_path: Path, at_once: int) -> None:
    push_at_once(tmp_path, 50, at_once)
