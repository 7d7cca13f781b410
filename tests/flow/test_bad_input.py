# SPDX-License-Identifier: GPL-2.0-or-later
"""Mistakes of users and operators: one clear line that names file, key and expected value; nothing is lost."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.waiting import eventually

pytestmark = pytest.mark.processes

EXIT_CONFIG = 78


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[Cluster]:
    """Set up, nothing running."""
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def edit(cluster: Cluster, old: str, new: str) -> None:
    """Replaces text in the services' file."""
    text = cluster.config.read_text()
    assert old in text
    cluster.config.write_text(text.replace(old, new))


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """What the command said, which must be one line and no traceback."""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.sample(2)
@pytest.mark.parametrize("verb", [("relay",), ("mirror", "alpha"), ("aggregator",), ("notifier",), ("status",)])
def test_an_unknown_scheme_of_the_log_is_named_by_every_service(prepared: Cluster, verb: tuple[str, ...]) -> None:
    edit(prepared, 'log = "sqlite:', 'log = "postgres:')
    done = prepared.cli(*verb)
    assert done.returncode == EXIT_CONFIG
    assert re.search(r"/vcsreplicator\.toml: log: expected sqlite:.*kafka:.*, got 'postgres:", one_line(done))


def test_a_missing_key_is_named_with_its_file_and_section(prepared: Cluster) -> None:
    edit(prepared, f'root = "{prepared.folder}/repos/alpha"\n', "")
    done = prepared.cli("mirror", "alpha")
    assert done.returncode == EXIT_CONFIG
    assert one_line(done) == f"vcsreplicator: {prepared.config}: mirror.alpha: key 'root' is missing"


def test_an_unknown_mirror_is_named_with_those_there_are(prepared: Cluster) -> None:
    done = prepared.cli("mirror", "gamma")
    assert done.returncode == EXIT_CONFIG
    assert one_line(done).endswith("section [mirror.gamma] is missing (there are: alpha, beta)")


def test_a_mirror_name_used_twice_in_the_file_is_refused(prepared: Cluster) -> None:
    with prepared.config.open("a") as file:
        file.write('\n[mirror.alpha]\nroot = "/elsewhere"\nmaster = "http://master/"\n')
    done = prepared.cli("mirror", "alpha")
    assert done.returncode == EXIT_CONFIG
    assert re.search(r"vcsreplicator\.toml: not TOML: .*alpha.*twice", one_line(done))


def test_a_mirror_name_used_twice_at_once_is_refused(prepared: Cluster) -> None:
    prepared.start("mirror-alpha")
    done = prepared.cli("mirror", "alpha")
    assert done.returncode == 1, "a port in use may be free at the next attempt"
    assert "cannot be used: Address already in use" in done.stderr
    assert "alpha" in done.stderr
    assert "Traceback" not in done.stderr
    assert prepared.running("mirror-alpha")


def test_a_push_to_a_repository_outside_the_roots_is_refused(prepared: Cluster, tmp_path: Path) -> None:
    outside, clone = tmp_path / "outside", tmp_path / "clone"
    prepared.hg("init", outside)
    prepared.hg("clone", "-q", outside, clone)
    prepared.commit(clone, "x")
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$1"\n')
    ssh.chmod(0o755)
    url = f"ssh://user@host/{outside}"
    done = prepared.hg("--cwd", clone, "push", url, "--config", f"ui.ssh={ssh}", on_master=True, check=False)
    assert "repository path not configured for replication" in done
    assert "[vcsreplicator-roots]" in done
    assert prepared.hg("-R", outside, "log", "-T", "x") == ""


def test_a_log_that_does_not_answer_loses_no_push(prepared: Cluster) -> None:
    edit(prepared, prepared.log_url, "kafka://127.0.0.1:1")
    status = prepared.cli("status")
    assert status.returncode == 2
    assert "127.0.0.1:1" in one_line(status)
    good = prepared.config.read_text().replace("kafka://127.0.0.1:1", prepared.log_url)
    prepared.start("web-master")
    clone = prepared.create("red")
    prepared.commit(clone, "x")
    output = prepared.push(clone, "--config", "ui.timeout=60")
    assert "added 1 changesets" in output
    prepared.config.write_text(good)
    prepared.start(*(role for role in prepared.roles if role != "web-master"))
    eventually(lambda: len(prepared.lines()) == 2, what="the notices of what was pushed meanwhile")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("[listen]", "[health]\nbehnd = 3\n\n[listen]", "health: unknown key 'behnd'"),
        (
            "[listen]",
            '[listen]\nmirrr-alpha = "127.0.0.1:1"',
            "listen.mirrr-alpha: unknown, expected one of mirror-alpha, ",
        ),
        ('blobs = "file://', 'blobs = "ftp://', "blobs: expected "),
    ],
)
def test_config_check_reads_every_section(prepared: Cluster, old: str, new: str, complaint: str) -> None:
    edit(prepared, old, new)
    done = prepared.cli("config", "check")
    assert done.returncode == EXIT_CONFIG
    assert complaint in one_line(done)


def test_config_check_does_not_call_a_log_that_is_away_an_answer(prepared: Cluster) -> None:
    edit(prepared, prepared.log_url, "kafka://127.0.0.1:1")
    done = prepared.cli("config", "check")
    assert done.returncode == 2
    assert "the log answers" not in done.stdout
