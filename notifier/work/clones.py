# SPDX-License-Identifier: GPL-2.0-or-later
"""Local clones of repositories, and the changesets in them.

Each repository has one clone, without a working copy. A process that reads a clone holds a lock of ours (`.NAME.lock`) meanwhile,
which the kernel frees when the process ends. So it may remove a lock of Mercurial's that a machine or container left.
"""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import structlog

from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent, Unavailable
from hgext.vcsreplicator.words.passing import is_passing

from ..message import clean
from .commandserver import MOST_OUTPUT, CommandServer, HgFailed, TooMuchPrinted
from .database import ChangesetRecord, RepositoryKey

# Changesets asked for at once.
AT_ONCE = 500

# Bytes that are read of several changesets at once.
PORTION = 8 * 1024**2

# Takes changesets, in portions.
Keep = Callable[[Sequence[ChangesetRecord]], None]

# Seconds between two looks at a lock.
BLINK = 0.1

# Bytes of free disk below which a failure is this machine's own, not the repository's.
LEAST_FREE = 64 * 1024**2

_TEMPLATE = "{dict(node, author=author, date=date|hgdate, description=desc, branch=branch, files=files)|json}\\n"


logger = structlog.get_logger()


# Failures of a clone in a row after which another one is tried in its place.
SUSPICIOUS = 2


class ChangesetMissing(HgFailed):
    """A clone does not have a changeset, though a pull succeeded."""

    def __init__(self, url: str, node: str) -> None:
        super().__init__(f"{url} has no changeset {node}")
        self.node = node


