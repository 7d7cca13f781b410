# SPDX-License-Identifier: GPL-2.0-or-later
"""What provokes the entries about services of another release than the others, and what shows that an upgrade repaired it.

The other release is the present one with a few of its lines changed before the start.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from testing.waiting import eventually

from .page import Entry, OnCall
from .provoking import provokes, rows

# A release that knows no event of today's version.
KNOWS_NO_EVENT = "from hgext.vcsreplicator.words import wire\nwire.VERSION = 0"
# A release whose acks have no `floor`.
HAS_NO_FLOOR = "from hgext.vcsreplicator.mirror.supervision import supervisor\nsupervisor.MIRROR_FORMAT = 1"
# A release with a bug in what it decides about one repository.
HAS_A_BUG = """
from hgext.vcsreplicator.aggregator.decisions.repository import Repository
right = Repository.announced
def announced(self, *given, **named):
    if self.path == {name!r}:
        raise ZeroDivisionError("a bug")
    return right(self, *given, **named)
Repository.announced = announced
"""
# A release whose topic `notices` takes nothing about one repository: the log of one machine has no such limit.
HAS_A_SMALL_TOPIC = """
from hgext.vcsreplicator.log.sqlite.transactor import SqliteTransactor
from hgext.vcsreplicator.log import LargeRecord, TooLarge
from hgext.vcsreplicator.log import LARGEST
right = SqliteTransactor.commit
def commit(self, messages, **named):
    for each in messages:
        if each.topic == "notices" and b'"path":"{name}"' in each.value:
            raise TooLarge((LargeRecord(topic="notices", key=each.key, size=len(each.value), limit=LARGEST),))
    return right(self, messages, **named)
SqliteTransactor.commit = commit
"""
# A release for which no broker leads a partition of `events`, and a second is long: the log of one machine has no such partition.
HAS_NO_LEADER = """
from hgext.vcsreplicator.aggregator.completeness import Completeness
from hgext.vcsreplicator.log.sqlite.adapter import SqliteLog
from hgext.vcsreplicator.words.errors import Unavailable
right, find_failure = SqliteLog.ends, Completeness.find_failure
def ends(self, topic, partitions=None):
    if topic == "events" and (partitions is None or 0 in partitions):
        raise Unavailable("no broker leads events, partition 0")
    return right(self, topic, partitions)
SqliteLog.ends = ends
Completeness.find_failure = lambda self, patience: find_failure(self, 1.0)
"""


@contextmanager
def other_release(on_call: OnCall, role: str, changed: str) -> Iterator[None]:
    """Run the service as another release during the block; then the present one, as after an upgrade."""
    cluster = on_call.cluster
    script = cluster.folder / f"other-{role}.py"
    script.write_text(f"{changed}\nfrom hgext.vcsreplicator.cli import main\nmain()\n")
    service = cluster.about["services"][role]
    present = service["argv"]
    service["argv"] = [sys.executable, "-P", str(script), *present[present.index("hgext.vcsreplicator.cli") + 1 :]]
    if cluster.running(role):
        cluster.stop(role)
    cluster.start(role)
    try:
        yield
    finally:
        service["argv"] = present
        cluster.stop(role)
        cluster.start(role)


def said_by_check(on_call: OnCall, words: str) -> str:
    """What `vcsreplicator check` prints once it has these words."""
    return eventually(lambda: words in (text := on_call.cluster.cli("check").stdout) and text, words, every=0.5)


def is_well(on_call: OnCall) -> bool:
    return on_call.cluster.cli("check").returncode == 0


@provokes("alarm events of a newer version")
def newer_events(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    with other_release(on_call, "aggregator", KNOWS_NO_EVENT):
        on_call.push(name)
        said_by_check(on_call, "events of a newer version: 1 held, 1 repository")
    on_call.wait_announced(name)
    eventually(lambda: is_well(on_call), "all is well", every=0.5)


@provokes("alarm events not read")
def events_not_read(on_call: OnCall, entry: Entry) -> None:
    with other_release(on_call, "aggregator", HAS_NO_LEADER):
        said_by_check(
            on_call, "events not read: no broker leads events, partition 0; notices of their repositories wait"
        )
    eventually(lambda: is_well(on_call), "all is well", every=0.5)


@provokes("alarm decisions failed")
def decisions_failed(on_call: OnCall, entry: Entry) -> None:
    name, other = on_call.repository(), on_call.repository()
    with other_release(on_call, "aggregator", HAS_A_BUG.format(name=name)):
        on_call.push(name)
        said_by_check(on_call, "decisions failed: 1 held, 1 repository")
        assert "ZeroDivisionError" in on_call.cluster.output("aggregator")
        on_call.push(other)
        on_call.wait_announced(other)
    on_call.wait_announced(name)
    eventually(lambda: is_well(on_call), "all is well", every=0.5)


@provokes("alarm message too large")
def message_too_large(on_call: OnCall, entry: Entry) -> None:
    name, other = on_call.repository(), on_call.repository()
    with other_release(on_call, "aggregator", HAS_A_SMALL_TOPIC.format(name=name)):
        on_call.push(name)
        said_by_check(on_call, f"message too large: {name} waits, for topic notices refuses a message of ")
        entry.type("vcsreplicator topics check")
        on_call.push(other)
        on_call.wait_announced(other)
    on_call.wait_announced(name)
    eventually(lambda: is_well(on_call), "all is well", every=0.5)


@provokes("alarm successor waits")
def successor_waits(on_call: OnCall, entry: Entry) -> None:
    cluster, name = on_call.cluster, on_call.repository()
    for mirror in ("alpha", "beta"):
        assert cluster.cli("roster", "deactivate", mirror, "--repository", name, "--yes").returncode == 0
    on_call.push(name)
    cluster.hg("-R", cluster.repository(name), "replicatedelete", "--yes", on_master=True)
    (cluster.folder / "work" / name).rename(cluster.folder / "work" / f"former-{name}")
    cluster.create(name)
    alarm = said_by_check(on_call, f"successor waits: {name} ")
    [command] = re.findall(r"`vcsreplicator (roster activate MIRROR --repository [^`]+)`", alarm)
    for mirror in ("alpha", "beta"):
        done = cluster.cli(*shlex.split(command.replace("MIRROR", mirror)))
        assert done.returncode == 0, done.stderr
    on_call.push(name)
    on_call.wait_announced(name)
    eventually(lambda: is_well(on_call), "all is well", every=0.5)


@provokes("alarm mirror of an older release")
def older_mirror(on_call: OnCall, entry: Entry) -> None:
    with other_release(on_call, "mirror-beta", HAS_NO_FLOOR):
        said_by_check(on_call, "mirror of an older release beta: it does not say from which event on it can serve")
    eventually(lambda: is_well(on_call), "all is well", every=0.5)


@provokes("reason unknown-version")
def unknown_version(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    with other_release(on_call, "mirror-beta", KNOWS_NO_EVENT):
        on_call.push(name)
        eventually(lambda: "unknown-version" in rows(on_call, "status"), "status says so", every=0.5)
    on_call.wait_announced(name)
    eventually(lambda: is_well(on_call), "all is well", every=0.5)
