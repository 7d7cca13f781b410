# SPDX-License-Identifier: GPL-2.0-or-later
"""User agents: names and versions of browser and system, never the text. Pure."""

import functools
import re

import ua_parser

from ...messages.message import clean

# Characters of a user agent that are read; the rest is of no use.
_READ = 1000

# Mercurial's clients; a local build adds "+" and a changeset.
_MERCURIAL = re.compile(
    r"mercurial/proto-[0-9.]+ \(Mercurial (?P<version>[0-9]{1,4}(?:\.[0-9]{1,4}){0,2}(?:rc[0-9]{1,2})?)?"
)

# Possible addresses in a user agent: four numbers, or groups between colons.
_ADDRESS = re.compile(r"[0-9]+(?:[._ -][0-9]+){3}|[0-9A-Fa-f]*:[0-9A-Fa-f]*:")


def read_agent(text: str) -> tuple[tuple[str, str], ...]:
    """Return the `user_agent_` attributes.

    Leaves out each name or version that may contain an address. A version has at most three numbers.
    """
    return _read_bounded(clean(text[:_READ]))


@functools.lru_cache(maxsize=2000)
def _read_bounded(text: str) -> tuple[tuple[str, str], ...]:
    mercurial = _MERCURIAL.match(text)
    if mercurial is not None:
        followed = text[mercurial.end() :][:1]
        version = mercurial["version"] if followed in (")", "+") else None
        named = {"user_agent_browser": "Mercurial", "user_agent_browser_version": version}
    else:
        named = _parse(text)
    return tuple((name, value) for name, value in named.items() if value and not _ADDRESS.search(value))


def _parse(text: str) -> dict[str, str | None]:
    found = ua_parser.parse(text)
    named: dict[str, str | None] = {}
    for name, part in (("user_agent_browser", found.user_agent), ("user_agent_os", found.os)):
        if part is not None:
            named[name] = part.family
            named[f"{name}_version"] = _join_version(part.major, part.minor, part.patch, part.patch_minor)
    return named


def _join_version(*parts: str | None) -> str | None:
    """Join the first three numbers of a version; None for none, or for an address."""
    known = [part for part in parts if part]
    if len(known) == 4 and all(part.isdigit() and int(part) < 256 for part in known):
        return None
    return ".".join(known[:3]) or None
