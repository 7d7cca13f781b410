# SPDX-License-Identifier: GPL-2.0-or-later
"""Forms by which operators act, and the answer to one.

The dashboard records the act, does it, and records its outcome. The pages show it after a redirect.

A form must be sent from our own pages, by the user who loaded them, and each counts once. A browser sends the password along even
if another site causes the request. So the browser must say that the request comes from our own pages, and the form must hold a
token that only they have.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from ..words.errors import BadConfig, Refused, Unavailable
from .acts import ActJournal, ActOutcome, OperatorAct, read_act

# Most bytes and most fields of a form.
LARGEST, FIELDS = 16 * 1024, 20

logger = structlog.get_logger()


class ActEndpoint:
    """Takes acts from operators alone.

    No act is done before it is recorded. If the process is killed after that, the act stays `begun`. The tokens of forms are valid
    until the process ends.
    """

    def __init__(
        self, journal: ActJournal | None, carry_out: Callable[[OperatorAct, int], tuple[ActOutcome, str]]
    ) -> None:
        self._journal, self._carry_out = journal, carry_out
        self._key = secrets.token_bytes(32)

    def make_token(self, user: str) -> str:
        """Make the token of a form that this user may send."""
        form = secrets.token_urlsafe(12)
        return f"{form}.{self._sign(form, user)}"

    async def answer(self, request: Request) -> Response:
        """Do the act of a form, unless this form was sent before."""
        user = request.state.user
        if self._journal is None or not user.role.may_act:
            raise HTTPException(403, "Only operators may do this.")
        _check_origin(request)
        fields = await _read_form(request)
        form = self._check_token(fields.get("token", ""), user.name)
        try:
            act = read_act(fields, who=user.name, at=time.time())
        except ValueError as error:
            raise HTTPException(400, f"Nothing was done: {error}.") from None
        return await run_in_threadpool(self._perform, self._journal, act, form)

    def _check_token(self, token: str, user: str) -> str:
        """Return the id of the form that this user's token is for; raises HTTPException."""
        form, _, signature = token.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(form, user).encode()):
            raise HTTPException(403, "The form is not from this dashboard, or it is too old: load its page again.")
        return form

    def _sign(self, form: str, user: str) -> str:
        return hmac.new(self._key, f"{form} {user}".encode(), hashlib.sha256).hexdigest()

    def _perform(self, journal: ActJournal, act: OperatorAct, form: str) -> Response:
        try:
            number, is_new = journal.begin(act, form)
        except Refused as error:
            raise HTTPException(409, f"Nothing was done: {error}.") from None
        except (BadConfig, Unavailable) as error:
            raise HTTPException(503, f"Nothing was done, as it cannot be recorded: {error}.") from None
        if is_new:
            logger.info("act begun", act=number, kind=act.kind.value, target=act.target, who=act.who)
            try:
                outcome, result = self._carry_out(act, number)
            except Exception as error:  # an unknown outcome is recorded too
                logger.error("act failed", act=number, exc_info=error)
                outcome, result = ActOutcome.UNKNOWN, "the dashboard failed; its log lines say why"
            logger.info("act ended", act=number, outcome=outcome.value, result=result)
            try:
                journal.end(number, outcome, result)
            except (BadConfig, Unavailable) as error:
                raise HTTPException(503, f"{outcome.value}: {result}. This cannot be recorded: {error}.") from None
        return RedirectResponse(f"/acts#act-{number}", 303)


def _check_origin(request: Request) -> None:
    """Raise HTTPException unless the browser says that one of our pages sent this."""
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


async def _read_form(request: Request) -> dict[str, str]:
    """Read the fields of a form; raises HTTPException if it is not one of ours."""
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
