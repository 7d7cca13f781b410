# SPDX-License-Identifier: GPL-2.0-or-later
"""Pulse's specification as a table: its Appendix A, then what only its body says."""

import enum
from dataclasses import dataclass


class Requirement(enum.Enum):
    """One line of the specification.

    `subject` is the heading of the appendix, or `Body`; `words` are the line's words.
    """

    REGISTRATION = "Pulse", "MUST offer registration at pulse.mozilla.org"
    AMQP = "Pulse", "MUST support AMQP 0-9-1"
    CONFIRMS = "Pulse", "MUST support Confirms"
    PREFETCH = "Pulse", "MUST support Consumer Prefetch"
    LENGTH_LIMIT = "Pulse", "MUST support Queue Length Limit"
    SENDER_SELECTED = "Pulse", "MUST support Sender-selected Distribution"
    AT_LEAST_ONCE = "Pulse", "SHOULD exhibit deliver-at-least-once semantics"
    DELETES = "Pulse", "MAY delete queues that grow beyond defined limits"
    NOTIFIES = "Pulse", "SHALL notify owner by email when a queue grows close to limits"
    CONFIRMED_PUBLISHING = "Publishers", "SHOULD use confirm-publish channels"
    EXCHANGE_NAME = "Exchanges", "MUST be named exchange/<clientId>/<name>"
    EXCHANGE_TYPE = "Exchanges", "MUST be topic exchanges"
    EXCHANGE_DURABLE = "Exchanges", "MUST be durable"
    JSON = "Messages", "MUST be UTF-8-encoded JSON"
    CONTENT_TYPE = "Messages", "MUST carry application/json as Content-Type"
    MESSAGE_DURABLE = "Messages", "SHOULD be durable"
    SMALL = "Messages", "SHOULD be less than 8 KiB"
    COPIES = "Messages", "MAY be CC'ed to multiple routing keys"
    PUBLIC = "Messages", "MUST NOT contain private or sensitive information"
    ROUTING_KEY = "Messages", "SHOULD have a routing key with fields at fixed indexes"
    CONSUMER_PREFETCH = "Subscribers", "SHOULD specify a consumer prefetch limit"
    QUEUE_NAME = "Queues", "MUST be named queue/<clientId>/<name>"
    QUEUE_LIMITED = "Queues", "MAY have a limited length"
    QUEUE_SIZE = "Queues", "MUST not grow unbounded"
    CREDENTIALS = "Body", "MUST use clientId and accessToken as username and password"
    EXCHANGE_REFUSED = "Body", "SHALL refuse other names of exchanges"
    QUEUE_REFUSED = "Body", "SHALL refuse other names of queues"
    SOURCE_REFUSED = "Body", "SHALL refuse consuming from other exchanges"
    QUEUE_KIND = "Body", "SHOULD use durable or auto-delete queues"

    def __init__(self, subject: str, words: str) -> None:
        self.subject, self.words = subject, words

    @property
    def is_must(self) -> bool:
        """Whether breaking it breaks the specification."""
        return self.words.startswith(("MUST", "SHALL"))


class CheckMark(enum.StrEnum):
    """How a requirement is met."""

    PASS = "pass"
    FAIL = "fail"
    OPEN = "not checkable here"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A requirement, how it is met, and what shows it."""

    requirement: Requirement
    mark: CheckMark
    reason: str


def result(requirement: Requirement, *, is_met: bool, reason: str) -> CheckResult:
    """Return a pass or a fail."""
    return CheckResult(requirement=requirement, mark=CheckMark.PASS if is_met else CheckMark.FAIL, reason=reason)


def unknown(requirement: Requirement, reason: str) -> CheckResult:
    """Return a result of what cannot be checked here."""
    return CheckResult(requirement=requirement, mark=CheckMark.OPEN, reason=reason)
