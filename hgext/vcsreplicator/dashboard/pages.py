# SPDX-License-Identifier: GPL-2.0-or-later
"""The templates of the pages.

Every text is escaped, and written in one line without control characters.
"""

import datetime
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse

from ..status.wording import Finding, describe_round
from ..words.clock import format_delay, format_duration
from ..words.errors import visible
from ..words.records import RoundProgress


def render(template: str, request: Request, *, status: int = 200, **content: Any) -> HTMLResponse:
    """Render a template; `request` is there for its path and its role."""
    headers = {"retry-after": "5"} if status == 503 else None
    return HTMLResponse(_environment.get_template(template).render(request=request, **content), status, headers)


class AsciiJson(JSONResponse):
    """An answer to a program: text of the log that UTF-8 cannot hold is escaped, as in the log."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def _finalize(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def format_instant(at: float | None) -> str:
    """Write a time in UTC, to the second; nothing for None or 0, which means never."""
    return f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S}" if at else ""


def format_span(seconds: float) -> str:
    """Write a time span; a negative one, from clocks that differ, counts as 0."""
    return format_delay(max(0.0, seconds))


def format_age(at: float, now: float) -> str:
    """Write how long ago a time was, in seconds or a larger unit; 0 means never."""
    return f"{format_duration(max(0.0, now - at))} ago" if at else "never"


def format_round(progress: RoundProgress | None, now: float) -> str:
    """Say how far `verify` is with a mirror; None is a mirror that it never compared."""
    return describe_round(progress, format_age(progress.oldest or 0.0, now)) if progress else "never"


def shorten(finding: Finding) -> Markup:
    """Return the text of a finding without the command at its end, which stands below it; what is in backticks is code."""
    text = finding.text.removesuffix(finding.command or "").removesuffix("; see: ")
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(visible(text)))))


def _quote_address(value: object) -> str:
    """Write a text, or the fields of a query, for an address.

    Where a name of the log is no UTF-8, and no page has it, the address has a question mark.
    """
    return urlencode(value, errors="replace") if isinstance(value, dict) else quote(str(value), errors="replace")


_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=_finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals["shorten"] = shorten
_environment.filters["urlencode"] = _quote_address
_environment.filters |= {"progress": format_round, "instant": format_instant}
_environment.filters |= {"span": format_span, "delay": format_delay, "age": format_age}
