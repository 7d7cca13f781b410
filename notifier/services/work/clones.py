# SPDX-License-Identifier: GPL-2.0-or-later
"""Local clones of repositories, and the changesets in them.

Each repository has one clone, without a working copy. A process that reads a clone holds our own lock (`.NAME.lock`), which the
kernel frees when the process ends. So it may remove a lock of Mercurial's that an `hg` of an earlier worker left.

A clone gets its name once its first pull is complete. What an interrupted pull left is never rolled back: a rollback copies files
to the paths that the files of the clone name. A new clone takes its place.
"""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import structlog

from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent, Unavailable
from hgext.vcsreplicator.words.passing import is_passing

from ...messages.message import clean
from .commandserver import MOST_OUTPUT, CommandServer, HgFailed, TooMuchPrinted
from .database import ChangesetRecord, RepositoryKey
from .stale_locks import remove_stale_locks

# Changesets asked for at once.
AT_ONCE = 500

# Bytes that are read of several changesets at once.
PORTION = 8 * 1024**2

# Takes changesets, in portions.
Keep = Callable[[Sequence[ChangesetRecord]], None]

# Seconds to wait for a clone that another process reads.
PATIENCE = 3.0
# Seconds between two attempts at its lock.
BLINK = 0.1

# Bytes of free disk below which a failure is this machine's own, not the repository's.
LEAST_FREE = 64 * 1024**2

_TEMPLATE = "{dict(node, author=author, date=date|hgdate, description=desc, branch=branch, files=files)|json}\\n"


logger = structlog.get_logger()


# Failures in a row after which a clone that lacks a changeset of its host is damaged.
SUSPICIOUS = 2

# Mercurial's messages about damage that reading the clone does not show.
_DAMAGES = ("fncache", "repository is unrelated")


class CloneUnavailable(Unavailable):
    """One clone cannot be used now.

    It is in use, locked, damaged, another user's, or a pull of it fills the disk.
    """


class ChangesetMissing(HgFailed):
    """A clone does not have a changeset, though a pull succeeded."""

    def __init__(self, url: str, node: str) -> None:
        super().__init__(f"{url} has no changeset {node}")
        self.node = node

    @property
    def is_of_host(self) -> bool:
        """Whether the host is the cause: it lacks the changeset."""
        return True


