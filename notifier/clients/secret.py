# SPDX-License-Identifier: GPL-2.0-or-later
"""Secrets: read when needed, never printed, never part of settings.

password = { env = "PULSE_PASSWORD" }
password = { file = "/etc/vcsreplicator/pulse.password" }      # not readable by others
password = { command = ["pass", "show", "pulse"] }             # what it prints, last newline dropped
"""

import os
import subprocess
from dataclasses import dataclass

from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.secrecy import read_secret
from hgext.vcsreplicator.words.shape import absolute, withheld

# Seconds that a command may take.
COMMAND_PATIENCE = 10.0
# Bytes of a secret.
MAX_SECRET = 64 * 1024


@withheld('{ file = "/PATH" }, { env = "NAME" } or { command = ["PROGRAM"] }; the secret itself does not belong here')
@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret's place: exactly one of `env`, `file`, `command`."""

    env: str | None = None
    file: str | None = None
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if sum(map(bool, (self.env, self.file, self.command))) != 1:
            raise ValueError("secret: expected one of env, file, command")
        if self.file:
            absolute(self, "file")

    @property
    def place(self) -> str:
        """Where an operator corrects the secret, for messages."""
        return self.file or (f"the environment variable {self.env}" if self.env else self.command[0])

    def read(self, key: str = "secret") -> str:
        """Return the present secret; BadConfig names `key` and place, never the content."""
        try:
            if self.file:
                return self._from_file(self.file)
            if self.command:
                return self._from_command()
            if value := os.environ.get(self.env or ""):
                return value
            raise BadConfig(f"the environment variable {self.env} is not set")
        except BadConfig as error:
            raise BadConfig(f"{key}: {error}") from error

    def _from_file(self, path: str) -> str:
        try:
            return _decode_text(read_secret(path, MAX_SECRET), path)
        except OSError as error:
            raise BadConfig(f"{path} cannot be read: {error.strerror}") from error

    def _from_command(self) -> str:
        name = self.command[0]
        try:
            result = subprocess.run(
                self.command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_PATIENCE, check=False
            )
        except OSError as error:
            raise BadConfig(f"{name} cannot be run: {error.strerror}") from error
        except subprocess.TimeoutExpired:
            raise BadConfig(f"{name} gave no answer in {COMMAND_PATIENCE:.0f} s") from None
        if result.returncode:
            raise BadConfig(f"{name} failed with exit code {result.returncode}")
        return _decode_text(result.stdout, name)


def _decode_text(data: bytes, where: str) -> str:
    try:
        value = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadConfig(f"{where} is not UTF-8") from None
    if not value:
        raise BadConfig(f"{where} is empty")
    return value
