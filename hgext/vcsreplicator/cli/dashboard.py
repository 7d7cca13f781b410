# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator dashboard`: the pages that show progress and problems.

An act of an operator makes the same requests as the verbs. The module loads no code that draws on a terminal.
"""

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from notifier.clients.database import is_there

from ..config import Config, address
from ..dashboard.acts import ActKind, ActOutcome, OperatorAct
from ..log import Log
from ..words.errors import BadConfig, Refused, ReplicationError
from ..words.roster import Verb
from .delivering import describe_delivery, read_notifier
from .options import needing, run_daemon, with_config
from .replay import read_since
from .requests import Unanswered, ask_aggregator, ask_destination, make_request, open_deliveries

# Seconds that an act waits for the service that decides to answer.
PATIENCE = 10.0


@click.command()
@with_config
def command(config: Config) -> None:
    """Serve pages that show mirrors, repositories, pushes and troubles."""
    with needing("dashboard"):
        from ..dashboard import server
    from ..dashboard.settings import read
    from ..dashboard.sources import Sources
    from .asking import expect

    settings = read(config)
    where = address(settings.listen, f"{config.file}: dashboard.listen")
    # That a section of a mirror has none in the roster is for the verbs to say.
    expected = replace(expect(config), mirrors=())
    is_public, notifier = _read_public(config), read_notifier(config)

    def run(settings: Any, log: Log, *, stop: threading.Event, ready: Callable[[], None]) -> None:
        sources = Sources(
            log=log,
            url=config.log,
            expected=expected,
            is_public=is_public,
            describe_delivery=functools.partial(describe_delivery, notifier),
            notifier=notifier,
            carry_out=functools.partial(carry_out, config, log),
        )
        server.run(settings, sources, address=where, stop=stop, ready=ready)

    run_daemon(config, "dashboard", run, settings)


def _read_public(config: Config) -> Callable[[str], bool]:
    """Return a function that says whether a path is public; without [public] none is."""
    if "public" not in config.tables:
        return lambda path: False
    from notifier.messages.public import public_url
    from notifier.publishing.settings import read

    settings = read(config.tables, config.file).public
    return lambda path: public_url(path, settings) is not None


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
    if act.kind in (ActKind.ACTIVATE, ActKind.DEACTIVATE):
        return _change_roster(log, act, person)
    _require_notifier(config)
    match act.kind:
        case ActKind.REDELIVER:
            argument = _request_redelivery(config, act)
        case ActKind.REPLAY:
            argument = {"repository": act.argument["repository"], **read_since(act.argument["since"])}
        case ActKind.SKIP:
            argument = {"message": act.argument.get("message")}
        case ActKind.PAUSE | ActKind.RESUME:
            argument = {}
    return ask_destination(config, act.target, act.kind.value, argument, person=person, wait=PATIENCE)


def _change_roster(log: Log, act: OperatorAct, person: str) -> str:
    repository = act.argument.get("repository")
    request = make_request(Verb(act.kind.value), act.reason, person=person, mirror=act.target, repository=repository)
    decision, roster = ask_aggregator(log, request, PATIENCE)
    if decision.refusal:
        raise Refused(decision.refusal)
    return f"roster version {roster.version}"


def _request_redelivery(config: Config, act: OperatorAct) -> dict[str, Any]:
    from notifier.destinations.webhook.changes import request_redelivery

    text = act.argument["delivery"]
    number = int(text) if text.isascii() and text.isdigit() else 0
    with open_deliveries(config, act.target) as deliveries:
        row = deliveries.show(number) if 0 < number < 2**63 else None
    if row is None:
        raise Refused(f"there is no delivery {text}")
    return request_redelivery([row])


def _require_notifier(config: Config) -> None:
    """Raise Refused if the notifier's databases are not on this machine."""
    settings = read_notifier(config)
    if settings is None or not is_there(settings.state):
        raise Refused("the notifier's databases are not on this machine; use the dashboard of its machine")