class Clones:
    """The clones in one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        # Failures in a row, damaged clones, and those replaced since their last success: a second time would not help.
        self._failures: dict[str, int] = {}
        self._damaged: set[str] = set()
        self._replaced: set[str] = set()

    def prepare(self) -> None:
        """Make the folder, and try to lock a file in it; raises Unavailable or BadConfig."""
        doing = ""
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as file:
                doing = "takes no file locks: "
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            kind = Unavailable if is_passing(error) else BadConfig
            raise kind(f"work.clones: {self._folder}: {doing}{error.strerror}") from error

    def read(self, hg: CommandServer, repository: RepositoryKey, nodes: Sequence[str], keep: Keep) -> None:
        """Hand these changesets to `keep`; pull first if the clone lacks any.

        `keep` gets them in portions; if the call fails, it may have some, and gets them again the next time. A clone whose pull was
        interrupted is re-created at once, a damaged one by the next call, so that no call lasts as long as two pulls. Raises
        HgFailed, CloneUnavailable if the cause is this clone, Unavailable if it is this machine, MalformedEvent if Mercurial shows
        a changeset in another form, and the exceptions of `keep`.
        """
        clone = self._folder / f"{repository.source}-{repository.number}"
        with self._hold_lock(hg, clone):
            try:
                if clone.name in self._damaged or not _is_complete(clone):
                    self._replace(hg, clone, repository.url, nodes)
                    self._damaged.discard(clone.name)
                    self._replaced.add(clone.name)
                self._read_changesets(hg, repository, clone, nodes, keep)
            except HgFailed as error:
                self._count_failure(hg, repository, clone, error)
                raise
            except OSError as error:
                if is_passing(error):
                    raise Unavailable(f"work.clones: {self._folder}: {error}") from error
                self._find_cause(error, is_held=isinstance(error, PermissionError))
                raise
            self._failures.pop(clone.name, None)
            self._replaced.discard(clone.name)

    def _count_failure(self, hg: CommandServer, repository: RepositoryKey, clone: Path, error: HgFailed) -> None:
        """Count a failure.

        Raises Unavailable or CloneUnavailable if it must not count as an attempt. A damaged clone is replaced once until the next
        success. For a missing changeset the attempt alone counts: the host may be at fault, and a large clone is expensive.
        """
        self._find_cause(error, is_held=error.is_locked or error.lacked_room)
        self._failures[clone.name] = failures = self._failures.get(clone.name, 0) + 1
        if isinstance(error, ChangesetMissing) or clone.name in self._replaced:
            self._damaged.discard(clone.name)
        if clone.name in self._damaged | self._replaced or not _is_damaged(hg, repository.url, clone, error, failures):
            return
        self._damaged.add(clone.name)
        if isinstance(error, ChangesetMissing):
            self._replaced.add(clone.name)
        logger.warning("clone damaged, re-created at the next attempt", clone=str(clone), reason=str(error))
        raise CloneUnavailable(f"work.clones: {clone}: damaged, re-created at the next attempt: {error}") from error

    def _find_cause(self, error: HgFailed | OSError, *, is_held: bool) -> None:
        """Raise Unavailable or CloneUnavailable if the cause is here.

        Only our own observations count: Mercurial's messages may quote a host, and must not stop other repositories.
        """
        if trouble := self._find_trouble():
            raise Unavailable(f"work.clones: {self._folder}: {trouble}: {error}") from error
        if is_held:
            raise CloneUnavailable(f"work.clones: {self._folder}: {error}") from error

    @contextlib.contextmanager
    def _hold_lock(self, hg: CommandServer, clone: Path) -> Iterator[None]:
        """Hold the lock of a clone within the block.

        Raises CloneUnavailable if another process holds it, and Unavailable if the folder takes no lock, or the command server is
        ended while this waits.
        """
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)  # an operator may remove it at any time
            lock = os.open(clone.with_name(f".{clone.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            self._find_cause(error, is_held=isinstance(error, PermissionError))
            raise Unavailable(f"work.clones: {self._folder}: cannot be written: {error.strerror}") from error
        until = time.monotonic() + PATIENCE
        try:
            while not self._try_lock(lock):
                if hg.is_ended:
                    raise Unavailable("the worker is stopping")
                if time.monotonic() >= until:
                    raise CloneUnavailable(f"work.clones: {clone}: another process uses it")
                time.sleep(BLINK)
            yield
        finally:
            os.close(lock)

    def _try_lock(self, lock: int) -> bool:
        """Return whether this process has the lock now; raises Unavailable."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Unavailable(f"work.clones: {self._folder}: takes no file locks: {error.strerror}") from error
        return True

    def _find_trouble(self) -> str | None:
        """Return why this machine can keep no clones in the folder, None if it can."""
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix="."):
                free = shutil.disk_usage(self._folder).free
        except OSError as error:
            return f"cannot be written: {error.strerror}"
        return f"{free} bytes are free" if free < LEAST_FREE else None

    def _read_changesets(
        self, hg: CommandServer, repository: RepositoryKey, clone: Path, nodes: Sequence[str], keep: Keep
    ) -> None:
        missing = self._find_missing(hg, clone, nodes)
        if missing:
            self._pull(hg, clone, repository.url)
            missing = self._find_missing(hg, clone, missing)
        if missing:
            raise ChangesetMissing(repository.url, missing[0])
        self._hand_on(hg, clone, nodes, keep)

    def _replace(self, hg: CommandServer, clone: Path, url: str, nodes: Sequence[str]) -> None:
        """Make the clone, or make it anew.

        The former clone stays if that fails, or if it is complete and readable and the new clone lacks a changeset.
        """
        unfinished = self._begin_clone(hg, clone)
        try:
            self._pull(hg, unfinished, url)
            missing = self._find_missing(hg, unfinished, nodes)
            if missing and _is_complete(clone) and _is_readable(hg, clone):
                raise ChangesetMissing(url, missing[0])
            self._remove(clone)
            unfinished.rename(clone)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _begin_clone(self, hg: CommandServer, clone: Path) -> Path:
        """Make an empty repository beside the clone."""
        unfinished = clone.with_name(f".{clone.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        hg.run("init", "--", str(unfinished))
        return unfinished

    def _remove(self, clone: Path) -> None:
        """Remove the clone completely or not at all."""
        removed = clone.with_name(f".{clone.name}.damaged")
        shutil.rmtree(removed, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            clone.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)

    def _pull(self, hg: CommandServer, clone: Path, url: str) -> None:
        remove_stale_locks(clone)
        hg.run("pull", "--quiet", "-R", str(clone), "--", url)

    def _find_missing(self, hg: CommandServer, clone: Path, nodes: Sequence[str]) -> list[str]:
        found: set[str] = set()
        for begin in range(0, len(nodes), AT_ONCE):
            found.update(_list_changesets(hg, clone, nodes[begin : begin + AT_ONCE], "{node}\\n"))
        return [node for node in nodes if node not in found]

    def _hand_on(self, hg: CommandServer, clone: Path, nodes: Sequence[str], keep: Keep) -> None:
        """Read changesets; hand them on in portions of about `PORTION` bytes.

        A single changeset may have up to MOST_OUTPUT bytes.
        """
        begin, size = 0, AT_ONCE
        while begin < len(nodes):
            portion = nodes[begin : begin + size]
            try:
                lines = _list_changesets(
                    hg, clone, portion, _TEMPLATE, most=PORTION if len(portion) > 1 else MOST_OUTPUT
                )
            except TooMuchPrinted as error:
                if len(portion) == 1:
                    raise HgFailed(
                        f"changeset {portion[0]}: text and names of more than {MOST_OUTPUT} bytes"
                    ) from error
                size = len(portion) // 2
                continue
            keep([read_record(line) for line in lines])
            begin += len(portion)
            # As many as would fill most of a portion if the next ones are like these.
            size = min(AT_ONCE, max(1, len(portion) * PORTION * 3 // 4 // max(1, sum(map(len, lines)))))


def _is_complete(clone: Path) -> bool:
    """Return whether there is a clone, and no pull of it was interrupted."""
    store = clone / ".hg" / "store"
    return store.is_dir() and not os.path.lexists(store / "journal")


def _list_changesets(
    hg: CommandServer, clone: Path, nodes: Sequence[str], template: str, *, most: int = MOST_OUTPUT
) -> list[str]:
    """Return a line for each of those changesets that the clone has."""
    wanted = "+".join(f"present({node})" for node in nodes)
    text = hg.run("log", "--hidden", "-R", str(clone), "-r", wanted, "-T", template, most=most)
    return text.split("\n")[:-1]


def _is_known_to_host(hg: CommandServer, url: str, node: str) -> bool:
    """Return whether the host says that it has a changeset."""
    try:
        hg.run("identify", "--id", "-r", node, "--", url)
    except HgFailed:
        return False
    return True


def _is_damaged(hg: CommandServer, url: str, clone: Path, error: HgFailed, failures: int) -> bool:
    """Return whether the cause of a failure is the clone.

    Network errors and our own limits have many forms, so this examines the clone itself, without the network.
    """
    if not os.path.lexists(clone):  # not even its first pull was complete
        return False
    if isinstance(error, ChangesetMissing):
        return failures >= SUSPICIOUS and _is_known_to_host(hg, url, error.node)
    if not error.may_be_the_clone:
        return False
    return error.is_damaged or any(words in str(error) for words in _DAMAGES) or not _is_readable(hg, clone)


def _is_readable(hg: CommandServer, clone: Path) -> bool:
    """Return whether the newest changesets and files of a clone can be read."""
    try:
        hg.run("log", "--hidden", "-R", str(clone), "-r", "last(all(), 10)", "-T", "{files}{phase}")
        hg.run("manifest", "-R", str(clone), "-r", "tip")
    except HgFailed as error:
        return not error.may_be_the_clone
    return True


def read_record(line: str) -> ChangesetRecord:
    try:
        entry: Mapping[str, str] = json.loads(line)
        return ChangesetRecord(
            node=entry["node"],
            author=clean(entry["author"]),
            date=int(entry["date"].split(" ")[0]),
            description=clean(entry["description"]),
            branch=clean(entry["branch"]),
            files=tuple(map(clean, entry["files"])),
        )
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise MalformedEvent(f"a changeset that Mercurial shows in another form: {error}") from error
