# SPDX-License-Identifier: GPL-2.0-or-later
"""The Content-Security-Policy of hgweb's pages where `[web] csp` names none.

It is made for Mercurial's own templates. A site with templates or a style of its own has none by default, because what their
scripts and styles need is not known here; the operator writes one (`docs/pushlog.md`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from mercurial.ui import ui as Ui

# Mercurial's pages have inline scripts, which a nonce permits, and inline styles of elements, which can do little harm.
_POLICY = (
    "default-src 'none'; script-src 'self'{static} 'nonce-{nonce}'; style-src 'self'{static}; "
    "style-src-attr 'unsafe-inline'; img-src 'self'{static}; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'self'"
)
_STYLES = frozenset((b"atom", b"coal", b"gitweb", b"json", b"monoblue", b"paper", b"raw", b"rss", b"spartan"))
_ORIGIN = re.compile(rb"((?:https?:)?//)(?:[^/@]*@)?([A-Za-z0-9.-]+(?::[0-9]{1,5})?)(?:/|\Z)")
_Values = tuple[bytes | None, bytes | None]


def values(orig: Callable[[Any], _Values], ui: Ui) -> _Values:
    """Wrap `cspvalues`: an operator's own policy, even empty, wins."""
    if ui.config(b"web", b"csp", untrusted=False) is not None or _has_own_templates(ui):
        return orig(ui)
    nonce = secrets.token_urlsafe(16)
    return _POLICY.format(static=_find_static_origin(ui), nonce=nonce).encode("ascii"), nonce.encode("ascii")


def send(orig: Callable[[Any], Iterator[bytes]], response: Any) -> Iterator[bytes]:
    """Wrap the sending of an answer: with a policy, let browsers trust only its content type.

    Otherwise the policy would admit a pusher's file as a script of ours.
    """
    if b"Content-Security-Policy" in response.headers and not response.status.startswith(b"304 "):
        response.headers[b"X-Content-Type-Options"] = b"nosniff"
    return orig(response)


def _has_own_templates(ui: Ui) -> bool:
    style = ui.config(b"web", b"style")
    return bool(ui.config(b"web", b"templates", untrusted=False)) or (style is not None and style not in _STYLES)


def _find_static_origin(ui: Ui) -> str:
    """Return a blank and the origin of `[web] staticurl`, empty if it is ours."""
    found = _ORIGIN.match(ui.config(b"web", b"staticurl") or b"")
    if found is None:
        return ""
    scheme, host = found.groups()
    return f" {(scheme if scheme != b'//' else b'').decode()}{host.decode()}"
