# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial's command server: a process that is kept open, within limits.

Its time, memory and output are limited. A command that does not end in time costs the process.

Clones come from other hosts. So Mercurial reads no configuration of a user, host or repository, there are no hooks and no
subrepositories. Our extension `confinement` lets a host name no other address, and ends Mercurial with the worker.
"""

import contextlib
import os
import resource
import select
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from hgext.vcsreplicator.words.errors import ReplicationError, Unavailable

# Bytes that a command may print: names of files take fourteen times as much memory.
MOST_OUTPUT = 64 * 1024**2

# Bytes of a file that a command may write.
LARGEST_FILE = 32 * 1024**3

# Characters of a reason that are kept.
REASON_KEPT = 300
# Bytes of what Mercurial says that are read for them: a host may have it say much.
_REASON_READ = 4096

# Seconds in which Mercurial undoes a pull that is ended; a clone whose pull is not undone is made anew.
GRACE = 10.0

# Exit codes: damaged storage of a repository, and an error of another host.
_STORAGE, _REMOTE = 50, 100

# Exit code for a state that forbids the command, such as a lock that another process holds.
_STATE = 20

# Messages at our own limits: memory, the size of files.
_LIMITS = ("out of memory", "Cannot allocate memory", "File too large")

# Messages of this machine when a disk is full; a host may send them too.
_NO_ROOM = ("No space left on device", "Disk quota exceeded")

# Mercurial's words before an answer that is not Mercurial's: a page may have any words.
_NO_REPOSITORY = "does not appear to be an hg repository"

_OPTIONS = {
    "extensions.confinement": str(Path(__file__).with_name("confinement.py")),
    "extensions.confinement:required": "yes",
    "ui.detailed-exit-code": "yes",
    "ui.interactive": "no",
    "ui.ssh": "false",
    "ui.timeout": "5",
    "ui.clonebundles": "no",
    "ui.report_untrusted": "no",
    "subrepos.allowed": "no",
    "worker.enabled": "no",
    "http.timeout": "60",
}

# Kept variables of the environment; the operator sets proxies.
_KEPT = ("PATH", "HOME", "TMPDIR", "http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY")


# In place of an exit code: the process ended during a command, for example by an unexpected exception.
CRASHED = -1


class HgFailed(ReplicationError):
    """A command of Mercurial failed; it may succeed later.

    `code` is its exit code, `CRASHED` if its process ended, and None if it was ended because it took or printed too much.
    """

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code

    @property
    def is_damaged(self) -> bool:
        """Whether Mercurial cannot read the storage of a repository."""
        return self.code == _STORAGE

    @property
    def is_of_host(self) -> bool:
        """Whether a host refused, cannot be reached, or answered with a page of its own."""
        return self.code == _REMOTE or _NO_REPOSITORY in str(self)

    @property
    def may_be_the_clone(self) -> bool:
        """Whether a damaged clone may be the cause: not our limits, not another host.

        A host or network that fails has other exit codes too.
        """
        is_limit = self.code is None or any(words in str(self) for words in _LIMITS)
        return not (is_limit or self.is_of_host or self.lacked_room or self.is_locked)

    @property
    def is_locked(self) -> bool:
        """Whether a repository is locked, or another user's."""
        has_no_right = not self.is_of_host and "Permission denied" in str(self)
        return has_no_right or (self.code == _STATE and " lock" in str(self))

    @property
    def lacked_room(self) -> bool:
        """Whether a disk of this machine was full, until Mercurial undid its work."""
        return not self.is_of_host and any(words in str(self) for words in _NO_ROOM)


class _LimitReached(Exception):
    """A command asks for input."""


class TooMuchPrinted(HgFailed):
    """A command printed more than it may."""


