# SPDX-License-Identifier: GPL-2.0-or-later
"""An operator of a master, who creates, strips, renames and deletes repositories under load, and pushes to them in between."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from testing.builders.developer import Developer, Killed
from testing.builders.load import PATIENCE, Pusher, write_durably

DRAFTS = "[phases]\npublish = no\n"


class Operator(Pusher):
    """Changes repositories of its own until it is stopped; the load says what it did."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._server = Developer(self._cluster.folder, self._cluster.about["master"]["env"], is_warm=False)

    def end_command(self) -> None:
        """Kill the process of what is typed on the master now, if there is one."""
        self._server.kill()

    def run(self) -> None:
        try:
            with self.developer, self._server:
                number = 0
                while not self._stop_asked.wait(1.0):
                    if self._random.random() < 0.5:
                        self._act(f"acts-here-{number % 4}", f"acts-renamed-{number % 4}")
                    else:
                        self._act(f"acts-{number % 4}")
                    number += 1
        except Exception as error:
            self._load.failed.append(f"{self.name}: {type(error).__name__}: {error}")

    def _act(self, name: str, new: str = "") -> None:
        """One life of a repository, which ends at its path, or after a rename at the new one."""
        folder, renamed = self._cluster.repository(name), self._cluster.repository(new)

        def is_made() -> bool:
            if not (folder / ".hg/requires").exists():
                shutil.rmtree(folder, ignore_errors=True)  # half of it, since its disk took no more
                return False
            return True

        self._until(is_made, "init", str(folder))
        _write(folder / ".hg/hgrc", DRAFTS)
        self._load.living.add(name)
        self._load.acted.append(("newrepo.1", name))
        with self.working:
            shutil.rmtree(self._cluster.folder / "work" / name, ignore_errors=True)
            clone = self._clone(name)
        self._push_to(name, clone)
        _write(folder / ".hg/hgrc", f"{DRAFTS}[web]\ndescription = {time.time()}\n")
        self._until(lambda: True, "-R", str(folder), "replicatehgrc")
        head = self._push_to(name, clone)
        has_head = ("-R", str(folder), "log", "-r", head)
        strip = ("-R", str(folder), "strip", "--no-backup", "-r", head, "--config", "extensions.strip=")
        self._until(lambda: self._server.hg(*has_head)[0] != 0, *strip)
        if new:
            self._until(
                lambda: not folder.exists() and renamed.exists(),
                "-R",
                str(folder),
                "replicaterename",
                "--yes",
                str(renamed),
            )
            self._load.acted.append(("reporenamed.1", new))
            self._load.living ^= {name, new}
            name, folder = new, renamed
        self._until(lambda: not folder.exists(), "-R", str(folder), "replicatedelete", "--yes")
        self._load.acted.append(("repodeleted.1", name))
        self._load.living.remove(name)

    def _push_to(self, name: str, clone: Path) -> str:
        with self.working:
            head = self._work(name, clone)
        self._push(name, clone, head)
        return head

    def _until(self, is_done: Callable[[], bool], *words: str) -> None:
        """Type a command on the master until what it is for is so."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                code, output = self._server.hg(*words)
            except Killed:
                code, output = -1, "killed"
            with suppress(OSError, Killed):  # the disk may be away, or this look is killed
                if is_done():
                    return
            if time.monotonic() > end:
                raise AssertionError(f"hg {' '.join(words)}: exit {code}: {output}")
            time.sleep(0.5)


def _write(file: Path, text: str) -> None:
    """Write a file; again if its disk takes no writes, which is a fault of a campaign."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            write_durably(file, text)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
        else:
            return
