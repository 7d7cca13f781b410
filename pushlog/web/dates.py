# SPDX-License-Identifier: GPL-2.0-or-later
"""Dates as people and programs give them to the pushlog's pages."""

from __future__ import annotations

import calendar
import datetime
import re
import time

_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2})(?::(\d{2})(?::(\d{2}))?)?)?")
_EPOCH = re.compile(r"-?\d{1,15}")
_AGO = re.compile(r"(\d{1,9}|an?|one|last)\s+(second|sec|minute|min|hour|day|week|month|year)s?(\s+ago)?")
_SECONDS = {"second": 1, "sec": 1, "minute": 60, "min": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_MONTHS = {"month": 1, "year": 12}
_EARLIEST, _LATEST = -(1 << 40), 1 << 40


def parse(text: str, now: int) -> int:
    """Return the epoch seconds of a date in a request.

    It is ``YYYY-MM-DD[ HH[:MM[:SS]]]`` in local time, epoch seconds, or words such as ``1 hour ago``. Raises `ValueError`
    with a text for the user if it is none of these.
    """
    words = " ".join(text.lower().split())
    if match := _DATE.fullmatch(words.replace("t", " ")):
        return _make_epoch(*(int(part or 0) for part in match.groups()))
    if _EPOCH.fullmatch(words):
        return max(_EARLIEST, min(int(words), _LATEST))
    if words == "now":
        return now
    if words in ("today", "yesterday"):
        day = datetime.date.fromtimestamp(now) - datetime.timedelta(words == "yesterday")
        return _make_epoch(day.year, day.month, day.day)
    match = _AGO.fullmatch(words)
    if match is None or (match[1] != "last" and not match[3]):
        raise ValueError(
            f"cannot read the date {text[:100]!a}: expected YYYY-MM-DD HH:MM:SS, epoch seconds or words like 1 hour ago"
        )
    count = int(match[1]) if match[1].isdigit() else 1
    if match[2] in _SECONDS:
        return max(_EARLIEST, now - count * _SECONDS[match[2]])
    return _subtract_months(now, count * _MONTHS[match[2]])


def _make_epoch(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> int:
    try:
        # A minute may have a leap second, which the calendar does not know.
        datetime.datetime(year, month, day, hour, minute, second - (second == 60))
    except ValueError:
        raise ValueError(
            f"cannot read the date {year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}: no such time"
        ) from None
    return int(time.mktime((year, month, day, hour, minute, second, 0, 0, -1)))


def _subtract_months(now: int, count: int) -> int:
    there = time.localtime(now)
    month = there.tm_year * 12 + there.tm_mon - 1 - count
    if month < 12:
        return _EARLIEST
    year, month = month // 12, month % 12 + 1
    day = min(there.tm_mday, calendar.monthrange(year, month)[1])
    return _make_epoch(year, month, day, there.tm_hour, there.tm_min, there.tm_sec)
