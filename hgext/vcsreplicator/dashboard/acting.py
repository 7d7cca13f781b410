# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer to a form by which an operator acts.

The dashboard records the act, does it, and records its outcome. The pages show it after a redirect.
"""

import time
from collections.abc import Callable

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..words.errors import BadConfig, Refused, Unavailable
from .acts import ActJournal, ActOutcome, OperatorAct, read_act
from .forms import Forms, check_origin, read_form

logger = structlog.get_logger()


class ActEndpoint:
    """Takes acts from operators alone.

    If the process is killed after the record, the act stays `begun`. No act is done unrecorded.
    """

    def __init__(
        self, journal: ActJournal | None, carry_out: Callable[[OperatorAct, int], tuple[ActOutcome, str]], forms: Forms
    ) -> None:
        self._journal, self._carry_out, self._forms = journal, carry_out, forms

    async def answer(self, request: Request) -> Response:
        """Do the act of a form, unless this form was sent before."""
        user = request.state.user
        if self._journal is None or not user.role.may_act:
            raise HTTPException(403, "Only operators may do this.")
        check_origin(request)
        fields = await read_form(request)
        form = self._forms.check_token(fields.get("token", ""), user.name)
        try:
            act = read_act(fields, who=user.name, at=time.time())
        except ValueError as error:
            raise HTTPException(400, f"Nothing was done: {error}.") from None
        return await run_in_threadpool(self._perform, self._journal, act, form)

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
