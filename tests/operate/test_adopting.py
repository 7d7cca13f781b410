# SPDX-License-Identifier: GPL-2.0-or-later
"""A staging master beside another host, by the commands of the page about adopting."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.waiting import eventually

from .page import Entry, operation

pytestmark = [pytest.mark.processes, pytest.mark.slow]

HGRC = "[extensions]\n*:required = yes\npushlog =\n[web]\nallow-push = *\npush_ssl = no\n"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A server with a pushlog and without replication: its repository, and its URL."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "hgrc").write_text(HGRC)
    hg = str(Path(sys.executable).with_name("hg"))
    environment = {
        "PATH": "/usr/bin:/bin",
        "HGRCPATH": str(folder / "hgrc"),
        "USER": "erin@example.com",
        "HGPLAIN": "1",
    }
    subprocess.run([hg, "init", str(folder / "red")], env=environment, check=True)
    words = ["serve", "-R", str(folder / "red"), "--port", "0", "--address", "127.0.0.1", "--print-url"]
    with subprocess.Popen(
        [hg, *words, "--accesslog", "/dev/null"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield folder / "red", server.stdout.readline().strip()
        server.kill()


def test_a_staging_master_is_filled_and_follows_the_host_there(host: tuple[Path, str], tmp_path: Path) -> None:
    _, url = host
    with Cluster(tmp_path) as cluster:
        page = Entry(cluster, "Side by side", operation("Side by side, until the switch, and back", "adopt"))
        clone = tmp_path / "clone"
        cluster.hg("clone", "-q", url, clone)
        cluster.commit(clone, "first")
        cluster.push(clone)
        place = cluster.repository("red")
        page.do(
            "hg clone --noupdate --config extensions.vcsreplicator=! THEIR-URL FOLDER",
            **{"THEIR-URL": url, "FOLDER": place},
        )
        page.do("hg -R FOLDER replicatesync", FOLDER=place)
        heads = [cluster.commit(clone, text) for text in ("second", "third")]
        cluster.push(clone, "-r", heads[0])
        cluster.push(clone)
        page.do(
            "hg -R FOLDER pull --config extensions.vcsreplicator=! THEIR-URL", **{"THEIR-URL": url, "FOLDER": place}
        )
        page.do("hg -R FOLDER replicatesync", FOLDER=place)
        lines = eventually(lambda: [line for line in cluster.lines() if heads[1] in line["data"].get("heads", ())])
        [push] = lines[0]["data"]["pushlog_pushes"]
        assert (push["pushid"], push["user"]) == (3, "erin@example.com")
        eventually(lambda: page.type("vcsreplicator verify").code == 0, "all are equal", every=1)
        for role in ("master", "alpha", "beta"):
            folder = tmp_path / "repos" / role / "red"
            logged = cluster.hg("-R", folder, "log", "-T", "{pushid} {pushuser}\n", on_master=True)
            assert logged.splitlines() == [f"{number} erin@example.com" for number in (3, 2, 1)], role
        assert not page.untyped
