# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients of a mirror, whose hgrc is that of `docs/by-hand.md`, do with what they get what clients of the master do.

A client takes all that it pulls from a publishing server for public, and its next push, even an empty one, makes that public on the
master: what others have as drafts can no longer be amended.
"""

import os
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.waiting import eventually

pytestmark = pytest.mark.processes

EVOLVING = """
[phases]
publish = no
[experimental]
evolution = all
"""
WAYS = ("http", "http --stream", "ssh", "ssh --stream", "path")


class Host:
    """A master that is not publishing, and a mirror of it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, [self.mirror] = cluster, cluster.about["mirrors"]
        self.mirror_hgrc = str(cluster.folder / "mirror.hgrc")
        self.ssh, self._clones = self.write_ssh("ssh", self.mirror_hgrc), 0

    def write_ssh(self, name: str, hgrc: str) -> Path:
        """Write a program that runs commands on the mirror, as ssh does, with this HGRCPATH there."""
        script = self.cluster.folder / name
        script.write_text(f'#!/bin/sh\nexport HGRCPATH={shlex.quote(hgrc)}\nshift\neval "$@"\n')
        script.chmod(0o755)
        return script

    def push(self, clone: Path, text: str) -> str:
        """Push a changeset, and wait until the mirror serves it."""
        node = self.cluster.commit(clone, text)
        self.cluster.push(clone, "-f")
        self.wait(node)
        return node

    def wait(self, node: str) -> None:
        """Wait until a message announces a changeset, which the mirror serves by then."""
        announced = lambda: any(node in line["data"].get("heads", ()) for line in self.cluster.lines())  # noqa: E731
        eventually(announced, f"{node} announced")

    def clone(self, name: str, way: str = "http") -> Path:
        """Clone a repository from the mirror."""
        self._clones += 1
        place, by_path = self.cluster.folder / f"clone {self._clones}", f"{self.mirror['root']}/{name}"
        how, *options = way.split()
        sources = {"http": self.mirror["url"] + name, "ssh": f"ssh://user@dummy/{by_path}", "path": by_path}
        environment = {"HGRCPATH": self.mirror_hgrc} if how == "path" else {}
        words = ("--config", f"ui.ssh={self.ssh}", "clone", "-q", "-U", *options, sources[how], place)
        self.cluster.hg(*words, **environment)
        return place

    def namespaces(self, name: str) -> bytes:
        """The kinds of keys that the mirror lists to clients."""
        with urllib.request.urlopen(
            f"{self.mirror['url']}{name}?cmd=listkeys&namespace=namespaces", timeout=60
        ) as answer:
            listed: bytes = answer.read()
        return listed

    def phases(self, repository: Path) -> dict[str, str]:
        """The phase of each changeset that is not hidden, by its text."""
        shown = self.cluster.hg(
            "-R", repository, "log", "-T", "{desc}\t{phase}\n", "--config", "experimental.evolution=all"
        )
        return dict(line.split("\t") for line in shown.splitlines())

    def master_phases(self, name: str) -> dict[str, str]:
        return self.phases(self.cluster.repository(name))


def configure(cluster: Cluster, text: str) -> None:
    """Have the master's hgrc say this as well."""
    hgrc = cluster.folder / "master.hgrc"
    hgrc.write_text(hgrc.read_text() + text)
    os.utime(hgrc)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    cluster = Cluster(tmp_path_factory.mktemp("drafts"), "--mirrors", "1")
    configure(cluster, EVOLVING)
    with cluster:
        yield Host(cluster)


@pytest.fixture(scope="module")
def drafts(host: Host) -> str:
    """A repository with two drafts of another developer."""
    clone = host.cluster.create("drafts")
    host.push(clone, "first")
    host.push(clone, "second")
    return "drafts"


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_push_from_a_mirrors_clone_makes_no_draft_public(host: Host, drafts: str, way: str) -> None:
    clone = host.clone(drafts, way)
    assert host.phases(clone) == {"first": "draft", "second": "draft"}
    pushed = host.cluster.hg("-R", clone, "push", host.cluster.master_url + drafts, check=False)
    assert "no changes found" in pushed
    assert host.master_phases(drafts) == {"first": "draft", "second": "draft"}


