# SPDX-License-Identifier: GPL-2.0-or-later
"""Unexpected exceptions while a service handles one record.

The record becomes a reject, and the service goes on. Half-done work on the record must not count: the caller discards it and
repeats the work without the record. A shortage of the machine, such as of memory or of space on a disk, is not a fault of the
record.
"""

import traceback
from dataclasses import dataclass

from .errors import Rejected, ReplicationError
from .passing import is_passing

# Characters of a traceback that are kept: the last ones.
TRACEBACK_KEPT = 16 * 1024

# Characters of a reason.
REASON_KEPT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An exception: a line for an operator, and the traceback for a developer."""

    reason: str
    traceback: str


class UnexpectedError(Rejected):
    """A record or message that cannot be handled because of an unexpected exception."""

    def __init__(self, found: Fault) -> None:
        super().__init__(found.reason)
        self.traceback = found.traceback


def fault(error: Exception) -> Fault | None:
    """Describe an unexpected exception.

    None for one of this project's errors, and for an error that may pass, such as a shortage of the machine.
    """
    if isinstance(error, ReplicationError | MemoryError) or is_passing(error):
        return None
    try:
        text = str(error)
    except Exception as other:  # making the text may fail too, for example at the digits of an endless number
        text = f"no text: {type(other).__name__}"
    reason = f"unexpected {type(error).__name__}: {text}"[:REASON_KEPT]
    return Fault(reason=" ".join(reason.split()), traceback="".join(_format_traceback(error))[-TRACEBACK_KEPT:])


def _format_traceback(error: Exception) -> list[str]:
    try:
        return traceback.format_exception(error)
    except Exception:
        return traceback.format_tb(error.__traceback__)
