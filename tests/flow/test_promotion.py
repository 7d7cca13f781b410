# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror takes the place of a master that is lost or hands over: every repository goes on, and consumers see no gap."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli import handover, promote
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror.jobs import promotion
from hgext.vcsreplicator.mirror.supervision import boot
from hgext.vcsreplicator.status.follower import read_picture
from hgext.vcsreplicator.words.event import Event
from testing.builders.cluster import Cluster
from testing.builders.master.pushing import events
from testing.waiting import eventually

pytestmark = pytest.mark.processes

NAMES = ("one", "two", "three")


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, unique_name: str, tmp_path: Path) -> Iterator[Cluster]:
    """A whole installation, on each log."""
    options = []
    if request.param == "kafka":
        options = ["--log", f"{request.getfixturevalue('kafka').url}?topic-prefix={unique_name}-"]
    with Cluster(tmp_path, *options) as cluster:
        yield cluster


def run(cluster: Cluster, *options: str) -> Result:
    """`vcsreplicator promote alpha` in this process."""
    return CliRunner().invoke(promote.command, ["alpha", *options, "--config", str(cluster.config)])


def promote_interrupted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """The same, interrupted before each step, and then twice."""
    for step in ("_continue_all", "_leave_roster", "_put_away"):
        with monkeypatch.context() as patched:
            patched.setattr(promote, step, interrupt)
            assert isinstance(run(cluster, "--yes", *options).exception, Interrupted)
    for _ in range(2):
        done = run(cluster, "--yes", *options)
        assert (done.exit_code, done.exception) == (0, None), done.output


class Interrupted(Exception):
    """The end of the command before a step."""


def interrupt(*_arguments: object) -> None:
    raise Interrupted


def read_events(cluster: Cluster) -> dict[str, list[Event]]:
    """The events of the log by path, each chain proven unbroken."""
    with open_log(cluster.log_url) as log:
        return events(log)


def test_pushes_go_on_after_a_mirror_became_the_master(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "SILENT", 0.0)
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
    cluster.move_master(root := tmp_path / "repos" / "alpha")
    assert "the mirror has not applied 1 record of the log; start it" in str(run(cluster, "--yes").exception)
    cluster.start("mirror-alpha")
    eventually(lambda: len(cluster.lines()) >= 7, "creations and pushes")
    cluster.stop("mirror-alpha")
    checked = run(cluster, "--check")
    assert (checked.exit_code, checked.exception) == (0, None), checked.output
    assert not (root / ".vcsreplicator").exists()
    promote_interrupted(cluster, monkeypatch)
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


def serves_all(cluster: Cluster) -> bool:
    """Whether alpha serves all that the log has."""
    with open_log(cluster.log_url) as log:
        picture = read_picture(log)
    lags = [picture.measure_lag("alpha", state) for state in picture.states.values()]
    return not any(lag.unapplied or lag.unserved for lag in lags) and len(lags) == len(NAMES)


def describe(cluster: Cluster, folder: Path) -> str:
    """What a repository holds, for its administrator."""
    words = ("log", "--hidden", "-T", "{rev} {node} {phase} {bookmarks} {obsolete}\\n"), ("debugobsolete",)
    return "".join(cluster.hg("-R", folder, *each, on_master=True) for each in words)


def test_a_mirror_takes_over_all_that_a_living_master_hands_over(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clones = {name: cluster.create(name) for name in NAMES}
    for clone in clones.values():
        cluster.commit(clone, "first")
        cluster.push(clone)
    old, new = cluster.repository("one"), (root := tmp_path / "repos" / "alpha") / "one"
    hidden = cluster.commit(clones["one"], "hidden")
    cluster.hg("--cwd", clones["one"], "update", "-q", "0")
    secret = cluster.commit(clones["one"], "secret")
    cluster.push(clones["one"], "--force")
    for words in (
        ("phase", "--force", "--secret", secret),
        ("phase", "--force", "--draft", hidden),
        ("debugobsolete", hidden, "--config", "experimental.evolution=all"),
        ("bookmark", "-r", "0", "here"),
    ):
        cluster.hg("-R", old, *words, on_master=True)
    (old / ".hg" / "hgrc").write_text("[hooks]\nx.y = true\n")
    (old / ".hg" / "hgrc").chmod(0o640)
    file = str(tmp_path / "handed")
    options = ["--output", file, "--config", str(cluster.config)]
    CliRunner().invoke(handover.command, options, catch_exceptions=False, standalone_mode=False)
    eventually(lambda: serves_all(cluster), "the mirror")
    before, was = read_events(cluster), describe(cluster, old)
    cluster.stop("mirror-alpha", "web-alpha")
    cluster.move_master(root)
    assert "the relay of hg://master.example reported" in str(run(cluster, "--yes", "--handover", file).exception)
    cluster.stop("relay", "web-master")
    monkeypatch.setattr(promotion, "SILENT", 0.0)
    other = tmp_path / "other"
    other.write_text(Path(file).read_text().replace('"phases":"', '"phases":"0', 1))
    assert ": phases; start the mirror" in str(run(cluster, "--yes", "--handover", str(other)).exception)
    promote_interrupted(cluster, monkeypatch, "--handover", file)
    assert describe(cluster, new) == was
    assert (new / ".hg" / "hgrc").read_text() == "[hooks]\nx.y = true\n"
    assert (new / ".hg" / "hgrc").stat().st_mode & 0o777 == 0o640, "it may have passwords"
    cluster.start("relay", "web-master")
    for clone in clones.values():
        cluster.commit(clone, "second")
        assert "recorded push in replication log" in cluster.push(clone, "-f")
    for name, chain in read_events(cluster).items():
        assert chain[:-1] == before[name]
