# SPDX-License-Identifier: GPL-2.0-or-later
"""What provokes each entry of the runbook that one cluster can provoke, and what shows that its words repaired it.

Every function leaves the installation as healthy as it found it, and uses a repository of its own.
"""

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from mercurial import lock

from hgext.vcsreplicator.log import EVENTS, SERVICES, NewRecord
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_records
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.records import VERIFY_KEY
from testing.builders.notifier.endpoint import Reply
from testing.waiting import eventually
from testing.warm import is_stem
from tests.flow.test_log_loss import prune

from .page import Entry, OnCall

Provocation = Callable[[OnCall, Entry], None]
# Entry of the runbook → what provokes it.
PROVOCATIONS: dict[str, Provocation] = {}


def provokes(name: str) -> Callable[[Provocation], Provocation]:
    """Enter the function in the table."""

    def enter(provocation: Provocation) -> Provocation:
        PROVOCATIONS[name] = provocation
        return provocation

    return enter


def mirror_folder(on_call: OnCall, mirror: str, name: str) -> Path:
    return on_call.cluster.folder / "repos" / mirror / name


def hold(folder: Path, process: int) -> Path:
    """Lock the store in the name of this process of this machine; the lock, to be removed."""
    place = folder / ".hg/store/lock"
    os.symlink(b"%s:%d" % (lock._getlockprefix(), process), os.fsencode(place))
    return place


def hg_by_hand(on_call: OnCall, folder: Path, *words: str) -> None:
    """What an administrator does with a Mercurial that does not load the extension."""
    environment = {**on_call.cluster.about["master"]["env"], "HGRCPATH": os.devnull, "HGUSER": "hand"}
    subprocess.run(["hg", "-R", str(folder), *words], env=environment, check=True, capture_output=True)


def leaves(process: int) -> list[int]:
    """Processes that a service started and that started none, such as a mirror's workers."""
    children = [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return [leaf for child in children for leaf in leaves(child)] or [process]


def workers_of(on_call: OnCall, mirror: str) -> list[int]:
    """The processes that do a mirror's work."""
    return [worker for worker in leaves(on_call.cluster.pid(f"mirror-{mirror}")) if not is_stem(worker)]


def newest_event(on_call: OnCall, name: str) -> Event:
    """The repository's newest event in the log."""
    with open_log(on_call.cluster.log_url, creates=True) as log:
        places = {(EVENTS, number): at for number, at in log.beginnings(EVENTS).items()}
        frames = [wire.decode(record.value) for record in read_records(log, places) if record.value]
    return [frame.event for frame in frames if frame.header.event and frame.event.path == name][-1]


def append_event(on_call: OnCall, event: Event) -> None:
    """Write an event into the log that no outbox of this master has."""
    record = NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event), headers=wire.headers(event, "x"))
    with open_log(on_call.cluster.log_url, creates=True) as log:
        log.append([record])