@pytest.mark.parametrize("form", ["zstd-v2", "none-v2;stream=v2"])
def test_a_clone_bundle_made_on_the_mirror_brings_drafts(host: Host, drafts: str, form: str) -> None:
    source = Path(host.mirror["root"]) / drafts
    bundle = source / ".hg" / "bundle-cache" / form.partition(";")[0]
    bundle.parent.mkdir(exist_ok=True)
    host.cluster.hg("-R", source, "bundle", "-q", "-a", "--type", form, bundle, HGRCPATH=host.mirror_hgrc)
    entry = f"peer-bundle-cache://{bundle.name} BUNDLESPEC={form.replace(';', '%3B')}\n"
    (source / ".hg" / "clonebundles.manifest").write_text(entry)
    offering = host.cluster.folder / "clonebundles.hgrc"
    offering.write_text("[extensions]\nclonebundles =\n")
    ssh, clone = host.write_ssh("ssh with bundles", f"{host.mirror_hgrc}:{offering}"), f"from {bundle.name}"
    words = ("--config", f"ui.ssh='{ssh}'", "clone", f"ssh://user@dummy/{source}", clone)
    assert "applying clone bundle" in host.cluster.hg(*words, HGRCPATH=os.devnull)
    assert host.phases(host.cluster.folder / clone) == {"first": "draft", "second": "draft"}


def test_a_client_hides_what_the_master_says_is_obsolete(host: Host) -> None:
    mine = host.cluster.create("markers")
    host.push(mine, "base")
    old = host.push(mine, "before")
    evolving = ("--config", "experimental.evolution=all")
    theirs = host.clone("markers")
    host.cluster.hg("-R", mine, *evolving, "commit", "-q", "--amend", "-m", "after")
    new = host.cluster.hg("-R", mine, "log", "-r", ".", "-T", "{node}")
    host.cluster.hg("-R", mine, *evolving, "push", "-q", "-f", host.cluster.master_url + "markers")
    host.wait(new)
    assert old != new
    host.cluster.hg("-R", theirs, *evolving, "pull", "-q")
    assert host.phases(theirs) == {"base": "draft", "after": "draft"}


def test_a_repository_follows_its_own_hgrc_on_the_master(host: Host, drafts: str) -> None:
    clone = host.cluster.create("own")
    (host.cluster.repository("own") / ".hg" / "hgrc").write_text(
        "[phases]\npublish = yes\n[experimental]\nevolution.exchange = no\n"
    )
    host.push(clone, "first")
    assert host.phases(host.clone("own")) == {"first": "public"}
    assert b"obsolete" not in host.namespaces("own")
    assert b"obsolete" in host.namespaces(drafts)


def test_each_release_has_the_setting_that_the_master_had_then(host: Host) -> None:
    clone = host.cluster.create("changing")
    host.push(clone, "first")
    assert host.phases(host.clone("changing")) == {"first": "draft"}
    hgrc = host.cluster.repository("changing") / ".hg" / "hgrc"
    hgrc.write_text("[phases]\npublish = yes\n")
    assert host.phases(host.clone("changing")) == {"first": "draft"}
    host.push(clone, "second")
    assert host.phases(host.clone("changing")) == {"first": "public", "second": "public"}
    hgrc.unlink()
    host.push(clone, "third")
    assert host.phases(host.clone("changing"))["third"] == "draft"


def test_a_healed_repository_has_the_setting_of_the_master(host: Host) -> None:
    clone = host.cluster.create("healed")
    host.push(clone, "first")
    place = Path(host.mirror["root"]) / "healed" / ".hg"
    before = place.stat().st_ino
    assert host.cluster.cli("heal", host.mirror["name"], "healed", "--yes").returncode == 0
    eventually(lambda: place.exists() and place.stat().st_ino != before, "healed")
    assert host.phases(host.clone("healed")) == {"first": "draft"}
    assert (place / "replicated-settings").read_text().split()[2:] == ["no", "yes"]
