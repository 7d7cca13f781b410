# SPDX-License-Identifier: GPL-2.0-or-later
"""Make the folder of a former release for `tests/flow/test_former.py`, with that release:

    git worktree add ../former COMMIT && cd ../former && make venv
    PYTHONPATH=. .venv/bin/python ../vcsreplicator/tests/flow/former/make.py ../vcsreplicator/tests/flow/former/installation.tar.gz

A cluster of two mirrors on the embedded log, stopped in the middle of its work: everything is announced but the last push that both
mirrors lack, the last that one of them lacks, and the last that the relay has not sent.
"""

import sys
import tarfile
import tempfile
from pathlib import Path

from testing.cluster import Cluster

from testing.waiting import eventually

# What the present release rewrites when it prepares the folder, and what no release reads again.
LEFT_OUT = ("work", "output", "run", "ready.json", "vcsreplicator.toml", "cache", "wcache")


def fill(cluster: Cluster) -> None:
    """Push, and stop the services one after the other in between."""
    clones = {name: cluster.create(name) for name in ("one", "group/two")}
    for number in range(3):
        for clone in clones.values():
            cluster.commit(clone, f"announced {number}")
            cluster.push(clone)
    cluster.hg("--cwd", clones["one"], "bookmark", "feature")
    cluster.hg("--cwd", clones["one"], "push", "-B", "feature", check=False)  # exit code 1: no changesets
    wait_until_announced(cluster, {"one": 4, "group/two": 4})
    cluster.stop("mirror-beta")
    push(cluster, clones["one"], "held by one mirror")
    eventually(lambda: applied(cluster, "alpha", "held by one mirror", "one"), "applied by alpha", timeout=120)
    cluster.stop("mirror-alpha", "aggregator")
    push(cluster, clones["group/two"], "in the log only")
    cluster.stop("relay")
    push(cluster, clones["one"], "in the outbox only")
    cluster.stop(*(role for role in cluster.roles if cluster.running(role)))


def push(cluster: Cluster, clone: Path, text: str) -> None:
    cluster.commit(clone, text)
    cluster.push(clone)


def wait_until_announced(cluster: Cluster, wanted: dict[str, int]) -> None:
    """Return once the newest message of each repository has this sequence."""

    def newest() -> dict[str, int]:
        return {
            line["data"]["repo_url"].removeprefix("https://hg.example/"): line["sequence"] for line in cluster.lines()
        }

    eventually(lambda: newest() == wanted, f"announced: {wanted}, of which {newest()}", timeout=120)


def applied(cluster: Cluster, mirror: str, text: str, name: str) -> bool:
    """Whether the changeset is on the mirror's disk."""
    repository = cluster.folder / "repos" / mirror / name
    return text in cluster.hg("-R", repository, "log", "-T", "{desc}\\n", on_master=True, check=False)


def pack(folder: Path, archive: Path) -> None:
    """Write the folder's files with names below it, but those left out."""

    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        is_kept = not set(LEFT_OUT) & set(Path(member.name).parts) and (member.isfile() or member.isdir())
        return member if is_kept else None

    with tarfile.open(archive, "w:gz", compresslevel=9) as packed:
        packed.add(folder, ".", filter=keep)


def main(archive: Path) -> None:
    """Make the archive."""
    with tempfile.TemporaryDirectory() as folder:
        with Cluster(Path(folder)) as cluster:
            fill(cluster)
        pack(Path(folder), archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