@provokes("VcsreplicatorServiceDown")
def down(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    on_call.cluster.kill("aggregator")
    on_call.push(name)
    assert entry.type("systemctl status 'vcsreplicator-*'").text == "aggregator failed\n"
    assert '"ready"' in entry.do("journalctl -u vcsreplicator-aggregator")
    entry.type("systemctl start", unit="aggregator")
    on_call.wait_announced(name)
    entry.until_ok()


@provokes("VcsreplicatorPushesNotSent")
def pushes_not_sent(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    with closing(sqlite3.connect(on_call.cluster.folder / "log.db", isolation_level=None)) as log:
        log.execute("BEGIN IMMEDIATE")  # no other process can write
        assert "the push is kept and will be sent" in on_call.push(name)
        eventually(lambda: "will try again" in on_call.cluster.output("relay"))
        # After the failure the relay also looks at all other repositories, for a moment each.
        eventually(lambda: entry.metric("relay", "vcsreplicator_relay_unsent_repositories") == 1)
        assert "another process keeps it locked" in entry.type("vcsreplicator topics list").text
        log.execute("ROLLBACK")
    own = {"USER": os.getuid(), "GROUP": os.getgid(), "FOLDER": on_call.cluster.repository(name)}
    entry.do("vcsreplicator rights USER:GROUP FOLDER", **own)
    entry.do("chown -R USER:GROUP FOLDER", **own)
    on_call.wait_announced(name)
    eventually(lambda: entry.metric("relay", "vcsreplicator_relay_unsent_repositories") == 0)
    eventually(lambda: entry.metric("relay", "vcsreplicator_relay_late_repositories") == 0)
    entry.until_ok()


@provokes("VcsreplicatorRelayTroubles")
def relay_troubles(on_call: OnCall, entry: Entry) -> None:
    name, troubles = on_call.repository(), "vcsreplicator_relay_troubles"
    root = on_call.cluster.master_root
    away = root.with_name("not-mounted")
    root.rename(away)
    root.mkdir()
    try:
        entry.until("vcsreplicator check", f"{root}: is empty")
        assert entry.metric("relay", troubles) == 1
    finally:
        shutil.rmtree(root)
        away.rename(root)
    eventually(lambda: entry.metric("relay", troubles) == 0)
    entry.until_ok()
    on_call.push(name)
    on_call.wait_announced(name)


@provokes("VcsreplicatorRepositoryForked")
def forked(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    folder, backup = on_call.cluster.repository(name), on_call.cluster.folder / "backup"
    shutil.copytree(folder, backup, symlinks=True)
    on_call.push(name)
    on_call.wait_announced(name)
    shutil.rmtree(folder)
    backup.rename(folder)
    clone = on_call.cluster.folder / "work" / name
    on_call.cluster.commit(clone, "after the backup")
    refused = on_call.cluster.hg("--cwd", clone, "push", check=False)
    assert "the log has its event" in refused
    entry.until("vcsreplicator check", name)
    assert name in entry.do("vcsreplicator trace PATH", PATH=name)
    entry.do("hg -R FOLDER replicateadopt --yes", FOLDER=folder)
    on_call.push(name)
    entry.until("vcsreplicator trace PATH", "notice written", PATH=name)
    eventually(lambda: entry.metric("relay", "vcsreplicator_relay_forked_repositories") == 0)

    moved = on_call.repository()
    place = on_call.cluster.repository(f"{moved}-moved")
    on_call.cluster.repository(moved).rename(place)
    entry.do("hg -R FOLDER replicaterename --yes", FOLDER=place)
    eventually(lambda: f"{moved}-moved" in os.listdir(on_call.cluster.folder / "repos/beta"), "the mirror follows")

    copied = forked_by_a_copy(on_call)
    entry.until("vcsreplicator check", f"{copied} is forked: ")
    adopted(on_call, entry, copied)
    entry.until("vcsreplicator trace PATH", "notice written", PATH=copied)
    eventually(lambda: f"{copied} is forked" not in entry.type("vcsreplicator check").text, "check names it no more")


@provokes("alarm repository forked")
def forked_in_the_log(on_call: OnCall, entry: Entry) -> None:
    name, alarm = forked_by_a_copy(on_call), 'vcsreplicator_aggregator_alarms{alarm="repository forked"}'
    eventually(lambda: on_call.metric("aggregator", alarm) == 1, alarm)
    adopted(on_call, entry, name)
    eventually(lambda: on_call.metric("aggregator", alarm) == 0, "the alarm is over")


def forked_by_a_copy(on_call: OnCall) -> str:
    """Make a repository, and have the master of a copy send an event of it."""
    name = on_call.repository()
    append_event(on_call, replace(newest_event(on_call, name), id="f" * 32))
    return name


def adopted(on_call: OnCall, entry: Entry, name: str) -> None:
    """Adopt the repository's history, and heal the mirrors."""
    for mirror in ("alpha", "beta"):
        eventually(lambda mirror=mirror: "fork" in on_call.detached(mirror, name), mirror)  # type: ignore[misc]
    entry.do("hg -R FOLDER replicateadopt --yes", FOLDER=on_call.cluster.repository(name))
    for mirror in ("alpha", "beta"):
        entry.do("vcsreplicator heal MIRROR PATH", MIRROR=mirror, PATH=name)
    on_call.push(name)
    on_call.wait_announced(name)


@provokes("VcsreplicatorNoticesStalled")
def stalled(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    on_call.cluster.stop("mirror-beta")
    on_call.push(name)
    entry.until("vcsreplicator status", "beta")
    entry.until("vcsreplicator trace PATH", "beta: not applied", PATH=name)
    entry.do("vcsreplicator roster deactivate MIRROR --yes", MIRROR="beta")
    on_call.wait_announced(name)
    assert entry.metric("aggregator", "vcsreplicator_aggregator_stalled_seconds") < 60
    entry.until_ok()
    back(on_call, "beta")


def back(on_call: OnCall, mirror: str) -> None:
    """Start the mirror, and let it gate again."""
    on_call.cluster.start(f"mirror-{mirror}")
    assert on_call.cluster.cli("roster", "join", mirror).returncode == 0
    eventually(lambda: f"{mirror} | active" in rows(on_call, "roster", "list"), f"{mirror} gates again", every=0.5)


def rows(on_call: OnCall, *words: str) -> str:
    """A table that a verb prints, its cells with bars between."""
    lines = on_call.cluster.cli(*words).stdout.splitlines()
    return "\n".join(" | ".join(line.replace("│", " ").split()) for line in lines)


@provokes("VcsreplicatorMirrorSilent")
def silent(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    on_call.cluster.kill("mirror-beta")
    on_call.push(name)
    eventually(lambda: "mirror beta is silent" in on_call.cluster.cli("check").stdout, every=0.5)
    assert entry.type("systemctl status vcsreplicator-mirror@MIRROR", MIRROR="beta").text == "mirror-beta failed\n"
    held = "vcsreplicator_aggregator_mirror_held_notices"
    eventually(lambda: entry.metric("aggregator", held) == 1, "one notice waits for it")
    entry.do("vcsreplicator roster deactivate MIRROR --yes", MIRROR="beta")
    on_call.wait_announced(name)
    on_call.cluster.start("mirror-beta")
    entry.do("vcsreplicator roster join MIRROR", MIRROR="beta")
    eventually(lambda: "active" in line_of("beta", entry.do("vcsreplicator roster list")), every=0.5)
    lose_the_disk(on_call, entry)


def lose_the_disk(on_call: OnCall, entry: Entry) -> None:
    """The mirror beta comes back on an empty disk."""
    [root] = [Path(each["root"]) for each in on_call.cluster.about["mirrors"] if each["name"] == "beta"]
    on_call.cluster.stop("mirror-beta")
    entry.do("vcsreplicator roster deactivate MIRROR --yes", MIRROR="beta")
    shutil.rmtree(root)
    root.mkdir()
    entry.do("vcsreplicator bootstrap MIRROR", MIRROR="beta")
    on_call.cluster.start("mirror-beta")
    eventually(lambda: "active" in line_of("beta", entry.do("vcsreplicator roster list")), every=0.5)
    assert on_call.cluster.cli("verify", "beta").returncode == 0


def line_of(word: str, text: str) -> str:
    """The first line that begins with the word."""
    return next((line for line in text.splitlines() if line.strip(" │").startswith(word)), "")


@provokes("VcsreplicatorMirrorBehind")
def behind(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    os.kill(on_call.cluster.pid("mirror-beta"), signal.SIGSTOP)
    on_call.push(name)
    eventually(lambda: line_of("beta", entry.do("vcsreplicator status")).split()[3] == "1", every=0.5)
    os.kill(on_call.cluster.pid("mirror-beta"), signal.SIGCONT)
    eventually(lambda: line_of("beta", entry.do("vcsreplicator status")).split()[3] == "0", every=0.5)
    assert entry.metric("mirror-beta", "vcsreplicator_mirror_slow_workers") == 0
    on_call.wait_announced(name)


@provokes("VcsreplicatorRepositoryDetached")
def detached(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    held = hold(mirror_folder(on_call, "beta", name), os.getpid())
    on_call.push(name)
    entry.until("vcsreplicator status", "locked")
    # Typed before the lock is gone: then the mirror heals it by itself, and the command would ask for --yes.
    entry.do("vcsreplicator heal MIRROR PATH", MIRROR="beta", PATH=name)
    held.unlink()
    on_call.wait_announced(name)
    eventually(lambda: line_of("beta", entry.do("vcsreplicator status")).split()[4] == "0", every=0.5)


@provokes("VcsreplicatorMirrorDiffers")
def differs(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    folder = mirror_folder(on_call, "alpha", name)
    # The mirror by itself would find, and heal, a bookmark that its release does not have.
    hg_by_hand(on_call, folder, "phase", "--draft", "--force", "tip")
    with comparing(on_call, "alpha"):
        eventually(lambda: f"{name}: differs" in entry.type("vcsreplicator check").text, every=0.5)
    compare, names = "vcsreplicator verify MIRROR --repository PATH", {"MIRROR": "alpha", "PATH": name}
    answer = entry.type(compare, **names)
    assert answer.code == 2
    assert "phases" in answer.text
    entry.do("vcsreplicator heal MIRROR PATH --yes", **names)
    eventually(lambda: entry.type(compare, **names).code == 0, every=0.5)


@contextlib.contextmanager
def comparing(on_call: OnCall, mirror: str) -> Iterator[None]:
    """Let the service run that compares a mirror with the master; at the end nothing says that it ever ran."""
    words = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "verify", mirror, "--continuous"]
    words += ["--config", str(on_call.cluster.config)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
        try:
            yield
        finally:
            service.terminate()
    with open_log(on_call.cluster.log_url, creates=True) as log:
        log.append([NewRecord(topic=SERVICES, key=f"{VERIFY_KEY}{mirror}", value=None)])


def push_to_workers_that_stand_still(on_call: OnCall, end: signal.Signals) -> str:
    """Return the repository of a push that was detached as slow, once the workers have got the signal that ends that."""
    name = on_call.repository()
    workers = workers_of(on_call, "alpha")
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    on_call.push(name)
    eventually(lambda: "slow" in on_call.detached("alpha", name), "its task takes too long")
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):  # the mirror may have replaced it already
            os.kill(worker, end)
    return name


@provokes("VcsreplicatorWorkersFail")
def workers_fail(on_call: OnCall, entry: Entry) -> None:
    name = push_to_workers_that_stand_still(on_call, signal.SIGKILL)
    eventually(lambda: '"worker died"' in on_call.cluster.output("mirror-alpha"))
    entry.do("vcsreplicator heal MIRROR PATH --yes", MIRROR="alpha", PATH=name)
    on_call.push(name)
    on_call.wait_announced(name)


@provokes("VcsreplicatorRecordsRejected")
def records_rejected(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    with open_log(on_call.cluster.log_url, creates=True) as log:
        log.append([NewRecord(topic=EVENTS, key=name, value=b"of another program")])
    listed = entry.until("vcsreplicator errors list", "events/")
    number = listed.splitlines()[-1].strip(" │").split()[0]
    assert '"topic": "events"' in entry.do("vcsreplicator errors show NUMBER", NUMBER=number)
    entry.do("hg -R FOLDER replicatesync", FOLDER=on_call.cluster.repository(name))
    on_call.push(name)
    on_call.wait_announced(name)


@provokes("VcsreplicatorDestinationDown")
def destination_down(on_call: OnCall, entry: Entry) -> None:
    name, folder = on_call.repository(), on_call.cluster.folder / "late"
    folder.rename(folder.with_name("away"))
    on_call.push(name)
    entry.until("vcsreplicator destination list", "failing since")
    on_call.wait_announced(name)  # by the other destination
    folder.with_name("away").rename(folder)
    eventually(lambda: "failing" not in entry.do("vcsreplicator destination list"), every=0.5)


@provokes("VcsreplicatorDestinationLate")
def destination_late(on_call: OnCall, entry: Entry) -> None:
    name, folder = on_call.repository(), on_call.cluster.folder / "late"
    folder.rename(folder.with_name("away"))
    on_call.push(name)
    entry.until("vcsreplicator destination list", "failing since")
    entry.do("vcsreplicator destination skip NAME --yes", NAME="late")
    assert "late" in on_call.cluster.cli("errors", "list").stdout
    folder.with_name("away").rename(folder)
    eventually(lambda: entry.metric("notifier", "vcsreplicator_notifier_oldest_age_seconds") < 300)


@provokes("VcsreplicatorDestinationPaused")
def destination_paused(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    on_call.cluster.cli("destination", "pause", "late")
    on_call.cluster.cli("subscription", "pause", "ci")
    on_call.push(name)
    entry.until("vcsreplicator destination list", "paused")
    assert "pause" in entry.do("vcsreplicator subscription history")
    entry.do("vcsreplicator destination resume NAME", NAME="late")
    entry.do("vcsreplicator subscription resume NAME", NAME="ci")
    eventually(lambda: "paused" not in entry.do("vcsreplicator destination list"), every=0.5)
    eventually(lambda: (name, 3) in on_call.endpoint.told)


@provokes("VcsreplicatorMessagesRejected")
def messages_rejected(on_call: OnCall, entry: Entry) -> None:
    name, folder = on_call.repository(), on_call.cluster.folder / "late"
    folder.rename(folder.with_name("away"))
    on_call.push(name)
    eventually(lambda: "failing since" in on_call.cluster.cli("destination", "list").stdout, every=0.5)
    skipped = on_call.cluster.cli("destination", "skip", "late", "--yes").stdout
    [message] = re.findall(r"skipped (\S+) of", skipped)
    folder.with_name("away").rename(folder)

    def newest() -> dict[str, str]:
        listed = entry.until("vcsreplicator errors list", "late")
        number = listed.splitlines()[-1].strip(" │").split()[0]
        return dict(json.loads(entry.do("vcsreplicator errors show NUMBER", NUMBER=number)))

    kept = eventually(lambda: (error := newest())["reason"].startswith(message) and error, every=0.5)
    said = entry.do(
        "vcsreplicator replay --repository PATH --since PUSHID --to DESTINATION",
        PATH=kept["key"],
        PUSHID=2,
        DESTINATION="late",
    )
    assert "1" in said
    assert f"/{name}" in (folder / "notices.jsonl").read_text().splitlines()[-1]


@provokes("VcsreplicatorWebhooksFail")
def webhooks_fail(on_call: OnCall, entry: Entry) -> None:
    on_call.endpoint.reply = lambda request: Reply(status=500, body=b"no room")
    name = on_call.repository()
    listed = entry.until("vcsreplicator deliveries list", "exhausted")
    number = line_with("exhausted", listed).strip(" │").split()[0]
    assert "status 500" in entry.do("vcsreplicator deliveries show ID", ID=number)
    failing = "vcsreplicator_notifier_subscription_failing_seconds"
    eventually(lambda: entry.metric("notifier", failing) > 0)
    on_call.endpoint.reply = lambda request: Reply()
    entry.do("vcsreplicator deliveries redeliver --exhausted SUBSCRIPTION --yes", SUBSCRIPTION="ci")
    eventually(lambda: (name, 2) in on_call.endpoint.told)
    eventually(lambda: "exhausted" not in entry.do("vcsreplicator deliveries list"), every=0.5)
    eventually(lambda: entry.metric("notifier", failing) == 0)


def line_with(word: str, text: str) -> str:
    """The first line that has the word."""
    return next(line for line in text.splitlines() if word in line)


@provokes("alarm no gating mirror")
def no_gating_mirror(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    for mirror in ("alpha", "beta"):
        assert on_call.cluster.cli("roster", "deactivate", mirror, "--yes").returncode == 0
    on_call.push(name)
    eventually(lambda: "no gating mirror: 1 held" in on_call.cluster.cli("check").stdout, every=0.5)
    entry.do("vcsreplicator roster allow-empty yes --yes")
    on_call.wait_announced(name)
    entry.do("vcsreplicator roster allow-empty no --yes")
    on_call.push(name)
    for mirror in ("alpha", "beta"):
        entry.do("vcsreplicator roster activate MIRROR", MIRROR=mirror)
    on_call.wait_announced(name)


@provokes("alarm notices held")
def notices_held(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    held = hold(mirror_folder(on_call, "beta", name), os.getpid())
    on_call.push(name)
    eventually(lambda: f"1 of {name} wait, for beta" in on_call.cluster.cli("check").stdout, every=0.5)
    assert "beta: not applied" in entry.do("vcsreplicator trace PATH", PATH=name)
    entry.do("vcsreplicator roster deactivate MIRROR --repository PATH --yes", MIRROR="beta", PATH=name)
    on_call.wait_announced(name)
    held.unlink()
    entry.do("vcsreplicator roster activate MIRROR --repository PATH", MIRROR="beta", PATH=name)


def restore_the_log(on_call: OnCall, copy: Path) -> None:
    """Put an older log in the place of the present one, and start all but the relay."""
    cluster, log = on_call.cluster, on_call.cluster.folder / "log.db"
    readers = [role for role in cluster.roles if not role.startswith("web-")]
    cluster.stop(*[role for role in readers if cluster.running(role)])
    for suffix in ("", "-wal", "-shm"):
        log.with_name(f"log.db{suffix}").unlink(missing_ok=True)
    shutil.copy(copy, log)
    cluster.start(*[role for role in readers if role != "relay"])


def copy_the_log(on_call: OnCall) -> Path:
    """A copy of the log as it is now."""
    copy = on_call.cluster.folder / "copy.db"
    copy.unlink(missing_ok=True)
    with closing(sqlite3.connect(on_call.cluster.folder / "log.db")) as log, closing(sqlite3.connect(copy)) as target:
        log.backup(target)
    return copy


@provokes("alarm events missing in the log")
def events_missing(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    copy = copy_the_log(on_call)
    on_call.push(name)
    on_call.wait_announced(name)
    restore_the_log(on_call, copy)
    missing = f"events missing in the log: 1 missing, 1 repository ({name})"
    eventually(lambda: missing in on_call.cluster.cli("check").stdout, every=0.5)
    on_call.cluster.start("relay")
    eventually(lambda: on_call.cluster.cli("check").returncode == 0, every=0.5, timeout=90)


def lose_events(on_call: OnCall) -> str:
    """A repository of which an event is lost in log and outbox, and a later one has come; its name."""
    name = on_call.repository()
    copy = copy_the_log(on_call)
    on_call.cluster.stop("mirror-beta")
    on_call.push(name)
    on_call.push(name)
    eventually(lambda: f"{name} | 4" in rows(on_call, "status"), "both are in the log", every=0.5)
    on_call.cluster.stop("relay")
    prune(on_call.cluster.repository(name) / ".hg/store", kept=1)
    restore_the_log(on_call, copy)
    on_call.cluster.start("relay")
    eventually(lambda: f"({name}) (since " in on_call.cluster.cli("check").stdout, every=0.5)
    return name


@provokes("VcsreplicatorLogLostRecords")
def log_lost_records(on_call: OnCall, entry: Entry) -> None:
    name = lose_events(on_call)
    assert name in entry.type("vcsreplicator check").text
    assert "the log lost events that the outbox no longer keeps" in on_call.cluster.output("relay")
    entry.do("hg -R FOLDER replicatesync", FOLDER=on_call.cluster.repository(name))
    on_call.wait_announced(name)
    on_call.cluster.stop("aggregator")
    on_call.cluster.start("aggregator")
    entry.until_ok()
    for mirror in ("alpha", "beta"):
        compare = functools.partial(entry.type, "vcsreplicator verify MIRROR", MIRROR=mirror)
        eventually(lambda compare=compare: compare().code == 0, f"{mirror} is equal", every=1)


@provokes("alarm events lost")
def events_lost(on_call: OnCall, entry: Entry) -> None:
    name = lose_events(on_call)
    entry.do("hg -R FOLDER replicatesync", FOLDER=on_call.cluster.repository(name))
    on_call.wait_announced(name)
    on_call.cluster.stop("aggregator")
    on_call.cluster.start("aggregator")
    eventually(lambda: on_call.cluster.cli("check").returncode == 0, every=0.5, timeout=90)


@provokes("reason slow")
def slow(on_call: OnCall, entry: Entry) -> None:
    name = push_to_workers_that_stand_still(on_call, signal.SIGCONT)
    on_call.wait_announced(name)
    eventually(lambda: entry.metric("mirror-alpha", "vcsreplicator_mirror_slow_workers") == 0, "no task is slow")


@provokes("reason gap")
def gap(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    folder, copy = mirror_folder(on_call, "alpha", name), on_call.cluster.folder / "older"
    shutil.copytree(folder, copy, symlinks=True)
    on_call.push(name)
    on_call.wait_announced(name)
    shutil.rmtree(folder)
    copy.rename(folder)
    on_call.push(name)
    on_call.wait_announced(name)
    assert "gap" in on_call.detached("alpha", name)
    assert on_call.cluster.cli("verify", "alpha", "--repository", name).returncode == 0


@provokes("reason locked")
def locked(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    folder = mirror_folder(on_call, "beta", name)
    entry.environment = {"HGRCPATH": str(on_call.cluster.folder / "mirror.hgrc")}
    with subprocess.Popen(["sleep", "600"]) as other, contextlib.ExitStack() as stack:
        stack.callback(other.kill)
        hold(folder, other.pid)
        on_call.push(name)
        eventually(lambda: "locked" in on_call.detached("beta", name), "the mirror's log lines say it")
        assert str(other.pid) in entry.type("hg -R FOLDER debuglocks", FOLDER=folder).text
    on_call.wait_announced(name)  # Mercurial breaks the lock of a process that is dead
    for place in (".hg/wlock", ".hg/store/lock"):
        os.symlink("killed-container/f00000c1:7", folder / place)
    on_call.push(name)
    foreign = "another machine or container"
    eventually(lambda: foreign in on_call.cluster.output("mirror-beta"), "the note names it as what it is")
    on_call.cluster.stop("mirror-beta")
    entry.do("hg -R FOLDER debuglocks --force-free-lock --force-free-wlock", FOLDER=folder)
    on_call.cluster.start("mirror-beta")
    on_call.wait_announced(name)


@provokes("reason diverged")
def diverged(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    folder = mirror_folder(on_call, "alpha", name)
    hg_by_hand(on_call, folder, "--config", "ui.allowemptycommit=yes", "commit", "-m", "by hand")
    on_call.push(name)
    on_call.wait_announced(name)
    assert "diverged" in on_call.detached("alpha", name)
    assert on_call.cluster.cli("verify", "alpha", "--repository", name).returncode == 0


@provokes("reason corrupt")
def corrupt(on_call: OnCall, entry: Entry) -> None:
    name = on_call.repository()
    changelog = mirror_folder(on_call, "alpha", name) / ".hg/store/00changelog.i"
    # An open repository reads the file again if its second is another one, or its size.
    eventually(lambda: int(time.time()) > changelog.stat().st_mtime + 1, "a later second has begun")
    changelog.write_bytes(b"\xff" * changelog.stat().st_size)
    on_call.push(name)
    on_call.wait_announced(name)
    assert "corrupt" in on_call.detached("alpha", name)
    assert on_call.cluster.cli("verify", "alpha", "--repository", name).returncode == 0


@provokes("exit 0")
def exit_0(on_call: OnCall, entry: Entry) -> None:
    assert on_call.cluster.stop("notifier") == [0]
    entry.type("systemctl start", unit="notifier")
    on_call.repository()


@provokes("exit 1")
def exit_1(on_call: OnCall, entry: Entry) -> None:
    cluster = on_call.cluster
    cluster.stop("notifier")
    host, _, port = on_call.address("notifier").partition(":")
    with socket.create_server((host, int(port))):
        cluster.revive("notifier")
        eventually(lambda: cluster.exit_code("notifier") is not None)
        assert cluster.exit_code("notifier") == 1
        assert "in use" in cluster.output("notifier").splitlines()[-1]
    cluster.start("notifier")  # the unit
    on_call.repository()


@provokes("exit 2")
def exit_2(on_call: OnCall, entry: Entry) -> None:
    refused = on_call.cluster.cli("roster", "activate", "nowhere")
    assert (refused.returncode, "nowhere" in refused.stderr) == (2, True), refused.stderr
    wrong = on_call.cluster.cli("roster", "activated", "alpha")
    assert (wrong.returncode, "activated" in wrong.stderr) == (2, True), wrong.stderr
    assert on_call.cluster.cli("roster", "list").returncode == 0


@provokes("exit 78")
def exit_78(on_call: OnCall, entry: Entry) -> None:
    cluster = on_call.cluster
    cluster.stop("aggregator")
    right = cluster.config.read_text()
    cluster.config.write_text(right.replace("[aggregator]\n", '[aggregator]\nbeat = "often"\n'))
    cluster.revive("aggregator")
    eventually(lambda: cluster.exit_code("aggregator") == 78)
    last = cluster.output("aggregator").splitlines()[-1]
    assert f"{cluster.config}: aggregator.beat: expected" in last
    answer = entry.type("vcsreplicator config check")
    assert answer.code == 78
    assert "aggregator.beat" in answer.text
    cluster.config.write_text(right)
    entry.type("systemctl start", unit="aggregator")
    on_call.repository()


@provokes("exit 130")
def exit_130(on_call: OnCall, entry: Entry) -> None:
    with watching_status(on_call) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(60) == 130


@provokes("exit 141")
def exit_141(on_call: OnCall, entry: Entry) -> None:
    with watching_status(on_call) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.stdout.close()
        assert watching.wait(60) == 141


def watching_status(on_call: OnCall) -> "subprocess.Popen[str]":
    """A command that prints until it is ended."""
    words = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "status", "--watch"]
    words += ["--config", str(on_call.cluster.config)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
