# SPDX-License-Identifier: GPL-2.0-or-later
"""Trials of a broker with a client's rights.

Each line is tried, not read from the broker's list of capabilities.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from hgext.vcsreplicator.words.errors import Unavailable

from ...clients.amqp.connection import TROUBLE, drain, limiting_waits
from .broker import REFUSED, code_of, connected
from .requirements import CheckResult, Requirement, result
from .settings import GuardianSettings

# Turns of `drain` that a message or a confirmation may take, a second each.
TURNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A client made for the check, its token, and what it may not touch."""

    settings: GuardianSettings
    client: str
    token: str

    def results(self) -> Iterator[CheckResult]:
        """Yield the result of each trial.

        `traces` names what the trials leave. Raises Unavailable if the broker does not answer.
        """
        with self._open_connection() as connection:
            version = connection.version_major, connection.version_minor
            yield result(Requirement.AMQP, is_met=version == (0, 9), reason="AMQP {}-{}".format(*version))
            with limiting_waits(connection):
                self._declare(connection.channel())
        yield self._run_attempt(
            Requirement.CONFIRMS, lambda attempt: attempt.publish("plain") == 1, "a published message was confirmed"
        )
        yield self._run_attempt(Requirement.PREFETCH, _keeps_prefetch, "of 3 messages, prefetch 1 delivered 1")
        yield self._run_attempt(Requirement.LENGTH_LIMIT, _keeps_limit, "x-max-length 1 kept 1 of 2 messages")
        yield self._run_attempt(Requirement.SENDER_SELECTED, _is_copied, "a key in the header CC was routed")
        yield self._run_attempt(Requirement.AT_LEAST_ONCE, _is_repeated, "an unacknowledged message came again")
        other, bare = f"{self.client}x/name", f"{self.client}/name"
        exchanges: dict[str, Callable[[Any], Any]] = {
            "declare another client's": lambda channel: channel.exchange_declare(f"exchange/{other}", "topic"),
            "declare one without prefix": lambda channel: channel.exchange_declare(bare, "topic"),
            "publish to amq.topic": lambda channel: _publish_confirmed(channel, "amq.topic"),
            "publish to the default exchange": lambda channel: _publish_confirmed(channel, ""),
        }
        yield self._expect_refusals(Requirement.EXCHANGE_REFUSED, exchanges)
        queues: dict[str, Callable[[Any], Any]] = {
            "declare another client's": lambda channel: channel.queue_declare(f"queue/{other}"),
            "declare one without prefix": lambda channel: channel.queue_declare(bare),
            "let the broker name one": lambda channel: channel.queue_declare("", exclusive=True),
        }
        yield self._expect_refusals(Requirement.QUEUE_REFUSED, queues)
        sources = {"bind to amq.topic": lambda channel: channel.queue_bind(self._name_queue("plain"), "amq.topic", "#")}
        yield self._expect_refusals(Requirement.SOURCE_REFUSED, sources)
        yield self._try_credentials()

    def traces(self) -> list[tuple[str, str]]:
        """Return kind and name of all that `results` may leave.

        That includes what it leaves where the broker allows too much.
        """
        names = [f"{self.client}x/name", f"{self.client}/name"]
        exchanges = [self._exchange, f"exchange/{names[0]}", names[1]]
        queues = [self._name_queue("plain"), self._name_queue("short"), f"queue/{names[0]}", names[1]]
        return [*(("exchanges", name) for name in exchanges), *(("queues", name) for name in queues)]

    def _open_connection(self) -> AbstractContextManager[Any]:
        return connected(self.settings, self.client, self.token)

    @property
    def _exchange(self) -> str:
        return f"exchange/{self.client}/trial"

    def _name_queue(self, name: str) -> str:
        return f"queue/{self.client}/{name}"

    def _declare(self, channel: Any) -> None:
        channel.exchange_declare(self._exchange, "topic", durable=True, auto_delete=False)
        for name, limits in (("plain", {}), ("short", {"x-max-length": 1})):
            channel.queue_declare(self._name_queue(name), durable=True, auto_delete=False, arguments=limits)
            channel.queue_bind(self._name_queue(name), self._exchange, name)

    def _run_attempt(self, requirement: Requirement, attempt: Callable[["_Attempt"], bool], shown: str) -> CheckResult:
        """Run one attempt with empty queues, on a connection of its own."""
        with self._open_connection() as connection, limiting_waits(connection, TURNS):
            try:
                channel = connection.channel()
                for name in ("plain", "short"):
                    channel.queue_purge(self._name_queue(name))
                is_met = attempt(_Attempt(connection, channel, self._exchange, self._name_queue))
            except TROUBLE as error:
                if not code_of(error):
                    raise  # the connection is lost
                return result(requirement, is_met=False, reason=str(error))
        return result(requirement, is_met=is_met, reason=shown if is_met else f"not seen: {shown}")

    def _expect_refusals(self, requirement: Requirement, attempts: dict[str, Callable[[Any], Any]]) -> CheckResult:
        """Return a pass if the broker refuses each attempt."""
        allowed = [what for what, attempt in attempts.items() if not self._is_refused(attempt)]
        if allowed:
            return result(requirement, is_met=False, reason=f"a client may: {', '.join(allowed)}")
        return result(requirement, is_met=True, reason=f"refused: {', '.join(attempts)}")

    def _is_refused(self, attempt: Callable[[Any], Any]) -> bool:
        """Return whether the broker refuses the attempt for want of rights."""
        with self._open_connection() as connection, limiting_waits(connection):
            try:
                attempt(connection.channel())
            except TROUBLE as error:
                if not code_of(error):
                    raise
                return code_of(error) == REFUSED
        return False

    def _try_credentials(self) -> CheckResult:
        try:
            with connected(self.settings, self.client, self.token + "x"):
                return result(Requirement.CREDENTIALS, is_met=False, reason="the broker accepts a wrong token")
        except Unavailable as error:
            is_met = error.__cause__ is not None and code_of(error.__cause__) == REFUSED
            return result(
                Requirement.CREDENTIALS, is_met=is_met, reason="a wrong token is refused" if is_met else str(error)
            )


