# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror under test: the real service on a real log, with `Author` as its master and releases written by hand.

    with Bench(tmp_path) as bench:
        author = bench.author("project/repo")
        author.push()
        bench.send(author)
        with bench.mirror():                      # in this process, its workers in their own
            bench.wait_applied(author)
            bench.release(author)
            bench.wait_served(author)

`bench.process()` is the same as a process of its own, to be killed.
"""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hgext.vcsreplicator.hg.replica import scan
from hgext.vcsreplicator.log import ACKS, ERRORS, EVENTS, STATE, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror import MirrorSettings, service
from hgext.vcsreplicator.mirror.notes import Detached, Notes
from hgext.vcsreplicator.mirror.task import FoundRepository
from hgext.vcsreplicator.words.records import Ack, ErrorRecord
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.states import some_state
from testing.builders.mirror.author import Author
from testing.warm import is_stem, warm_starts
from testing.warm_hg import shared_hg

PATIENCE = float(os.environ.get("VCSREPLICATOR_TEST_PATIENCE", "60"))
NAME = "alpha"


class Bench:
    """A log, a master's folder and a mirror's folder below `folder`."""

    def __init__(self, folder: Path, *, log: str | None = None, partitions: int = 4) -> None:
        self.folder = folder
        self.master_root, self.root = folder / "master", folder / "mirror"
        for each in (self.master_root, self.root):
            each.mkdir(parents=True, exist_ok=True)
        self.url = log or f"sqlite:///{str(folder / 'log.db').lstrip('/')}"
        self.log = open_log(self.url, creates=True)
        self.log.create(topics(partitions=partitions))
        self.master_url: str | None = None
        # How many events of each repository are sent; a test that adds to it loses some.
        self.sent: dict[str, int] = {}
        self._acks: dict[str, Ack] = {}
        self._reader = self.log.reader({(ACKS, 0): self.log.beginnings(ACKS)[0]})
        self.web: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        self.log.close()
        if self.web is not None:
            self.web.kill()
            self.web.wait()

    # The master's side.

    def author(self, path: str, **members: Any) -> Author:
        """Make a repository on the master, nothing of it sent yet."""
        return Author(self.master_root, path, **members)

    def send(self, *authors: Author) -> None:
        """Put what is new of these repositories into the log, one event of each in turn."""
        waiting = [author.messages(self.sent.get(author.repository, 0)) for author in authors]
        for author in authors:
            self.sent[author.repository] = len(author.frames)
        turns = max(map(len, waiting), default=0)
        messages = [queue[turn] for turn in range(turns) for queue in waiting if turn < len(queue)]
        for start in range(0, len(messages), 1000):
            self.log.append(messages[start : start + 1000])

    def serve_master(self, *, guard: tuple[str, str] | None = None) -> None:
        """Serve the master's repositories over HTTP; `guard` are a name and password to ask for."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        hgrc = self.folder / "web.hgrc"
        hgrc.write_text(
            "[extensions]\n*:required = yes\npushlog=\nvcsreplicator=\n"
            f"[vcsreplicator]\nrole=master\nrelay=/nowhere\nsnapshot-allow={guard[0] if guard else '*'}\n"
            f"[vcsreplicator-roots]\n{self.master_root}=.\n"
        )
        program = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "web", "--root", str(self.master_root)]
        program += ["--listen", f"127.0.0.1:{port}"]
        if guard:
            program = [
                sys.executable,
                "-P",
                "-m",
                "testing.builders.master.guarded_web",
                str(self.master_root),
                str(port),
                *guard,
            ]
        with (self.folder / "web.log").open("wb") as output, warm_starts():
            self.web = subprocess.Popen(
                program,
                env={**os.environ, "HGRCPATH": str(hgrc), "HGENCODING": "UTF-8"},
                stderr=output,
            )
        self.master_url = f"http://127.0.0.1:{port}/"
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                assert time.monotonic() < end
                assert self.web.poll() is None, (self.folder / "web.log").read_text()
                time.sleep(0.05)

    def release(self, author: Author, seq: int | None = None, **members: Any) -> None:
        """Release the repository up to `seq` (default: all of it), as the aggregator does."""
        state = some_state(
            repository=author.repository,
            incarnation=author.incarnation,
            path=author.path,
            generation=author.generation,
            seq=author.seq,
            event=author.last or "",
            digest=author.digest,
            released=author.seq if seq is None else seq,
            noticed=members.pop("noticed", 0),
            **members,
        )
        self.log.append([NewRecord(topic=STATE, key=author.repository, value=to_json(state))])

    # The mirror's side.

    def settings(self, **members: Any) -> MirrorSettings:
        """Return the mirror's settings, quick to heal."""
        given = {"retry_first": 0.05, "retry_longest": 0.5, "beat_interval": 0.3, "slow_after": 2.0, **members}
        return MirrorSettings(name=NAME, root=str(self.root), master=self.master_url, **given)

    @contextlib.contextmanager
    def mirror(self, **members: Any) -> Iterator[list[BaseException]]:
        """Run the mirror in threads of this process and worker processes, and stop it at the end.

        Yields the list that gets the error with which it ends, if it does.
        """
        stop, ready = threading.Event(), threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                with open_log(self.url, creates=True) as log:
                    service.run(self.settings(**members), log, stop=stop, ready=ready.set)
            except BaseException as error:
                failed.append(error)
                ready.set()

        thread = threading.Thread(target=run)
        with warm_starts():
            thread.start()
            try:
                assert ready.wait(PATIENCE)
                if failed:
                    raise failed[0]
                yield failed
            finally:
                stop.set()
                thread.join()
        if failed:
            raise failed[0]

    @contextlib.contextmanager
    def process(self, **members: Any) -> Iterator["MirrorProcess"]:
        """Run the mirror as a process of its own."""
        running = MirrorProcess(self, members)
        try:
            running.start()
            yield running
        finally:
            running.end()

    def wait(self, holds: Callable[[dict[str, Ack]], bool], what: str) -> None:
        """Return once `holds` is true of the mirror's newest acks, by repository."""
        end = time.monotonic() + PATIENCE
        while True:
            for record in self._reader.poll(0.2):
                repository = (record.key or "").removeprefix(f"{NAME}/")
                if record.value is None:
                    self._acks.pop(repository, None)
                elif repository != record.key:
                    self._acks[repository] = from_json(Ack, record.value)
            if holds(self._acks):
                return
            assert time.monotonic() < end, f"waited {PATIENCE:g} s for {what}; acks: {self._acks}"

    def wait_applied(self, *authors: Author) -> None:
        """Return once the mirror, in the stream, has acked everything of these repositories."""

        def applied(acks: dict[str, Ack]) -> bool:
            return all(
                (ack := acks.get(a.repository)) is not None and ack.digest == a.digest and ack.detached is None
                for a in authors
            )

        self.wait(applied, f"{[author.path for author in authors]} applied")

    def wait_served(self, *authors: Author) -> None:
        """Return once the mirror acks that it serves everything of these repositories."""
        self.wait(
            lambda acks: all((a := acks.get(x.repository)) is not None and a.serving == x.seq for x in authors),
            f"{[author.path for author in authors]} served",
        )

    def wait_detached(self, author: Author, reason: str | None = None) -> Ack:
        """Return the ack that says the repository is detached (for this reason)."""

        def detached(acks: dict[str, Ack]) -> bool:
            ack = acks.get(author.repository)
            return ack is not None and ack.detached is not None and reason in (None, ack.detached)

        self.wait(detached, f"{author.path} detached")
        return self._acks[author.repository]

    def ack(self, author: Author) -> Ack | None:
        """Return the mirror's newest ack of a repository, as far as `wait` has read."""
        return self._acks.get(author.repository)

    def found(self) -> dict[str, FoundRepository]:
        """Return what is on the mirror's disk, by repository."""
        state = self.settings().folder
        return {f.checkpoint.repository: f for f in scan.scan(str(self.root), state) if f.checkpoint and not f.is_aside}

    def where(self, author: Author) -> Path:
        """Return the mirror's folder of a repository: where it stands, or would."""
        found = self.found().get(author.repository)
        return Path(found.folder) if found else self.root / author.path

    def home(self, author: Author) -> Path:
        """Return the mirror's folder that clients find at the repository's present path."""
        return self.root / author.path

    def notes(self) -> list[Detached]:
        """Return the mirror's durable notes."""
        notes = Notes(Path(self.settings().folder) / "mirror.db")
        try:
            return notes.detached()
        finally:
            notes.close()

    def request_heal(self, author: Author) -> None:
        """Request healing of a repository, as an operator does."""
        notes = Notes(Path(self.settings().folder) / "mirror.db")
        notes.request_heal(author.repository, who="dana", now=time.time())
        notes.close()

    def errors(self) -> list[ErrorRecord]:
        """Return what the mirror rejected."""
        reader = self.log.reader({(ERRORS, 0): self.log.beginnings(ERRORS)[0]})
        try:
            end, records = self.log.ends(ERRORS)[0], []
            while reader.positions()[ERRORS, 0] < end:
                records += reader.poll(1.0)
        finally:
            reader.close()
        return [from_json(ErrorRecord, record.value or b"") for record in records]

    def everything_passed(self) -> bool:
        """Whether the mirror's stored positions are at the end of `events`."""
        stored = self.log.stored(self.settings().group, EVENTS)
        return all(stored.get(partition, 0) == end for partition, end in self.log.ends(EVENTS).items())

    def hg(self, author: Author, *arguments: str, root: Path | None = None) -> str:
        """Return what plain hg prints in the mirror's repository (or in the one below `root`)."""
        folder = root / author.path if root else self.where(author)
        environment = {**os.environ, "HGRCPATH": os.devnull, "HGRCSKIPREPO": "1", "HGPLAIN": "1"}
        settings = ["--config", "experimental.evolution=all"]
        command = [shared_hg(), "-R", str(folder), *settings, *arguments]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


