# SPDX-License-Identifier: GPL-2.0-or-later
"""Exceptions that nobody foresaw while one record is worked on: the record becomes a reject, and the service goes on.

Whatever was half done with the record must not count: throw it away, and do the work again without the record. What the machine is
short of, such as memory or room on a disk, is no fault of the record.
"""

import traceback
from dataclasses import dataclass

from .errors import ReplicationError
from .passing import is_passing

TRACEBACK_KEPT = 16 * 1024
"""Characters of a traceback that are kept, the last ones."""

REASON_KEPT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happened: a line for an operator, and the traceback for a developer."""

    reason: str
    traceback: str


def fault(error: Exception) -> Fault | None:
    """What to keep of the exception; None if it was foreseen, or is no fault of what was worked on."""
    if isinstance(error, ReplicationError | MemoryError) or is_passing(error):
        return None
    try:
        text = str(error)
    except Exception as other:  # a text may need what made it fail, such as the digits of an endless number
        text = f"no text: {type(other).__name__}"
    reason = f"unforeseen {type(error).__name__}: {text}"[:REASON_KEPT]
    return Fault(reason=" ".join(reason.split()), traceback="".join(_lines(error))[-TRACEBACK_KEPT:])


def _lines(error: Exception) -> list[str]:
    try:
        return traceback.format_exception(error)
    except Exception:
        return traceback.format_tb(error.__traceback__)
