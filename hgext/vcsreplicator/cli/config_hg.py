# SPDX-License-Identifier: GPL-2.0-or-later
"""The `hg` that `config check` asks, of this or another environment."""

import os
import subprocess
import sys
from pathlib import Path

from ..words.errors import BadConfig

# Seconds that a command may take.
PATIENCE = 60.0


class AskedHg:
    """An `hg` that reads one hgrc; without a program that of this installation.

    `where` names the hgrc in messages; `file` is None if HGRCPATH stays as it is.
    """

    def __init__(self, program: str | None, where: str, file: str | None) -> None:
        self._where = where
        # The PATH that sudo sets lacks the folder of an installation of its own, such as /opt/vcsreplicator/bin.
        own = Path(sys.executable).with_name("hg")
        self.program = program or (str(own) if own.exists() else "hg")
        if os.sep in self.program:
            self.program = os.path.abspath(self.program)
        self._environment = {**os.environ, "HGPLAIN": "1"}
        if file is not None:
            self._environment["HGRCPATH"] = os.path.abspath(file)

    def ask(self, *arguments: str, reads_hgrc: bool = True) -> list[str]:
        """Run a command in the root folder, and return its lines.

        Raises BadConfig with its message if it fails or hangs, FileNotFoundError if the program is missing. `hg config` also ends
        with 1 if it has nothing to print.
        """
        verb = arguments[2] if arguments[0] == "-R" else arguments[0]
        where = f"{self._where}: {os.path.basename(self.program)} {verb}"
        try:
            done = subprocess.run(
                [self.program, *arguments],
                cwd="/",
                env=self._environment if reads_hgrc else {**self._environment, "HGRCPATH": ""},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired as error:
            raise BadConfig(f"{where}: {self.program} did not end within {PATIENCE:g} s") from error
        except FileNotFoundError:
            raise
        except OSError as error:
            raise BadConfig(f"{where}: {self.program} cannot run: {error.strerror}") from error
        if done.returncode and (verb != "config" or done.stderr):
            lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
            reasons = [line for line in lines if line.startswith(("abort:", "config error:"))]
            raise BadConfig(f"{where}: {(reasons or lines[-1:])[0].removeprefix('config error: ')}")
        return done.stdout.splitlines()
