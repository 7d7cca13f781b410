# SPDX-License-Identifier: GPL-2.0-or-later
"""Dates as people and programs give them to the pushlog's pages."""

from __future__ import annotations

import calendar
import contextlib
import datetime
import email.utils
import re
import time

# A day, perhaps a time, and perhaps a zone. A `+` that a client did not escape arrives as a blank.
_DATE = re.compile(
    r"(\d{4})(?P<sign>[-/])(\d{1,2})(?P=sign)(\d{1,2})"
    r"(?:[ t](\d{1,2})(?::(\d{2})(?::(\d{2})(?:[.,]\d{1,9})?)?)?"
    r"(?P<zone> ?z| ?utc| ?gmt| ?[-+]\d{2}:?\d{2}|(?<=:\d\d) \d{2}:\d{2})?)?"
)
_COMPACT = re.compile(r"\d{8}")
_EPOCH = re.compile(r"-?\d{1,15}")
# Days with the name of a month: `Jan 5, 2015`, `5 January 2015`, each perhaps with a time.
_NAMED = tuple(
    day + moment for day in ("%b %d %Y", "%B %d %Y", "%d %b %Y", "%d %B %Y") for moment in ("", " %H:%M", " %H:%M:%S")
)
_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_UNITS = "seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w|months?|years?|y"
_AGO = re.compile(rf"(\d{{1,9}}|an?|last|{'|'.join(_NUMBERS)}) ?({_UNITS})( ago)?")
_SECONDS = {"s": 1, "mi": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MONTHS = {"mo": 1, "y": 12}
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
# Seconds of the largest difference that four digits of a zone can say.
_FARTHEST_ZONE = 100 * 3600
_EARLIEST, _LATEST = -(1 << 40), 1 << 40


def parse(text: str, now: int) -> int:
    """Return the epoch seconds of a date in a request.

    It is ``YYYY-MM-DD[ HH[:MM[:SS]]]``, with ``/`` too, in local time or with a zone; ``YYYYMMDD``; epoch seconds; a day with the
    name of its month; a date of HTTP; or words such as ``1 hour ago``. Fractions of a second are left out. Raises `ValueError`
    with a text for the user if it is none of these.
    """
    words = " ".join(text.lower().split())
    if match := _DATE.fullmatch(words):
        numbers = [int(part or 0) for part in match.group(1, 3, 4, 5, 6, 7)]
        return _make_epoch(*numbers, zone=match["zone"])
    if _COMPACT.fullmatch(words):
        return _make_epoch(int(words[:4]), int(words[4:6]), int(words[6:]))
    if _EPOCH.fullmatch(words):
        return max(_EARLIEST, min(int(words), _LATEST))
    if words == "now":
        return now
    if words in _DAYS:
        day = datetime.date.fromtimestamp(now) + datetime.timedelta(_DAYS[words])
        return _make_epoch(day.year, day.month, day.day)
    if (found := _read_named(words)) is not None or (found := _subtract_span(words, now)) is not None:
        return found
    raise ValueError(
        f"cannot read the date {text[:100]!a}: expected YYYY-MM-DD HH:MM:SS, epoch seconds or words like 1 hour ago"
    )


def _read_named(words: str) -> int | None:
    """Read a day with the name of its month, or a date of HTTP, which has a zone."""
    plain = words.replace(",", " ").split()
    for form in _NAMED:
        with contextlib.suppress(ValueError):
            return _make_epoch(*time.strptime(" ".join(plain), form)[:6])
    parts = email.utils.parsedate_tz(words) if len(plain) > 3 else None
    if parts is None or parts[9] is None or abs(parts[9]) > _FARTHEST_ZONE:
        return None
    return _make_epoch(*parts[:6], offset=parts[9])


def _subtract_span(words: str, now: int) -> int | None:
    """Read a time span before now."""
    match = _AGO.fullmatch(words)
    if match is None or (match[1] != "last" and not match[3]):
        return None
    count = int(match[1]) if match[1].isdigit() else 1
    if match[1] in _NUMBERS:
        count = _NUMBERS.index(match[1])
    for unit, months in _MONTHS.items():
        if match[2].startswith(unit):
            return _subtract_months(now, count * months)
    unit = "mi" if match[2].startswith("mi") else match[2][0]
    return max(_EARLIEST, now - count * _SECONDS[unit])


def _make_epoch(
    year: int,
    month: int,
    day: int,
    hour: int = 0,
    minute: int = 0,
    second: int = 0,
    *,
    zone: str | None = None,
    offset: int | None = None,
) -> int:
    """Return the epoch seconds of a time.

    It is local, or in a zone such as `z` or `+01:00`, or at an offset in seconds. Raises `ValueError` if there is no such time.
    """
    try:
        # A minute may have a leap second, which the calendar does not know.
        datetime.datetime(year, month, day, hour, minute, second - (second == 60))
    except (ValueError, OverflowError):
        raise ValueError(
            f"cannot read the date {year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}: no such time"
        ) from None
    if zone is not None:
        digits = "".join(part for part in zone if part.isdigit()) or "0000"
        offset = (int(digits[:2]) * 60 + int(digits[2:])) * (-60 if "-" in zone else 60)
    if offset is not None:
        return calendar.timegm((year, month, day, hour, minute, second)) - offset
    return int(time.mktime((year, month, day, hour, minute, second, 0, 0, -1)))


def _subtract_months(now: int, count: int) -> int:
    there = time.localtime(now)
    month = there.tm_year * 12 + there.tm_mon - 1 - count
    if month < 12:
        return _EARLIEST
    year, month = month // 12, month % 12 + 1
    day = min(there.tm_mday, calendar.monthrange(year, month)[1])
    return _make_epoch(year, month, day, there.tm_hour, there.tm_min, there.tm_sec)