class MirrorProcess:
    """The mirror started by its command line, in a process group of its own."""

    def __init__(self, bench: Bench, members: dict[str, Any]) -> None:
        self._bench, self._members = bench, members
        self._process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}

    def start(self) -> None:
        """Start it and return when it is ready."""
        bench = self._bench
        settings = bench.settings(**self._members)
        lines = [f'root = "{settings.root}"', *([f'master = "{settings.master}"'] if settings.master else [])]
        for key in ("retry_first", "retry_longest", "beat_interval", "slow_after", *self._members):
            value = getattr(settings, key)
            lines.append(f"{key.replace('_', '-')} = {str(value).lower() if isinstance(value, bool) else value}")
        config = bench.folder / "mirror.toml"
        config.write_text(f'log = "{bench.url}"\n[mirror.{NAME}]\n' + "\n".join(dict.fromkeys(lines)) + "\n")
        address = str(bench.folder / "notify")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(address)
            listener.settimeout(PATIENCE)
            with (bench.folder / "mirror.log").open("ab") as output, warm_starts():
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "mirror", NAME, "--config", str(config)],
                    env={**os.environ, "NOTIFY_SOCKET": address, **self.environment},
                    stderr=output,
                    start_new_session=True,
                )
            while b"READY=1" not in listener.recv(4096):
                pass

    @property
    def workers(self) -> list[int]:
        """The ids of its worker processes."""
        return [child for child, name in self._children() if name != "nursery"]

    def limit_files(self, size: int) -> None:
        """Let its workers write no file beyond so many bytes, nor those that are forked later."""
        children = sorted(self._children(), key=lambda child: child[1] != "nursery")
        for child in [*(child for child, _ in children), *self.workers]:  # the last: forked meanwhile
            resource.prlimit(child, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def _children(self) -> list[tuple[int, str]]:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        found = [int(child) for child in children if not is_stem(int(child))]
        return [(child, Path(f"/proc/{child}/comm").read_text().strip()) for child in found]

    def kill(self) -> None:
        """Kill the supervisor; its workers end by themselves."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Kill everything of it that is left."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
