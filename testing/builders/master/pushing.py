# SPDX-License-Identifier: GPL-2.0-or-later
"""A master's machine for tests: hgrc, repositories, developers who push over SSH without a network, and a relay in this process."""

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hgext.vcsreplicator.hg.relaying import MasterRepositories
from hgext.vcsreplicator.log import EVENTS, Log
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.outbox.folder import Store
from hgext.vcsreplicator.relay import daemon
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.words import digest, wire
from hgext.vcsreplicator.words.event import Event
from testing.warm_hg import shared_hg

HG = str(Path(sys.executable).with_name("hg"))

# What a pusher reads of a push that is in the log, and of a push that is not yet there: for want of the log, and of the relay.
RECORDED = "remote: recorded push in replication log in "
KEPT = "remote: replication log not reachable: the push is kept and will be sent"
UNRELAYED = "remote: relay not reachable: the push is kept and will be sent"

MASTER = """\
[extensions]
*:required = yes
pushlog =
vcsreplicator =
strip =
[ui]
username = operator
[experimental]
evolution = all
[web]
push_ssl = no
allow-push = *
[vcsreplicator]
role = master
source = hg://master
{how}
[vcsreplicator-roots]
{root} = .
"""


@dataclass(frozen=True, slots=True)
class Master:
    """`folder` holds everything; `how` are the lines of [vcsreplicator] that say how events are sent."""

    folder: Path
    how: str

    @property
    def root(self) -> Path:
        return self.folder / "repos"

    @property
    def socket(self) -> str:
        return str(self.folder / "relay.sock")

    def set_up(self) -> "Master":
        """Writes the files."""
        self.root.mkdir(parents=True)
        (self.folder / "master.hgrc").write_text(MASTER.format(how=self.how, root=self.root))
        ssh = self.folder / "ssh"
        ssh.write_text(f'#!/bin/sh\nshift\nHGRCPATH={self.folder}/master.hgrc\nexport HGRCPATH\neval "exec $*"\n')
        ssh.chmod(0o755)
        (self.folder / "client.hgrc").write_text(
            f"[ui]\nssh = {ssh}\nremotecmd = {shared_hg()}\nusername = dana\n[experimental]\nevolution = all\n"
        )
        return self

    def configure(self, text: str) -> None:
        """Adds lines to the master's hgrc."""
        with (self.folder / "master.hgrc").open("a") as hgrc:
            hgrc.write(text)

    def operate(self, *arguments: str, check: bool = True) -> str:
        """`hg` as the master's operator; what it prints."""
        return self._hg("master.hgrc", arguments, check=check)

    def develop(self, *arguments: str, check: bool = True) -> str:
        """`hg` on a developer's machine."""
        return self._hg("client.hgrc", arguments, check=check)

    def create(self, name: str) -> None:
        """A repository with a clone beside the root."""
        self.operate("init", str(self.root / name))
        self.develop("init", str(self.folder / f"clone-{name}"))

    def commit(self, name: str, text: str) -> None:
        """A changeset in the clone."""
        clone = self.folder / f"clone-{name}"
        (clone / "file").write_text(text)
        self.develop("-R", str(clone), "commit", "-q", "-A", "-m", text)

    def push(self, name: str, *arguments: str, check: bool = True) -> str:
        """Pushes the clone; what the pusher read."""
        where = f"ssh://x/{self.root / name}"
        return self.develop("-R", str(self.folder / f"clone-{name}"), "push", *arguments, where, check=check)

    @contextmanager
    def serve(self, name: str) -> Iterator[str]:
        """`hg serve` of a repository for the length of a block; its address."""
        words = [shared_hg(), "-R", str(self.root / name), "serve", "--port", "0", "--address", "127.0.0.1"]
        environment = {**os.environ, "HGRCPATH": str(self.folder / "master.hgrc"), "USER": "dana"}
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                found = re.search(r"http://\S+?:(\d+)/", server.stdout.readline())
                assert found
                yield f"http://127.0.0.1:{found[1]}/"
            finally:
                server.kill()

    def outbox(self, name: str) -> Outbox:
        """The outbox of a repository."""
        return Outbox(Store(str(self.root / name / ".hg" / "store")))

    def settings(self, **members: object) -> RelaySettings:
        """For a relay of this machine; looks often."""
        given = {"socket": self.socket, "source": "hg://master", "roots": {str(self.root): ""}, "scan": 0.3, **members}
        return RelaySettings(**given)  # type: ignore[arg-type]

    def _hg(self, hgrc: str, arguments: tuple[str, ...], *, check: bool) -> str:
        done = subprocess.run(
            [shared_hg(), *arguments],
            cwd=self.folder,
            env={**os.environ, "HGRCPATH": str(self.folder / hgrc), "USER": "dana"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout
        return done.stdout


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder for the length of a block; the path of a socket in it is short, as it may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="push-") as folder:
        yield Path(folder)


@contextmanager
def new_master(*how: str) -> Iterator[Master]:
    """A master that sends to the socket in its own short folder, for the length of a block."""
    with short_folder() as folder:
        yield Master(folder, "\n".join((f"relay = {folder}/relay.sock", *how))).set_up()


@contextmanager
def running_relay(settings: RelaySettings, log: Log) -> Iterator[None]:
    """The relay in a thread of this process."""
    stop, ready = threading.Event(), threading.Event()
    port = MasterRepositories(settings.roots, settings.source)
    thread = threading.Thread(target=daemon.run, args=(settings, log, port), kwargs={"stop": stop, "ready": ready.set})
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        stop.set()
        thread.join()


def events(log: Log, *, repeats: bool = False) -> dict[str, list[Event]]:
    """The events in the log by wire path: first appearances in order, each chain proven unbroken; or every appearance."""
    ends = log.ends(EVENTS)
    reader = log.reader({(EVENTS, partition): at for partition, at in log.beginnings(EVENTS).items()})
    found: dict[str, list[Event]] = {}
    try:
        while any(reader.positions()[EVENTS, partition] < end for partition, end in ends.items()):
            for record in reader.poll(0.5, limit=10_000):
                assert record.value is not None
                frame = wire.decode(record.value)
                if frame.header.event is not None:
                    known = found.setdefault(frame.event.path, [])
                    if repeats or not any(event.id == frame.event.id for event in known):
                        known.append(frame.event)
    finally:
        reader.close()
    if not repeats:
        for chain in found.values():
            _assert_unbroken(chain)
    return found


def _assert_unbroken(chain: list[Event]) -> None:
    level, previous, incarnation = digest.START, None, None
    for event in chain:
        if event.incarnation != incarnation:
            level, previous, incarnation, seq = digest.START, None, event.incarnation, 0
        seq += 1
        assert (event.seq, event.previous) == (seq, previous), f"{event.path}: {event.seq} does not follow {seq - 1}"
        level, previous = digest.advance(level, event.type, event.changes), event.id
        assert event.digest == level
