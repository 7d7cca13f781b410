# SPDX-License-Identifier: GPL-2.0-or-later
"""Unexpected exceptions while a service handles one record.

The record becomes a reject, and the service goes on. Half-done work on the record must not count: the caller discards it and
repeats the work without the record. A shortage of the machine, such as of memory or of space on a disk, is not a fault of the
record.
"""

import traceback

from .errors import Rejected, ReplicationError
from .passing import is_passing

# Characters of a traceback that are kept: the last ones.
TRACEBACK_KEPT = 16 * 1024

# Characters of a reason.
REASON_KEPT = 300

# The reason of an error for which memory was lacking.
OUT_OF_MEMORY = "more memory is needed than this process may use"


class UnexpectedError(Rejected):
    """A record or message that cannot be handled because of an unexpected exception.

    `reason` is a line for an operator, `traceback` is for a developer.
    """

    def __init__(self, reason: str, traceback: str) -> None:
        super().__init__(reason)
        self.reason, self.traceback = reason, traceback


def fault(error: Exception) -> UnexpectedError | None:
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
    return UnexpectedError(" ".join(reason.split()), "".join(_format_traceback(error))[-TRACEBACK_KEPT:])


def describe(error: Exception) -> str:
    """Return the text of any exception, for an operator."""
    return OUT_OF_MEMORY if lacks_memory(error) else str(error) or type(error).__name__


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that led to it, is a MemoryError: Mercurial hides it behind its own."""
    seen = list[BaseException]()
    while error is not None and error not in seen:
        if isinstance(error, MemoryError):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def _format_traceback(error: Exception) -> list[str]:
    try:
        return traceback.format_exception(error)
    except Exception:
        return traceback.format_tb(error.__traceback__)
