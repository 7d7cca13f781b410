# SPDX-License-Identifier: GPL-2.0-or-later
"""The execution of operators' acts on the dashboard.

It makes the same requests as the verbs. The module loads no code that draws on a terminal.
"""

import time
from typing import Any

import click

from notifier.database import is_there

from ..config import Config
from ..dashboard.acts import ActKind, ActOutcome, OperatorAct
from ..log import Log
from ..words.errors import BadConfig, Refused, ReplicationError
from ..words.roster import Verb
from .delivering import read_notifier
from .replay import read_since
from .requests import Unanswered, ask_aggregator, ask_destination, make_request, open_deliveries

# Seconds that an act waits for the answer of the service that decides.
PATIENCE = 10.0


def carry_out(config: Config, log: Log, act: OperatorAct, number: int) -> tuple[ActOutcome, str]:
    """Carry out act `number` of the journal; return its outcome and a text."""
    try:
        return ActOutcome.DONE, _perform(config, log, act, f"{act.who} (dashboard act {number})")
    except Unanswered as error:
        return ActOutcome.ASKED, str(error)
    except click.ClickException as error:
        return ActOutcome.REFUSED, error.format_message()
    except (Refused, BadConfig) as error:
        return ActOutcome.REFUSED, str(error)
    except ReplicationError as error:
        return ActOutcome.UNKNOWN, str(error)


def _perform(config: Config, log: Log, act: OperatorAct, person: str) -> str:
    match act.kind:
        case ActKind.ACTIVATE | ActKind.DEACTIVATE:
            return _change_roster(log, act, person)
        case ActKind.REDELIVER:
            return _redeliver(config, act, person)
        case ActKind.REPLAY:
            argument = {"repository": act.argument["repository"], **read_since(act.argument["since"])}
        case ActKind.SKIP:
            argument = {"message": act.argument.get("message")}
        case ActKind.PAUSE | ActKind.RESUME:
            argument = {}
    _require_notifier(config)
    return ask_destination(config, act.target, act.kind.value, argument, person=person, wait=PATIENCE)


def _change_roster(log: Log, act: OperatorAct, person: str) -> str:
    members: dict[str, Any] = {"mirror": act.target, "repository": act.argument.get("repository")}
    request = make_request(Verb(act.kind.value), act.reason, person=person, **members)
    decision, roster = ask_aggregator(log, request, PATIENCE)
    if decision.refusal:
        raise Refused(decision.refusal)
    return f"roster version {roster.version}"


def _redeliver(config: Config, act: OperatorAct, person: str) -> str:
    _require_notifier(config)
    text = act.argument["delivery"]
    number = int(text) if text.isascii() and text.isdigit() else 0
    with open_deliveries(config, act.target) as deliveries:
        if not 0 < number < 2**63 or not deliveries.redeliver([number], who=person, now=time.time()):
            raise Refused(f"there is no delivery {text} to an existing subscription")
    return f"delivery {number} is queued again"


def _require_notifier(config: Config) -> None:
    """Raise Refused if the notifier's databases are not on this machine."""
    settings = read_notifier(config)
    if settings is None or not is_there(settings.state):
        raise Refused("the notifier's databases are not on this machine; use the dashboard of its machine")