class CommandServer:
    """One process of Mercurial, for one thread at a time.

    Any thread may call `end`; `is_ended` says whether one did.
    """

    def __init__(self, *, timeout: float, memory: int, ca_file: str | None = None) -> None:
        self._timeout, self._memory = timeout, memory
        self._options = {**_OPTIONS, **({} if ca_file is None else {"web.cacerts": ca_file})}
        self._process: subprocess.Popen[bytes] | None = None
        self._starting, self.is_ended = threading.Lock(), False
        self._until, self._output_limit = 0.0, MOST_OUTPUT

    def run(self, *arguments: str, most: int = MOST_OUTPUT) -> str:
        """Run a command; return what it prints, at most so many bytes.

        Raises HgFailed, TooMuchPrinted, or Unavailable if Mercurial cannot be started; after `end` it never is.
        """
        if self.is_ended:
            raise Unavailable("the worker is stopping")
        self._output_limit = most
        self._until = time.monotonic() + self._timeout
        try:
            process = self._start() if self._process is None else self._process
            text = b"\0".join(argument.encode("utf-8", "surrogateescape") for argument in arguments)
            assert process.stdin is not None
            process.stdin.write(b"runcommand\n" + struct.pack(">I", len(text)) + text)
            process.stdin.flush()
            output, errors, code = self._read_result(process)
        except TooMuchPrinted:
            self.close()
            raise
        except (_LimitReached, TimeoutError) as error:
            self.close()
            raise HgFailed(f"hg {arguments[0]}: {error}") from error
        except (OSError, EOFError) as error:
            self.close()
            raise HgFailed(f"hg {arguments[0]}: {str(error) or 'its process ended'}", CRASHED) from error
        if code:
            said = " ".join(errors[-_REASON_READ:].decode("utf-8", "replace").split())
            reason = f"hg {arguments[0]}: exit code {code}: {said[-REASON_KEPT:]}"
            raise HgFailed(reason, code)
        return output.decode("utf-8", "replace")

    def end(self) -> None:
        """End the process, even amid a command, for good; any thread may call this.

        The command may undo its work before, for `GRACE` seconds.
        """
        with self._starting:
            self.is_ended = True
            if self._process is not None:
                self._process.terminate()
                killing = threading.Timer(GRACE, self._process.kill)
                killing.daemon = True
                killing.start()

    def close(self) -> None:
        """End the process as `end` does, and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            # Closing fails if it had not read all its input.
            with contextlib.suppress(OSError, subprocess.TimeoutExpired), process:
                process.terminate()
                try:
                    process.communicate(timeout=GRACE)
                finally:
                    process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        hg = Path(sys.executable).with_name("hg")
        options = [word for name, value in self._options.items() for word in ("--config", f"{name}={value}")]
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment |= {"HGPLAIN": "1", "HGENCODING": "utf-8", "HGRCPATH": "", "HGRCSKIPREPO": "1", "LC_ALL": "C.UTF-8"}
        with self._starting:
            if self.is_ended:
                raise Unavailable("the worker is stopping")
            try:
                self._process = process = subprocess.Popen(
                    [str(hg) if hg.exists() else "hg", "serve", "--cmdserver", "pipe", *options],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    cwd="/",
                )
            except OSError as error:
                raise Unavailable(f"hg cannot be started: {error.strerror}") from error
        try:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (self._memory, self._memory))
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
            self._read_chunk(process)  # its greeting
        except (OSError, EOFError) as error:
            self.close()
            raise Unavailable(f"hg cannot be started: {str(error) or 'its process ended'}") from error
        return process

    def _read_result(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes, int]:
        output: list[bytes] = []
        errors: list[bytes] = []
        size = 0
        while True:
            channel, content = self._read_chunk(process)
            size += len(content)
            if size > self._output_limit:
                raise TooMuchPrinted(f"hg: more than {self._output_limit} bytes printed")
            if channel == b"o":
                output.append(content)
            elif channel == b"r":
                return b"".join(output), b"".join(errors), struct.unpack(">i", content)[0]
            elif channel == b"e":
                errors.append(content)
            elif channel.isupper():
                raise _LimitReached(f"it asks for input (channel {channel!r})")

    def _read_chunk(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
        channel, length = struct.unpack(">cI", self._read_exactly(process, 5))
        if channel in b"IL":
            return channel, b""
        if length > self._output_limit:
            raise TooMuchPrinted(f"hg: more than {self._output_limit} bytes printed")
        return channel, self._read_exactly(process, length)

    def _read_exactly(self, process: subprocess.Popen[bytes], size: int) -> bytes:
        assert process.stdout is not None
        descriptor, parts = process.stdout.fileno(), []
        while size:
            left = self._until - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError(f"did not end within {self._timeout:g} s")
            part = os.read(descriptor, min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
