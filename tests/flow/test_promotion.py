# SPDX-License-Identifier: GPL-2.0-or-later
"""The master is lost, and a mirror becomes the master: every repository goes on, and consumers see no gap."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli import promote
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror.jobs import promotion
from hgext.vcsreplicator.mirror.supervision import boot
from hgext.vcsreplicator.words.event import Event
from testing.builders.cluster import Cluster
from testing.builders.master.pushing import events
from testing.waiting import eventually

pytestmark = pytest.mark.processes

NAMES = ("one", "two", "three")


def configure(cluster: Cluster, root: Path) -> None:
    """Files and services as an operator writes them for the new master, at the addresses of the old one."""
    for file in (cluster.config, cluster.folder / "master.hgrc"):
        file.write_text(
            file.read_text()
            .replace(f'"{cluster.master_root}" = ""', f'"{root}" = ""')
            .replace(f"{cluster.master_root} = .", f"{root} = .")
            .replace("hg://master.example", "hg://alpha.example")
        )
    argv = cluster.about["services"]["web-master"]["argv"]
    argv[argv.index(str(cluster.master_root))] = str(root)


def run(cluster: Cluster, *options: str) -> Result:
    """`vcsreplicator promote alpha` in this process."""
    return CliRunner().invoke(promote.command, ["alpha", *options, "--config", str(cluster.config)])


class Interrupted(Exception):
    """The end of the command before a step."""


def interrupt(*_arguments: object) -> None:
    raise Interrupted


def read_events(cluster: Cluster) -> dict[str, list[Event]]:
    """The events of the log by path, each chain proven unbroken."""
    with open_log(cluster.log_url) as log:
        return events(log)


def test_pushes_go_on_after_a_mirror_became_the_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "SILENT", 0.0)
    with Cluster(tmp_path) as cluster:
        clones = {name: cluster.create(name) for name in NAMES}
        for clone in clones.values():
            cluster.commit(clone, "first")
            cluster.push(clone)
        cluster.stop("mirror-alpha", "web-alpha")
        cluster.commit(clones["one"], "late")
        cluster.push(clones["one"])
        before = read_events(cluster)
        cluster.kill("relay", "web-master")
        shutil.rmtree(cluster.master_root)
        configure(cluster, root := tmp_path / "repos" / "alpha")
        assert "1 records of the log are not applied; start the mirror" in str(run(cluster, "--yes").exception)
        cluster.start("mirror-alpha")
        eventually(lambda: len(cluster.lines()) >= 7, "creations and pushes")
        cluster.stop("mirror-alpha")
        checked = run(cluster, "--check")
        assert (checked.exit_code, checked.exception) == (0, None), checked.output
        assert not (root / ".vcsreplicator").exists()
        for step in ("_continue_all", "_leave_roster", "_put_away"):  # each interrupted once
            with monkeypatch.context() as patched:
                patched.setattr(promote, step, interrupt)
                assert isinstance(run(cluster, "--yes").exception, Interrupted)
        for _ in range(2):
            done = run(cluster, "--yes")
            assert (done.exit_code, done.exception) == (0, None), done.output
        assert not (root / boot.FILE).exists(), "after a restart of the machine it would refuse the master's lists"
        cluster.start("relay", "web-master")
        for clone in clones.values():
            cluster.commit(clone, "second")
            assert "recorded push in replication log" in cluster.push(clone)
        eventually(lambda: len(cluster.lines()) >= 10, "the next pushes")
        after = read_events(cluster)
        for name in NAMES:
            *known, pushed = after[name]
            assert known == before[name]
            assert pushed.changes.push is not None
            assert (pushed.seq, pushed.changes.push.id) == (len(known) + 1, len(known))
            shown = cluster.hg("-R", tmp_path / "repos" / "beta" / name, "log", "-T", "{desc} ")
            assert shown == ("second late first " if name == "one" else "second first ")
        assert "is a master's root" in cluster.cli("mirror", "alpha").stderr
        assert len(cluster.lines()) == 10
