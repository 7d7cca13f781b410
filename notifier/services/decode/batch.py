# SPDX-License-Identifier: GPL-2.0-or-later
"""Files of raw messages, decoded for backfill into a folder.

The folder gets `<namespace>.<type>.ndjson` for each type, and `errors.ndjson`, whose lines can be decoded again. The files get
these names only after all are written completely; ids are remembered after that. A run that fails leaves no file. One that is
killed leaves files whose names end with `.partial`, or all outputs without their ids remembered: a second run decodes the same.
"""

import contextlib
import gzip
import io
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from hgext.vcsreplicator.log import LARGEST
from hgext.vcsreplicator.log.blobs import sync_folder
from hgext.vcsreplicator.words.errors import Refused

from ...messages.raw import RawMessage, to_line
from .decoding import Tools, decode, list_identities, reject_repeat
from .rejection import DecodeReject, ErrorType
from .repeats import Repeats

# Suffixes of files of raw messages.
SUFFIXES = (".ndjson", ".ndjson.gz", ".ndjson.zst")

# Files of the folder that are being written.
_PARTIAL = ".partial"

_ERRORS = "errors"

# Messages whose ids are looked up together.
_BATCH = 500

# A line with its file and number.
_Line = tuple[bytes, Path, int]


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of raw messages in these files and folders.

    Raises Refused for a given file whose name ends with none of `SUFFIXES`, and if it finds no file.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(each for each in path.rglob("*") if each.name.endswith(SUFFIXES) and each.is_file())
        elif path.name.endswith(SUFFIXES):
            found.append(path)
        else:
            raise Refused(f"{path}: expected a folder, or a name that ends with one of {', '.join(SUFFIXES)}")
    if not found:
        raise Refused(f"{paths[0]}: expected files whose names end with one of {', '.join(SUFFIXES)}, found none")
    return found


def decode_files(
    files: Sequence[Path], folder: Path, tools: Tools, repeats: Repeats, advance: Callable[[int], None]
) -> Counter[str]:
    """Decode all lines of these files into the folder; return the counts.

    The counts are the number of decoded messages and, by type of error, of rejects. Calls `advance` with the number of bytes of
    input read since the last call. Raises Refused for a file that cannot be read, and for an output that exists already or cannot
    be written; then the folder is as it was.
    """
    try:
        with contextlib.closing(_OutputFolder(folder)) as output:
            run = _Run(tools, repeats, output)
            lines = (line for file in files for line in _read_lines(file, advance))
            while batch := list(islice(lines, _BATCH)):
                run.decode(batch)
            output.finish()
    except OSError as error:
        raise Refused(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    identities = iter(run.delivered)
    while some := list(islice(identities, _BATCH)):
        repeats.remember(some)
    return run.counts


@dataclass(slots=True)
class _Run:
    """The decoding of all files; `delivered` is remembered at the end."""

    tools: Tools
    repeats: Repeats
    output: "_OutputFolder"
    delivered: dict[bytes, None] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def decode(self, lines: Sequence[_Line]) -> None:
        """Decode some lines into the folder."""
        results = [decode(line, self.tools) for line, _, _ in lines]
        known = self.repeats.known(list_identities(results))
        for result, (_, file, number) in zip(results, lines, strict=True):
            if isinstance(result, DecodeReject):
                self._reject(result, f"{file}:{number}")
            elif result.identity in known or result.identity in self.delivered:
                self._reject(reject_repeat(result), f"{file}:{number}")
            else:
                self.output.write(result.route, result.body)
                self.counts["decoded"] += 1
                self.delivered.update(dict.fromkeys(list_identities([result])))

    def _reject(self, reject: DecodeReject, place: str) -> None:
        raw = reject.as_raw()
        if reject.kind == ErrorType.FORM:
            raw = RawMessage(raw.payload, {**raw.attributes, "error_place": place})
        self.output.write(_ERRORS, to_line(raw))
        self.counts[reject.kind] += 1


class _OutputFolder:
    """The folder of outputs; `close` without `finish` leaves no file of the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, BinaryIO] = {}
        # Files with their final names, until all have them.
        self._renamed: list[Path] = []
        path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, line: bytes) -> None:
        """Append a line to the file of this name."""
        file = self._files.get(name)
        if file is None:
            if (final := self._path / f"{name}.ndjson").exists():
                raise Refused(f"{final} exists; give a folder without it")
            file = self._files[name] = open(self._name_partial(name), "wb")  # noqa: SIM115
        file.write(line + b"\n")

    def finish(self) -> None:
        """Sync all files, and rename them to their final names."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        for name in self._files:
            final = self._path / f"{name}.ndjson"
            os.replace(self._name_partial(name), final)
            self._renamed.append(final)
        sync_folder(self._path)
        self._renamed.clear()

    def close(self) -> None:
        """Close the files, and remove them unless all have their final names."""
        for name, file in self._files.items():
            with contextlib.suppress(OSError):  # a full disk fails again when the rest is written
                file.close()
            self._name_partial(name).unlink(missing_ok=True)
        for final in self._renamed:
            final.unlink(missing_ok=True)

    def _name_partial(self, name: str) -> Path:
        return self._path / f"{name}.ndjson{_PARTIAL}"


def _read_lines(file: Path, advance: Callable[[int], None]) -> Iterator[_Line]:
    """Yield the lines of a file, unpacked.

    Raises Refused, which names the file, and the line unless the file cannot be read.
    """
    number = 0
    try:
        with open(file, "rb") as packed:
            read = 0
            content = _open_unpacked(file, packed)
            while line := content.readline(LARGEST + 1):
                number += 1
                if len(line) > LARGEST:
                    raise Refused(f"{file}:{number}: a line of more than {LARGEST} bytes")
                before, read = read, packed.tell()
                advance(read - before)
                if line.strip():
                    yield line, file, number
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise Refused(f"{file}: broken after line {number}") from error
    except OSError as error:
        raise Refused(f"{file}: cannot be read: {error.strerror or 'not gzip'}") from error


def _open_unpacked(file: Path, packed: BinaryIO) -> io.BufferedIOBase | BinaryIO:
    if file.name.endswith(".gz"):
        return gzip.GzipFile(fileobj=packed)
    if file.name.endswith(".zst"):
        return io.BufferedReader(_ZstdFrames(packed))
    return packed


class _ZstdFrames(io.RawIOBase):
    """The content of zstd frames.

    Raises EOFError if the last frame is cut short, which the library's own reader ignores.
    """

    def __init__(self, packed: BinaryIO) -> None:
        self._packed, self._frame = packed, zstandard.ZstdDecompressor().decompressobj()
        self._is_within = False
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into the buffer; return their number, 0 at the end."""
        while not self._content:
            chunk = self._frame.unused_data if self._frame.eof else b""
            chunk = chunk or self._packed.read(4096)
            if not chunk:
                if self._is_within:
                    raise EOFError("cut short")
                return 0
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._content = memoryview(self._frame.decompress(chunk))
            self._is_within = not self._frame.eof
        size = min(len(buffer), len(self._content))
        buffer[:size], self._content = self._content[:size], self._content[size:]
        return size