class Clones:
    """The clones in one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        # Failures in a row, and clones that were replaced since their last success: a second time would not help.
        self._failures: dict[str, int] = {}
        self._replaced: set[str] = set()

    def prepare(self) -> None:
        """Make the folder; raises Unavailable or BadConfig."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            kind = Unavailable if is_passing(error) else BadConfig
            raise kind(f"work.clones: {self._folder}: {error.strerror}") from error

    def read(self, hg: CommandServer, repository: RepositoryKey, nodes: Sequence[str], keep: Keep) -> None:
        """Hand these changesets to `keep`; pull first if the clone lacks any.

        `keep` gets them in portions; if the call fails, it may have some, and gets them again the next time. Waits while another
        process reads the clone. If the clone is damaged, or may be after some failures, the call makes it anew. Raises HgFailed,
        Unavailable if the cause is this machine, MalformedEvent if Mercurial shows a changeset in another form, and what `keep`
        raises.
        """
        clone = self._folder / f"{repository.source}-{repository.number}"
        with self._locked(hg, clone):
            self._read_or_replace(hg, repository, clone, nodes, keep)

    def _read_or_replace(
        self, hg: CommandServer, repository: RepositoryKey, clone: Path, nodes: Sequence[str], keep: Keep
    ) -> None:
        try:
            try:
                self._read(hg, repository, clone, nodes, keep)
            except HgFailed as error:
                if not self._is_to_replace(hg, repository, clone, error):
                    raise
                logger.warning("clone damaged, made anew", clone=str(clone), reason=str(error))
                self._replace(hg, clone, repository.url)
                self._read(hg, repository, clone, nodes, keep)
            self._failures.pop(clone.name, None)
            self._replaced.discard(clone.name)
        except (HgFailed, OSError) as error:
            if error.lacked_room or error.is_locked if isinstance(error, HgFailed) else is_passing(error):
                raise Unavailable(f"work.clones: {self._folder}: {error}") from error
            if trouble := self._find_trouble():
                raise Unavailable(f"work.clones: {self._folder}: {trouble}: {error}") from error
            raise

    def _is_to_replace(self, hg: CommandServer, repository: RepositoryKey, clone: Path, error: HgFailed) -> bool:
        """Count a failure; return whether another clone may help.

        One of a large repository costs much: so there is one until the next success, and none for trouble of the network or a
        changeset that the host does not have.
        """
        self._failures[clone.name] = failures = self._failures.get(clone.name, 0) + 1
        if clone.name in self._replaced:
            return False
        if isinstance(error, ChangesetMissing):
            is_suspicious = failures >= SUSPICIOUS and _has(hg, repository.url, error.node)
        else:
            is_suspicious = error.is_damaged or (failures >= SUSPICIOUS and error.may_be_the_clone)
        if is_suspicious:
            self._replaced.add(clone.name)
        return is_suspicious

    @contextlib.contextmanager
    def _locked(self, hg: CommandServer, clone: Path) -> Iterator[None]:
        """Hold the lock of a clone within the block.

        Raises Unavailable if the folder takes no file, or the command server is ended while this waits.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)  # an operator may remove it at any time
            lock = os.open(clone.with_name(f".{clone.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unavailable(f"work.clones: {self._folder}: cannot be written: {error.strerror}") from error
        try:
            while not _try_lock(lock):
                if hg.is_ended:
                    raise Unavailable("the worker is stopping")
                time.sleep(BLINK)
            yield
        finally:
            os.close(lock)

    def _find_trouble(self) -> str | None:
        """Return why this machine can keep no clones in the folder, None if it can."""
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix="."):
                free = shutil.disk_usage(self._folder).free
        except OSError as error:
            return f"cannot be written: {error.strerror}"
        return f"{free} bytes are free" if free < LEAST_FREE else None

    def _read(
        self, hg: CommandServer, repository: RepositoryKey, clone: Path, nodes: Sequence[str], keep: Keep
    ) -> None:
        if not (clone / ".hg" / "store").is_dir():
            self._remove(clone)
            self._make(hg, clone)
        missing = self._find_missing(hg, clone, nodes)
        if missing:
            self._pull(hg, clone, repository.url)
            missing = self._find_missing(hg, clone, missing)
        if missing:
            raise ChangesetMissing(repository.url, missing[0])
        self._hand_on(hg, clone, nodes, keep)

    def _make(self, hg: CommandServer, clone: Path) -> None:
        """Make an empty clone, whole or not at all."""
        self._begin(hg, clone).rename(clone)

    def _replace(self, hg: CommandServer, clone: Path, url: str) -> None:
        """Make the clone anew; if that fails, the former one stays."""
        unfinished = self._begin(hg, clone)
        try:
            self._pull(hg, unfinished, url)
            self._remove(clone)
            unfinished.rename(clone)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _begin(self, hg: CommandServer, clone: Path) -> Path:
        """Make an empty repository beside the clone."""
        unfinished = clone.with_name(f".{clone.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        hg.run("init", "--", str(unfinished))
        return unfinished

    def _remove(self, clone: Path) -> None:
        """Remove what is in the clone's place, whole or not at all."""
        removed = clone.with_name(f".{clone.name}.damaged")
        shutil.rmtree(removed, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            clone.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)

    def _pull(self, hg: CommandServer, clone: Path, url: str) -> None:
        _remove_stale_locks(clone)
        pull = ("pull", "--quiet", "-R", str(clone), "--", url)
        try:
            hg.run(*pull)
        except HgFailed as error:
            if "abandoned transaction" not in str(error):
                raise
            hg.run("recover", "-R", str(clone))  # an earlier worker was killed in the middle
            hg.run(*pull)

    def _find_missing(self, hg: CommandServer, clone: Path, nodes: Sequence[str]) -> list[str]:
        """Return which of these changesets the clone does not have."""
        found: set[str] = set()
        for begin in range(0, len(nodes), AT_ONCE):
            found.update(_log(hg, clone, nodes[begin : begin + AT_ONCE], "{node}\\n"))
        return [node for node in nodes if node not in found]

    def _hand_on(self, hg: CommandServer, clone: Path, nodes: Sequence[str], keep: Keep) -> None:
        """Read changesets; hand them on in portions of about `PORTION` bytes.

        A changeset may have as much as a command may print.
        """
        begin, size = 0, AT_ONCE
        while begin < len(nodes):
            portion = nodes[begin : begin + size]
            try:
                lines = _log(hg, clone, portion, _TEMPLATE, most=PORTION if len(portion) > 1 else MOST_OUTPUT)
            except TooMuchPrinted:
                if len(portion) == 1:
                    raise
                size = len(portion) // 2
                continue
            keep([_read_record(line) for line in lines])
            begin += len(portion)
            # As many as would fill most of a portion if the next ones are like these.
            size = min(AT_ONCE, max(1, len(portion) * PORTION * 3 // 4 // max(1, sum(map(len, lines)))))


def _log(hg: CommandServer, clone: Path, nodes: Sequence[str], template: str, *, most: int = MOST_OUTPUT) -> list[str]:
    """Return a line for each of those changesets that the clone has."""
    wanted = "+".join(f"present({node})" for node in nodes)
    text = hg.run("log", "--hidden", "-R", str(clone), "-r", wanted, "-T", template, most=most)
    return text.split("\n")[:-1]


def _has(hg: CommandServer, url: str, node: str) -> bool:
    """Return whether the host says that it has a changeset."""
    try:
        hg.run("identify", "--id", "-r", node, "--", url)
    except HgFailed:
        return False
    return True


def _try_lock(lock: int) -> bool:
    """Return whether this process has the lock now."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_stale_locks(clone: Path) -> None:
    """Remove locks of a Mercurial that is gone.

    It was on another machine or in another container, where a worker would hold our own lock, or this machine started since.
    Mercurial itself removes what processes left that ended since.
    """
    mine = f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino:x}:"
    started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for path in (clone / ".hg" / "store" / "lock", clone / ".hg" / "wlock"):
        try:
            holder, made = os.readlink(path), path.lstat().st_mtime
        except OSError:
            continue
        if not holder.startswith(mine) or made < started:
            logger.warning("lock of a Mercurial that is gone removed", lock=str(path), holder=holder)
            path.unlink(missing_ok=True)


def _read_record(line: str) -> ChangesetRecord:
    entry: Mapping[str, str] = json.loads(line)
    try:
        return ChangesetRecord(
            node=entry["node"],
            author=clean(entry["author"]),
            date=int(entry["date"].split(" ")[0]),
            description=clean(entry["description"]),
            branch=clean(entry["branch"]),
            files=tuple(map(clean, entry["files"])),
        )
    except (KeyError, ValueError) as error:
        raise MalformedEvent(f"a changeset that Mercurial shows in another form: {error}") from error
