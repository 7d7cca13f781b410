# SPDX-License-Identifier: GPL-2.0-or-later
"""What a power cut can leave of a folder: a process's system calls replayed on a disk that keeps only what it must.

    trace = Trace(log=tmp_path / "trace")
    disk = Disk.of(folder)                 # as it is before
    run([*trace.argv(), "hg", …])
    for call in trace.calls():
        if call.is_sync:
            write(disk.worst(), folder)    # as the cut before this call leaves it
        disk.take(call)

The disk is a journalling one. Names (creations, renames, removals) reach it in their order; a sync of anything takes those before
it along. Content reaches it file by file in any order; a sync takes that of its own file. What was not synced may be there, or
not; but a file does not grow before the names are there that were made before it grew, because its size is kept with them. Its
size may be there without its content, which then is zeros.
"""

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from testing.services.process import needed

_NAMES = "mkdir,mkdirat,rmdir,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat"
_CONTENT = (
    "openat,creat,close,lseek,write,pwrite64,writev,pwritev,truncate,ftruncate,fallocate,copy_file_range,sendfile"
)
_SYNCS = ("fsync", "fdatasync", "syncfs", "sync")
_HEX = r"(?:\\x[0-9a-f]{2})*"
_CALL = re.compile(rf"^(\w+)\((.*)\) += (-?\d+)(?:<{_HEX}>)?(?: .*)?$")
_TEXT = re.compile(rf'"({_HEX})"')
# A path, and before it the open folder from which it leads, if it is one.
_PATH = re.compile(rf'(?:\d+<({_HEX})>, )?"({_HEX})"')
_FILE = re.compile(rf"^(\d+)<({_HEX})>")
_LOCKS = {"lock", "wlock"}


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that succeeded: its name, its arguments as strace prints them, what it returned."""

    name: str
    arguments: str
    result: int

    @property
    def is_sync(self) -> bool:
        return self.name in _SYNCS

    @property
    def texts(self) -> list[bytes]:
        return [_bytes(text) for text in _TEXT.findall(self.arguments)]

    @property
    def file(self) -> int:
        """The file descriptor that is its first argument, -1 for none."""
        match = _FILE.match(self.arguments)
        return int(match[1]) if match else -1

    @property
    def place(self) -> str:
        """The path of that file."""
        match = _FILE.match(self.arguments)
        return os.fsdecode(_bytes(match[2])) if match else ""

    @property
    def numbers(self) -> list[int]:
        """The plain numbers among its arguments, those before a text left out."""
        return [int(word) for word in self.arguments.rpartition('"')[2].split(", ") if word.lstrip("-").isdigit()]


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that one process writes; its children are left alone."""

    log: Path

    def argv(self) -> list[str]:
        """What goes before the command."""
        wanted = ",".join((_NAMES, _CONTENT, *_SYNCS))
        strace = [needed("strace", "strace"), "-qq", "-y", "-xx", "-s", "100000000", "-E", "PYTHONDONTWRITEBYTECODE=1"]
        return [*strace, "-e", f"trace={wanted}", "-o", str(self.log), "--"]

    def calls(self) -> Iterator[Call]:
        """The calls that succeeded, in their order."""
        for line in self.log.read_text(encoding="ascii").splitlines():
            match = _CALL.match(line)
            if match and int(match[3]) >= 0:
                yield Call(match[1], match[2], int(match[3]))


@dataclass(eq=False, slots=True)
class File:
    """Every content that a file has had, and how many changes of names were before it; `safe` numbers the one synced last."""

    contents: list[bytes]
    names: list[int] = field(default_factory=lambda: [0])
    safe: int = 0

    def become(self, content: bytes, names: int) -> None:
        """Another content, that many names having been changed; before it, if it is longer, zeros in place of what was added."""
        known = self.contents[-1]
        grown = [known.ljust(len(content), b"\0")] if len(content) > len(known) else []
        self.names += [names if grown else 0] * (1 + len(grown))
        self.contents += [*grown, content]

    def find_zeros(self) -> int:
        """The number of the newest content with zeros at its end that is not safe, else of the safe one."""
        grown = (at for at in range(len(self.contents) - 1, self.safe, -1) if self.contents[at].endswith(b"\0"))
        return next(grown, self.safe)


