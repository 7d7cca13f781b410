# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests of operators to running services, and the wait for the answer.

The aggregator reads requests from the topic `roster-requests` and answers in the roster. The notifier reads them from the topic
`notifier`, and sooner from its state database on its machine, and answers in both. Both record who asked. A request that was
recorded is carried out even if the verb stops waiting for it.
"""

import datetime
import json
import os
import pwd
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from ..config import Config
from ..log import NOTIFIER, ROSTER, ROSTER_REQUESTS, Log, NewRecord
from ..log.requests import OperatorRequest
from ..status.destinations import is_overdue
from ..words.clock import SystemClock
from ..words.errors import Refused, Unavailable, visible
from ..words.roster import Decision, Roster, RosterRequest, Verb
from ..words.shape import from_json, to_json
from .options import log_of

if TYPE_CHECKING:
    from notifier.destinations.state import RequestRecord, StateDatabase
    from notifier.destinations.webhook.settings import DeliverySettings
    from notifier.publishing.requests import RequestFollower

# Seconds until a verb that is asked to stop notices it.
TURN = 0.2
# Seconds between two looks at the notifier's answer.
POLL = 0.05


class Unanswered(Refused):
    """The request is recorded, and the service that decides has not answered yet."""


def who() -> str:
    """Return who runs this process, as it is recorded.

    That is the name of the real user, or `uid NUMBER` if the system does not know it. What the environment says can be anything,
    so the user that sudo names stands behind it. A byte that is no UTF-8 is written as its two digits after `x`.
    """
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = f"uid {os.getuid()}"
    person = os.environ.get("SUDO_USER")
    said = f" (SUDO_USER: {person})" if person else ""
    return f"{name}@{os.uname().nodename}{said}".encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def when(time_: float | None) -> str:
    """Write a time for people, in UTC."""
    return "" if time_ is None else f"{datetime.datetime.fromtimestamp(time_, datetime.UTC):%Y-%m-%d %H:%M:%S}"


def make_request(verb: Verb, reason: str, *, person: str | None = None, **members: Any) -> RosterRequest:
    """Make a request to the aggregator, by default in the name of this user."""
    number, now = secrets.token_hex(8), time.time()
    return RosterRequest(id=number, verb=verb, who=person or who(), time=now, reason=reason, **members)


def ask_aggregator(
    log: Log, request: RosterRequest, patience: float, stop: threading.Event | None = None
) -> tuple[Decision, Roster]:
    """Send the request and return the decision and the new roster.

    Raises Unanswered if there is no decision within `patience` seconds, or when `stop` is set.
    """
    with closing(log.reader({(ROSTER, 0): log.ends(ROSTER)[0]})) as reader:
        log.append([NewRecord(topic=ROSTER_REQUESTS, key=request.id, value=to_json(request))])
        end = time.monotonic() + patience
        while (left := end - time.monotonic()) > 0 and not (stop and stop.is_set()):
            for record in reader.poll(min(left, TURN)):
                roster = from_json(Roster, record.value) if record.value else Roster()
                if decision := roster.decision(request.id):
                    return decision, roster
    raise Unanswered(
        f"request {request.id} is recorded and will be decided when an aggregator runs;"
        f" the aggregator has not decided within {patience:g} s"
    )


def ask_notifier(config: Config, destination: str, kind: str, argument: Mapping[str, Any], *, wait: float) -> None:
    """Ask a destination for this user, as `ask_destination`, and print the answer."""
    result = ask_destination(config, destination, kind, argument, person=who(), wait=wait)
    click.echo(f"{destination}: {result}")


def ask_destination(
    config: Config,
    destination: str,
    kind: str,
    argument: Mapping[str, Any],
    *,
    person: str,
    wait: float,
    show: Callable[[int, int], None] | None = None,
) -> str:
    """Record the request of a person, wait for the notifier, and return its answer, without control characters.

    `show` gets how much of the log a replay has read, of how much, on the notifier's machine. Raises Unanswered if there is no
    answer within `wait` seconds, Refused if it failed or nothing was done, or for a skip without an id unless the notifier runs on
    this machine, and Unavailable if neither the log nor the notifier's file takes the request.
    """
    from notifier.clients.database import NOWHERE, is_there
    from notifier.destinations.state import Kind, RequestRecord, StateDatabase
    from notifier.publishing.requests import RequestFollower, record_requests
    from notifier.publishing.settings import read

    settings = read(config.tables, config.file)
    if destination not in settings.destinations:
        known = ", ".join(settings.destinations) or "none"
        raise Refused(f"{config.file}: there is no destination {destination!r}; the destinations are: {known}")
    text, is_here = json.dumps(argument, sort_keys=True), is_there(settings.state)
    asked = RequestRecord(kind=kind, argument=text, who=person, asked_at=time.time())
    with closing(StateDatabase(settings.state if is_here else NOWHERE)) as state, ExitStack() as opened:
        if kind == Kind.SKIP and argument.get("message") is None:
            _require_report(destination, state.conditions().get(destination))
        follower = None
        try:
            log = opened.enter_context(log_of(config))
            follower = RequestFollower(destination, log, state, log.ends(NOTIFIER)[0])
            record_requests(destination, log.append, [asked])  # before the file: an answer must not be overwritten
        except Unavailable:
            if not is_here:
                raise
        request = _await_answer(state, destination, asked, follower, wait, show)
    result = visible(str(request.result))  # all who may write the topic may have answered
    if request.has_failed:
        raise Refused(f"{destination}: {result}")
    return result


def _await_answer(
    state: "StateDatabase",
    destination: str,
    asked: "RequestRecord",
    follower: "RequestFollower | None",
    wait: float,
    show: Callable[[int, int], None] | None,
) -> OperatorRequest:
    """Put a request into the file, and return it once it is answered there or in the log."""
    state.restore_requests(destination, [asked])
    number, end = state.find_request(destination, asked), time.monotonic() + wait
    while (request := state.requests.read(number)).done_at is None:
        if time.monotonic() > end:
            raise Unanswered(
                "the request is recorded and will be carried out when the notifier runs;"
                f" the notifier has not answered within {wait:g} s"
            )
        if show and (replay := state.replay_of(destination, number)):
            show(*replay)
        time.sleep(POLL)
        if follower is not None:
            with suppress(Unavailable):  # the file may have the answer
                follower.follow()
    return request


def _require_report(destination: str, condition: Mapping[str, Any] | None) -> None:
    """Raise Refused unless the notifier runs: it alone knows which message failed."""
    if condition is None or is_overdue(condition["time"], time.time()):
        raise Refused(
            f"{destination}: the notifier does not run here, so which message failed is not known; start it, or add --message ID"
        )


def find_webhook(config: Config, destination: str | None) -> tuple[str, "DeliverySettings"]:
    """Return name and settings of the webhook destination; Refused unless one fits."""
    from notifier.destinations.webhook.settings import DeliverySettings
    from notifier.publishing.settings import read

    destinations = read(config.tables, config.file).destinations
    found = {name: each for name, each in destinations.items() if isinstance(each, DeliverySettings)}
    names = ", ".join(found)
    if destination is None and len(found) > 1:
        raise Refused(f"{config.file} has more than one destination of type webhook ({names}); use --destination")
    chosen = next(iter(found), "") if destination is None else destination
    if chosen not in found:
        named = f" with the name {chosen} (there are: {names})" if found else ""
        raise Refused(f"{config.file} has no destination of type webhook{named}")
    return chosen, found[chosen]


@contextmanager
def open_deliveries(config: Config, destination: str | None) -> Iterator[Any]:
    """Open the table of deliveries of a webhook destination within the block, to read in it.

    In place of a table that is missing, or that another machine's notifier has overtaken, it shows what the log has. Where the log
    does not answer, a table that is there counts. Raises Refused unless exactly one webhook destination fits.
    """
    from notifier.clients.database import NOWHERE, is_there
    from notifier.destinations.webhook.deliveries import Deliveries
    from notifier.destinations.webhook.records import WebhookRecords

    name, settings = find_webhook(config, destination)
    with ExitStack() as opened:
        is_here = is_there(settings.database)
        deliveries = opened.enter_context(closing(Deliveries(settings.database if is_here else NOWHERE)))
        try:
            with log_of(config) as log:
                if is_here and WebhookRecords(name, log, deliveries, SystemClock()).is_overtaken():
                    is_here, deliveries = False, opened.enter_context(closing(Deliveries(NOWHERE)))
                if not is_here:
                    WebhookRecords(name, log, deliveries, SystemClock()).show()
        except Unavailable:
            if not is_here:
                raise
        yield deliveries
