# SPDX-License-Identifier: GPL-2.0-or-later
"""A finding, and the words that findings share. Pure."""

import enum
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..words.clock import format_duration
from ..words.records import RepositoryState, RoundProgress

# Most repositories that a finding names.
NAMED = 3


class Severity(enum.IntEnum):
    """How soon an operator must act; the numbers are the exit codes of `check`."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that an operator must know; `text` is one line that says what to do.

    `command` is what to type first, and ends the text. `entry` is the heading of the runbook's entry. `mirror` and
    `repository` (an id) are what it is about. The names of the members are keys of `status --json` and `check --json`.
    """

    level: Severity
    text: str
    command: str | None = None
    entry: str | None = None
    mirror: str | None = None
    repository: str | None = None


def describe_lag(who: str, what: str, since: str, command: str, *, is_critical: bool, **members: str) -> Finding:
    """Describe a mirror or a destination that is behind."""
    severity = Severity.CRITICAL if is_critical else Severity.WARNING
    return Finding(level=severity, text=f"{who} is {what} behind ({since}); see: {command}", command=command, **members)


def name_trace(state: RepositoryState) -> str:
    """Return the command that says what the repository waits for."""
    return f"vcsreplicator trace {shlex.quote(state.path)}"


def name_paths(paths: Sequence[str], most: int = NAMED) -> str:
    """Name the first repositories, at most so many, and count the others."""
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more


def describe_round(progress: RoundProgress, oldest: str) -> str:
    """Say how far `verify` is with a mirror; `oldest` is the age of the oldest comparison, in words."""
    parts = [oldest if progress.oldest else "not all yet", f"{progress.done} of {progress.total} in this round"]
    parts += [f"{progress.differing} differ"] if progress.differing else []
    parts += [f"{progress.failing} not compared"] if progress.failing else []
    return ", ".join(parts)


def format_since(then: float, now: float) -> str:
    """Say how long something lasts, and since when."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(then))
    return f"for {format_duration(max(0.0, now - then))}, since {at} UTC"