class _Attempt:
    """One attempt: its channel, and the names that it may use."""

    def __init__(self, connection: Any, channel: Any, exchange: str, name_queue: Callable[[str], str]) -> None:
        self.connection, self.channel, self._exchange, self.name_queue = connection, channel, exchange, name_queue

    def publish(self, key: str, count: int = 1, **headers: Any) -> int:
        """Publish persistent messages with confirms; return how many were confirmed."""
        self.channel.confirm_select()
        confirmed: list[int] = []
        self.channel.events["basic_ack"].add(lambda tag, multiple: confirmed.append(tag))
        for _ in range(count):
            message = _make_message(self.channel, headers)
            self.channel.basic_publish(message, exchange=self._exchange, routing_key=key)
        self.wait(lambda: max(confirmed, default=0) == count)
        return max(confirmed, default=0)

    def ready(self, name: str) -> int:
        """Return how many messages the queue holds for consumers."""
        return int(self.channel.queue_declare(self.name_queue(name), passive=True).message_count)

    def wait(self, is_seen: Callable[[], bool]) -> bool:
        """Take in what the broker sends until `is_seen` says so; return whether it did."""
        for _ in range(TURNS):
            if is_seen():
                return True
            drain(self.connection, 1)
        return is_seen()


def _make_message(channel: Any, headers: dict[str, Any]) -> Any:
    return channel.prepare_message(
        "{}",
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        properties={"delivery_mode": 2},
    )


def _keeps_prefetch(attempt: _Attempt) -> bool:
    attempt.publish("plain", 3)
    arrived: list[Any] = []
    attempt.channel.basic_qos(0, 1, False)
    attempt.channel.basic_consume(attempt.name_queue("plain"), callback=arrived.append)
    return attempt.wait(lambda: bool(arrived)) and attempt.ready("plain") == 2 and len(arrived) == 1


def _keeps_limit(attempt: _Attempt) -> bool:
    return attempt.publish("short", 2) == 2 and attempt.ready("short") == 1


def _is_copied(attempt: _Attempt) -> bool:
    attempt.publish("unbound", CC=["plain"])
    return attempt.ready("plain") == 1


def _is_repeated(attempt: _Attempt) -> bool:
    """Return whether an unacknowledged message comes again.

    It publishes a message, takes it without acknowledgement, and gives up the channel.
    """
    attempt.publish("plain")
    with_first = attempt.connection.channel()
    first = with_first.basic_get(attempt.name_queue("plain"))
    with_first.close()
    attempt.wait(lambda: attempt.ready("plain") == 1)  # the broker puts it back in its own time
    again = attempt.channel.basic_get(attempt.name_queue("plain"))
    return first is not None and again is not None and bool(again.delivery_info["redelivered"])


def _publish_confirmed(channel: Any, exchange: str) -> None:
    """Publish, and wait until the broker answered: it refuses by closing the channel."""
    channel.confirm_select()
    channel.basic_publish(_make_message(channel, {}), exchange=exchange, routing_key="trial")
    channel.queue_declare("queue/none", passive=True)
