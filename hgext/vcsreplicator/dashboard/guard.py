# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard before every page.

It gives no answer without a role, and adds headers that let a browser do next to nothing with a page.
"""

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .readers import Readers

# The address at which a browser asks for a token, even where guests may read.
SIGN_IN = "/sign-in"

# The policy of all pages: their resources come from here, and no other site shows them in a frame.
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)

_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # Other sites learn nothing; our own forms name their origin.
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuses requests of unknown users, with 401.

    For the others, the pages find `user` and `role` in `request.state`.
    """

    def __init__(self, application: ASGIApp, readers: Readers) -> None:
        self._application, self._readers = application, readers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        user = self._readers.find_user(scope["headers"], (scope.get("client") or ("", 0))[0])
        if user is None or (scope["path"] == SIGN_IN and not user.name):
            headers = {"www-authenticate": 'Basic realm="vcsreplicator", charset="UTF-8"'}
            text = "A token is needed: as password, or as Authorization: Bearer TOKEN\n"
            await PlainTextResponse(text, 401, headers)(scope, receive, send_guarded)
            return
        scope.setdefault("state", {}).update(user=user, role=user.role)
        await self._application(scope, receive, send_guarded)
