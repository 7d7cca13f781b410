# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk that loses, when its power is cut, what was not synced: ext4 in a file, shut down without a last write.

    with RealDisk(tmp_path / "image", root) as disk:
        ...
        disk.cut()     # who used it is killed; below `root` is what was synced, and perhaps more

Needs root. The ioctl is the one that xfstests uses (`EXT4_IOC_SHUTDOWN` of `fs/ext4/ext4.h`).
"""

import fcntl
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

_SHUTDOWN, _NOTHING_WRITTEN = 0x8004587D, struct.pack("I", 2)


class RealDisk:
    """Mounted at `root` while it is entered; its bytes are in the file `image`, `size` of them at most."""

    def __init__(self, image: Path, root: Path, *, size: int) -> None:
        self.root, self._image, self._size = root, image, size
        self._devices = list[str]()

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        self._image.parent.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as file:
            file.truncate(self._size)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()
        (self.root / "lost+found").rmdir()
        return self

    def __exit__(self, *error: object) -> None:
        for device in reversed(self._devices):
            subprocess.run(["umount", "--lazy", self.root], check=False)
            subprocess.run(["losetup", "--detach", device], check=False)

    def cut(self) -> None:
        """Cut the power: what uses the disk is killed, and it is there again with what had reached it."""
        folder = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, _NOTHING_WRITTEN)
        finally:
            os.close(folder)
        for process in self._list_users():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # What the journal has and the kernel would write later: it must not come after the new mount has replayed the journal.
        device = os.open(self._devices[-1], os.O_RDONLY)
        try:
            os.fsync(device)
        finally:
            os.close(device)
        self._mount()

    def _mount(self) -> None:
        """Mount it, over the dead mount of before: no process ever sees an empty folder.

        By a device of its own, since that of before is in use, in other namespaces too.
        """
        self._devices.append(_run("losetup", "--find", "--show", str(self._image)))
        _run("mount", "-o", "barrier=0", self._devices[-1], str(self.root))

    def _list_users(self) -> Iterator[int]:
        """Processes that work or have a file open below, and commands whose line names a path there."""
        root = str(self.root)
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                open_files = [os.readlink(link) for link in (process / "cwd", *(process / "fd").iterdir())]
                words = (process / "cmdline").read_text(errors="replace").split("\0")
                if int(process.name) != os.getpid() and any(
                    word == root or word.startswith(f"{root}/") for word in (*open_files, *words)
                ):
                    yield int(process.name)


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
