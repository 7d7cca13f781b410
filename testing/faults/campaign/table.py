# SPDX-License-Identifier: GPL-2.0-or-later
"""The faults: what each does, what the documentation promises then, and by when the installation must have recovered."""

from dataclasses import dataclass

from testing.builders.notifier.endpoint import Reply
from testing.faults.campaign import strikes
from testing.faults.campaign.cloud import refuse
from testing.faults.campaign.site import CI, SNS
from testing.faults.campaign.strikes import Strike

# Seconds of recovery after the end of a fault: as long as no operator is needed; with the session of Kafka, or a start of a JVM.
SOON, KAFKA = 10.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A row of the table. It lasts `hold` seconds, and is over by `within` seconds after its end.

    Of the mirrors that it `spares` nothing is promised meanwhile. A fault that `is_plain` needs no brokers and receivers.
    """

    id: str
    does: str
    promised: str
    strike: Strike
    hold: float = 2.0
    within: float = SOON
    spares: tuple[str, ...] = ()
    is_plain: bool = False


WAITS = "pushes and notices wait, and go on by themselves"
REFUSED = "pushes are refused until it is back; mirrors serve on"
ONE_WAITS = "its messages wait, those of other destinations go on"
TAKEOVER = "another one takes over"
KILLED = (
    Fault(
        id="relay-killed",
        does="relay: kill -9",
        promised="pushes wait in the outbox",
        strike=strikes.killed("relay"),
        is_plain=True,
    ),
    Fault(id="mirror-killed", does="mirror: kill -9", promised=WAITS, strike=strikes.killed("mirror"), is_plain=True),
    Fault(
        id="worker-killed",
        does="worker of a mirror: kill -9",
        promised="the mirror starts another",
        strike=strikes.worker_killed,
        is_plain=True,
    ),
    Fault(
        id="aggregator-killed",
        does="aggregator: kill -9",
        promised=TAKEOVER,
        strike=strikes.killed("aggregator"),
        is_plain=True,
    ),
    Fault(
        id="notifier-killed",
        does="notifier: kill -9",
        promised=TAKEOVER,
        strike=strikes.killed("notifier"),
        is_plain=True,
    ),
    Fault(
        id="web-master-killed",
        does="master's web server: kill -9",
        promised=REFUSED,
        strike=strikes.killed("web-master"),
        is_plain=True,
    ),
    Fault(
        id="serve-killed",
        does="serving process of a push: kill -9",
        promised="the push is in or not, whole",
        strike=strikes.serving_killed,
        is_plain=True,
    ),
    Fault(
        id="developer-killed",
        does="pusher's hg: kill -9",
        promised="the push is in or not, whole",
        strike=strikes.developer_killed,
        is_plain=True,
    ),
)
LOG = (
    Fault(id="log-killed", does="Kafka: kill -9", promised=WAITS, strike=strikes.log_killed, hold=5.0, within=KAFKA),
    Fault(
        id="log-hangs", does="Kafka hangs for 20 s", promised=WAITS, strike=strikes.log_stopped, hold=20.0, within=KAFKA
    ),
    Fault(
        id="rabbitmq-stopped",
        does="RabbitMQ stopped for 5 s",
        promised=ONE_WAITS,
        strike=strikes.rabbitmq_stopped,
        hold=5.0,
    ),
    Fault(
        id="webhook-500",
        does="webhook answers 500 for 15 s",
        promised=ONE_WAITS,
        strike=strikes.endpoint(CI, Reply(status=500)),
        hold=15.0,
    ),
    Fault(
        id="sns-throttled",
        does="SNS throttles for 15 s",
        promised=ONE_WAITS,
        strike=strikes.endpoint(SNS, refuse(400, "Throttling")),
        hold=15.0,
    ),
)
FAULTS = (*KILLED, *LOG)
