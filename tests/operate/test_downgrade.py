# SPDX-License-Identifier: GPL-2.0-or-later
"""Back to an older release and forward again, in the order of the pages, while pushes go on.

The older release is taken out of the history of this repository.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.checks.lines import told_in_order
from testing.services.cache import CHECKOUT
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.slow]

# A state of two days before today's: the modules are where they are now.
OLDER = "49640f0"
# Which services change together, in the order of docs/operating.md; docs/install.md has the other way.
ORDER = (
    ("relay", "web-master"),
    ("aggregator",),
    ("mirror-alpha", "web-alpha"),
    ("mirror-beta", "web-beta"),
    ("notifier",),
)


@pytest.fixture
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the older release."""
    folder = tmp_path_factory.mktemp("older")
    words = ["git", "archive", OLDER, "hgext", "pushlog", "notifier", "hooks"]
    packed = subprocess.run(words, cwd=CHECKOUT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "--no-same-owner", "-x", "-C", folder], input=packed, check=True)
    return folder


class Installation:
    """A cluster whose services change their release one after the other, each change followed by a push."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.pushed = cluster, 0
        self.clone = cluster.create("red")
        self.push()

    def install(self, roles: tuple[str, ...], release: Path | None) -> None:
        """Stop these services, install a release for them (None: the present one), start them."""
        about = self.cluster.about
        environments = [about["services"][role]["env"] for role in roles]
        if "relay" in roles:  # the extensions of the master
            environments.append(about["master"]["env"])
        self.cluster.stop(*roles)
        for environment in environments:
            environment.pop("PYTHONPATH", None)
            if release is not None:
                environment["PYTHONPATH"] = str(release)
        self.cluster.start(*roles)

    def push(self) -> None:
        self.pushed += 1
        head = self.cluster.commit(self.clone, f"push {self.pushed}")
        self.cluster.push(self.clone)
        eventually(lambda: head in self.announced(), f"the notice of push {self.pushed}", timeout=120)

    def announced(self) -> set[str]:
        return {head for line in self.cluster.lines() for head in line["data"].get("heads", ())}

    def modules(self) -> set[str]:
        """Where Python finds our modules in the environment of each running service."""
        found = set()
        for role in self.cluster.roles:
            lines = Path(f"/proc/{self.cluster.pid(role)}/environ").read_text().split("\0")
            environment = dict(line.split("=", 1) for line in lines if "=" in line)
            words = [sys.executable, "-P", "-c", "import hgext.vcsreplicator as ours; print(ours.__file__)"]
            found.add(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip())
        return found

    def extensions(self) -> str:
        """Where the master's Mercurial has its extensions."""
        return self.cluster.hg("debugextensions", "-T", "{source}\n", on_master=True)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with Cluster(tmp_path, warm=False) as cluster:
        yield Installation(cluster)


def test_services_go_back_a_release_and_forward_again_while_pushes_go_on(
    installation: Installation, older: Path
) -> None:
    cluster = installation.cluster
    for roles in ORDER:
        installation.install(roles, older)
        installation.push()
    assert installation.modules() == {str(older / "hgext/vcsreplicator/__init__.py")}
    assert installation.extensions().count(str(older)) == 2
    for roles in reversed(ORDER):
        installation.install(roles, None)
        installation.push()
    assert installation.modules() == {str(CHECKOUT / "hgext/vcsreplicator/__init__.py")}
    assert told_in_order(cluster.lines()) == ([], 0)
    eventually(lambda: cluster.cli("verify").returncode == 0, "all are equal", every=1)
    eventually(lambda: cluster.cli("check").returncode == 0, "all is well", every=1)
