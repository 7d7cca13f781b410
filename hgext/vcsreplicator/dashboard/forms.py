# SPDX-License-Identifier: GPL-2.0-or-later
"""The forms of acts.

A form must be sent from our own pages, by the user who loaded them, and each counts once.

A browser sends a password along also when another site makes it ask. So the browser must say that the request comes from our own
pages, and the form must hold a token that only they have.
"""

import hashlib
import hmac
import secrets
from urllib.parse import parse_qsl, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

# Most bytes and most fields of a form.
LARGEST, FIELDS = 16 * 1024, 20


class Forms:
    """Makes and checks the tokens of forms, which are valid until this process ends."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def make_token(self, user: str) -> str:
        form = secrets.token_urlsafe(12)
        return f"{form}.{self._sign(form, user)}"

    def check_token(self, token: str, user: str) -> str:
        """Return the form that the user has this token for, or raise HTTPException."""
        form, _, signature = token.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(form, user).encode()):
            raise HTTPException(403, "The form is not from this dashboard, or it is too old: load its page again.")
        return form

    def _sign(self, form: str, user: str) -> str:
        return hmac.new(self._key, f"{form} {user}".encode(), hashlib.sha256).hexdigest()


def check_origin(request: Request) -> None:
    """Raise HTTPException unless the browser says that one of our own pages asks."""
    site, origin = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
    host = request.headers.get("host", "").lower()
    is_ours = site == ["same-origin"] if site else len(origin) == 1 and _find_host(origin[0]) == host
    if not is_ours:
        raise HTTPException(403, "The browser does not say that the form was sent from a page of this dashboard.")


def _find_host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a form; raises HTTPException if it is none of ours."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise HTTPException(415, "Expected a form of this dashboard.")
    try:
        body = await _read_body(request)
    except ClientDisconnect:
        raise HTTPException(400, "The form did not arrive completely.") from None
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS)
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
    if len(dict(pairs)) < len(pairs):
        raise HTTPException(400, "The form has a field twice.")
    return dict(pairs)


async def _read_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise HTTPException(413, "The form is too large.")
    return body
