# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks of a broker against Pulse's specification.

They cover what it does for a client, what its clients declared, and what they publish.
"""

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import SystemClock, format_duration
from hgext.vcsreplicator.words.errors import MalformedEvent, Unavailable, counted, visible

from .clients import Clients, client_of, is_queue_name
from .mail import MailServer
from .management import Management
from .requirements import CheckResult, Requirement, result, unknown
from .sampling import take_sample
from .settings import Deletion, GuardianSettings
from .state import find_last_round
from .trial import Trial
from .watching import list_queues

# Rounds of the watch that may be missing until it counts as stopped.
ROUNDS_MISSED = 3

# Names that a reason lists.
LISTED = 5


def check(
    settings: GuardianSettings,
    file: str,
    log: Log,
    *,
    client: str | None,
    sample: float,
    stop: threading.Event,
) -> list[CheckResult]:
    """Check the broker; return a result for each requirement, in their order.

    Messages are watched for `sample` seconds. Makes a client for the trial and removes it. Raises Unavailable, or BadConfig for
    what only an operator can change.
    """
    with closing(Management(settings, file)) as management:
        management.check(settings.vhost)
        exchanges = _list_exchanges(management, settings.vhost, client)
        found = [*_of_exchanges(exchanges), *_of_channels_and_consumers(management, settings.vhost, client)]
        found += [*_of_queues(management, settings, client), *_of_guardian(settings, log)]
        named = [name for name in exchanges if name.startswith("exchange/")]
        found += _try_as_client(management, settings, named, sample, stop)
    order = list(Requirement)
    return sorted(found, key=lambda each: order.index(each.requirement))


def _try_as_client(
    management: Management, settings: GuardianSettings, exchanges: Sequence[str], seconds: float, stop: threading.Event
) -> list[CheckResult]:
    """Try the broker and sample messages as a new client; remove all that it leaves."""
    clients, name = Clients(management, settings.vhost), f"guardian-check-{secrets.token_hex(4)}"
    trial = Trial(settings=settings, client=name, token=clients.add(name, settings.operator, lambda _: None))
    try:
        found = list(trial.results())
        found += take_sample(settings, name, trial.token, exchanges, seconds, stop).results()
    finally:
        for kind, trace in trial.traces():
            management.delete(kind, settings.vhost, trace)
        clients.remove(name)
    return found


def _list_exchanges(management: Management, vhost: str, client: str | None) -> dict[str, Mapping[str, Any]]:
    """Return the exchanges of all clients, or of the given client, by name."""
    rows = management.rows("exchanges", vhost, columns="name,type,durable,user_who_performed_action")
    return {
        name: each
        for each in rows
        if (name := str(each["name"]))
        and not name.startswith("amq.")
        and client in (None, client_of(name), each.get("user_who_performed_action"))
    }


def _of_guardian(settings: GuardianSettings, log: Log) -> Iterator[CheckResult]:
    yield unknown(Requirement.REGISTRATION, "`guardian user add` gives tokens; there is no web page")
    if settings.delete is Deletion.NO:
        yield unknown(Requirement.DELETES, "delete = no")
    else:
        yield result(
            Requirement.DELETES,
            is_met=True,
            reason=f"delete = {settings.delete.value}, beyond {settings.limit} messages",
        )
    yield unknown(Requirement.PUBLIC, "only people can tell")
    yield _of_mails(settings, log)


def _of_mails(settings: GuardianSettings, log: Log) -> CheckResult:
    try:
        MailServer(settings).check()
        last = find_last_round(settings, log)
    except (Unavailable, MalformedEvent) as error:
        return result(Requirement.NOTIFIES, is_met=False, reason=str(error))
    if last is None:
        return unknown(Requirement.NOTIFIES, "`guardian watch` has completed no round yet")
    age = SystemClock().now() - last
    reason = f"last complete round of `guardian watch` {format_duration(age)} ago"
    return result(Requirement.NOTIFIES, is_met=age <= ROUNDS_MISSED * settings.every, reason=reason)


def _of_exchanges(exchanges: Mapping[str, Mapping[str, Any]]) -> Iterator[CheckResult]:
    found = [(name, name.startswith("exchange/") and client_of(name) is not None) for name in exchanges]
    yield _expect_all(Requirement.EXCHANGE_NAME, "exchanges", found)
    found = [(name, each.get("type") == "topic") for name, each in exchanges.items()]
    yield _expect_all(Requirement.EXCHANGE_TYPE, "exchanges", found)
    found = [(name, bool(each.get("durable"))) for name, each in exchanges.items()]
    yield _expect_all(Requirement.EXCHANGE_DURABLE, "exchanges", found)


def _of_channels_and_consumers(management: Management, vhost: str, client: str | None) -> Iterator[CheckResult]:
    channels = management.rows("vhosts", vhost, "channels", columns="user,confirm,message_stats")
    publishing = [each for each in channels if client in (None, each.get("user")) and _count(each, "publish")]
    # The flag is as old as the broker's statistics; the count of confirmations may be newer.
    found = [(str(each.get("user")), bool(each.get("confirm") or _count(each, "confirm"))) for each in publishing]
    yield _expect_all(Requirement.CONFIRMED_PUBLISHING, "publishing channels", found)
    found = [
        (str(_read_part(each, "queue").get("name", "?")), bool(each.get("prefetch_count")))
        for each in management.rows("consumers", vhost, columns="prefetch_count,queue,channel_details")
        if client in (None, _read_part(each, "channel_details").get("user"))
    ]
    yield _expect_all(Requirement.CONSUMER_PREFETCH, "consumers", found)


def _of_queues(management: Management, settings: GuardianSettings, client: str | None) -> Iterator[CheckResult]:
    every = list_queues(management, settings.vhost)
    queues = [each for each in every if client in (None, client_of(each.name))]
    found = [(queue.name, is_queue_name(queue.name)) for queue in queues]
    yield _expect_all(Requirement.QUEUE_NAME, "queues", found)
    found = [(queue.name, queue.durable or queue.auto_delete) for queue in queues]
    yield _expect_all(Requirement.QUEUE_KIND, "queues", found)
    bounded = [queue.name for queue in queues if queue.is_bounded]
    if bounded:
        yield result(
            Requirement.QUEUE_LIMITED,
            is_met=True,
            reason=f"{len(bounded)} of {counted(len(queues), 'queue')} with a limit",
        )
    else:
        yield unknown(Requirement.QUEUE_LIMITED, f"{counted(len(queues), 'queue')}, none with a limit")
    found = [(queue.name, (queue.messages or 0) <= settings.limit) for queue in queues]
    yield _expect_all(Requirement.QUEUE_SIZE, f"queues within {settings.limit} messages", found)


def _expect_all(requirement: Requirement, what: str, every: Sequence[tuple[str, bool]]) -> CheckResult:
    """Return a pass if each of these names is right, else a fail.

    Without names it is unknown.
    """
    if not every:
        return unknown(requirement, f"no {what}")
    wrong = [name for name, is_right in every if not is_right]
    if not wrong:
        return result(requirement, is_met=True, reason=f"{len(every)} {what}")
    shown = ", ".join(visible(name)[:100] for name in sorted(set(wrong))[:LISTED])
    return result(
        requirement,
        is_met=False,
        reason=f"{len(wrong)} of {len(every)}: {shown}{', …' if len(set(wrong)) > LISTED else ''}",
    )


def _read_part(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object in a row of the management API, an empty one if there is none."""
    found = row.get(name)
    return found if isinstance(found, Mapping) else {}


def _count(channel: Mapping[str, Any], what: str) -> int:
    found = _read_part(channel, "message_stats").get(what)
    return found if isinstance(found, int) else 0