@dataclass(slots=True)
class _Open:
    file: File | None  # None for a folder
    offset: int = 0
    appends: bool = False


Names = dict[str, File | bytes | None]  # path → file, target of a link, or None for a folder
State = dict[str, bytes | tuple[bytes] | None]  # path → content, (target of a link,), or None for a folder


@dataclass(slots=True)
class Disk:
    """A folder on a disk, `taken` being what was done to its names since and `safe` how much of that is on the disk for sure."""

    folder: str
    before: Names = field(default_factory=dict)
    taken: list[Names | tuple[str, ...]] = field(default_factory=list)
    safe: int = 0
    now: Names = field(default_factory=dict)
    opened: dict[int, _Open] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: str) -> "Disk":
        """The disk as it is, everything on it for sure."""
        disk = cls(folder=folder)
        seen: dict[int, File] = {}
        for path in sorted(Path(folder).rglob("*")):
            status = path.lstat()
            if path.is_symlink():
                disk.before[str(path)] = os.fsencode(os.readlink(path))
            elif path.is_dir():
                disk.before[str(path)] = None
            else:
                disk.before[str(path)] = seen.setdefault(status.st_ino, File([path.read_bytes()]))
        disk.now = dict(disk.before)
        return disk

    def take(self, call: Call) -> None:
        """Does the call; passes over a call that concerns another folder. Raises AssertionError for an unknown call."""
        known = getattr(self, f"_{call.name}", None)
        if known is not None:
            known(call)
        else:
            assert self.folder not in _decoded(call.arguments), f"{call.name}: not known to this disk"

    def present(self) -> State:
        """What a process sees."""
        return {path: _state(node, lambda file: len(file.contents) - 1) for path, node in self.now.items()}

    def worst(self) -> State:
        """What is there for sure, and nothing else."""
        return self.cut(self.safe, lambda file: file.safe)

    def cut(self, names: int, content: Callable[[File], int]) -> State:
        """At least as many changes of names as that, and of each file the content with that number."""
        files = [node for node in (*self.before.values(), *self.now.values()) if isinstance(node, File)]
        names = max([names, *(max(file.names[: content(file) + 1]) for file in files)])
        left = dict(self.before)
        for change in self.taken[:names]:
            _change(left, change)
        return {path: _state(node, content) for path, node in left.items()}

    def cuts(self, chance: random.Random, count: int) -> Iterator[State]:
        """The worst first; then with all names and no content, no names and all content, zeros; then `count` by chance."""
        last = len(self.taken)
        yield self.worst()
        yield self.cut(last, lambda file: file.safe)
        yield self.cut(self.safe, lambda file: len(file.contents) - 1)
        yield self.cut(self.safe, File.find_zeros)
        for _ in range(count):
            numbers: dict[int, int] = {}

            def content(file: File, numbers: dict[int, int] = numbers) -> int:
                either = (file.safe, len(file.contents) - 1, chance.randint(file.safe, len(file.contents) - 1))
                return numbers.setdefault(id(file), chance.choice(either))

            yield self.cut(chance.randint(self.safe, last), content)

    # How each call is carried out.

    def _openat(self, call: Call) -> None:
        path, flags = self._paths(call)[0], call.arguments
        if not self._is_here(path):
            self.opened.pop(call.result, None)
            return
        node = self.now.get(path)
        if "O_CREAT" in flags and path not in self.now:
            node = File([b""])
            self._rename({path: node})
        elif "O_TRUNC" in flags and isinstance(node, File) and node.contents[-1]:
            node.become(b"", len(self.taken))
        self.opened[call.result] = _Open(node if isinstance(node, File) else None, appends="O_APPEND" in flags)

    def _close(self, call: Call) -> None:
        self.opened.pop(call.file, None)

    def _lseek(self, call: Call) -> None:
        if call.file in self.opened:
            self.opened[call.file].offset = call.result

    def _write(self, call: Call) -> None:
        there = self.opened.get(call.file)
        if there is not None and there.file is not None:
            offset = len(there.file.contents[-1]) if there.appends else there.offset
            self._put(there.file, offset, call.texts[0][: call.result])
            there.offset = offset + call.result

    def _pwrite64(self, call: Call) -> None:
        there = self.opened.get(call.file)
        if there is not None and there.file is not None:
            self._put(there.file, call.numbers[-1], call.texts[0][: call.result])

    def _ftruncate(self, call: Call) -> None:
        there = self.opened.get(call.file)
        if there is not None and there.file is not None:
            size = call.numbers[-1]
            there.file.become(there.file.contents[-1][:size].ljust(size, b"\0"), len(self.taken))

    def _fsync(self, call: Call) -> None:
        there = self.opened.get(call.file)
        if there is not None:
            self.safe = len(self.taken)
            if there.file is not None:
                there.file.safe = len(there.file.contents) - 1

    _fdatasync = _fsync

    def _syncfs(self, _call: Call) -> None:
        self.safe = len(self.taken)
        for node in self.now.values():
            if isinstance(node, File):
                node.safe = len(node.contents) - 1

    def _mkdir(self, call: Call) -> None:
        path = self._paths(call)[0]
        if self._is_here(path):
            self._rename({path: None})

    def _symlink(self, call: Call) -> None:
        target, path = call.texts[0], self._paths(call)[-1]
        if self._is_here(path):
            self._rename({path: target})

    def _link(self, call: Call) -> None:
        source, path = self._paths(call)
        if self._is_here(path):
            self._rename({path: self.now[source]})

    _linkat = _link  # since Python 3.14, with the current folder

    def _unlink(self, call: Call) -> None:
        path = self._paths(call)[0]
        if path in self.now:
            self._rename((path,))

    _rmdir = _unlink

    def _rename(self, change: Call | Names | tuple[str, ...]) -> None:
        if isinstance(change, Call):
            source, target = self._paths(change)
            if source not in self.now:
                assert not self._is_here(target), f"{source} was moved here"
                return
            node = self.now[source]
            assert node is not None, "a folder was moved"
            change = (source,) if not self._is_here(target) else {target: node, source: _GONE}
        _change(self.now, change)
        self.taken.append(change)

    def _put(self, file: File, offset: int, data: bytes) -> None:
        content = file.contents[-1].ljust(offset, b"\0")
        file.become(content[:offset] + data + content[offset + len(data) :], len(self.taken))

    def _paths(self, call: Call) -> list[str]:
        found = (os.path.join(_bytes(folder), _bytes(text)) for folder, text in _PATH.findall(call.arguments))
        return [os.fsdecode(os.path.abspath(path)) for path in found]

    def _is_here(self, path: str) -> bool:
        return path.startswith(self.folder + "/")


_GONE = File([])


def _change(names: Names, change: Names | tuple[str, ...]) -> None:
    if isinstance(change, tuple):
        names.pop(change[0], None)
        return
    for path, node in change.items():
        if node is _GONE:
            names.pop(path, None)
        else:
            names[path] = node


def _state(node: File | bytes | None, content: Callable[[File], int]) -> bytes | tuple[bytes] | None:
    if isinstance(node, File):
        return node.contents[content(node)]
    return None if node is None else (node,)


def write(state: State, folder: str) -> None:
    """Lets the folder be this; locks of processes that are gone are left out."""
    shutil.rmtree(folder)
    os.makedirs(folder)
    for path, node in sorted(state.items()):
        if node is None:
            os.makedirs(path, exist_ok=True)
        elif isinstance(node, tuple):
            if os.path.basename(path) not in _LOCKS:
                os.symlink(node[0], path)
        else:
            Path(path).write_bytes(node)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _decoded(arguments: str) -> str:
    return re.sub(r"(?:\\x[0-9a-f]{2})+", lambda match: _bytes(match[0]).decode("utf-8", "replace"), arguments)
