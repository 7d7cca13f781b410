# SPDX-License-Identifier: GPL-2.0-or-later
"""The faults: what each does, what the documentation promises then, and by when the installation must have recovered."""

import functools
import signal
from dataclasses import dataclass

from hgext.vcsreplicator.log import ACKS, EVENTS, ROSTER_REQUESTS
from testing.builders.notifier.endpoint import Reply
from testing.faults.campaign import strikes
from testing.faults.campaign.cloud import refuse
from testing.faults.campaign.site import CI, S3, SNS
from testing.faults.campaign.strikes import Strike

# Seconds of recovery after a fault that no operator must end; with `takeover-after`, the session of Kafka or a start of its JVM;
# and where a service copies from the master, reads the log again, or tries again after a pause.
SOON, KAFKA, HEALS = 10.0, 20.0, 30.0
# Seconds for which a process is stopped, longer than `takeover-after`; a clock is wrong; a receiver is in trouble.
STOPPED, WRONG, TROUBLED = 40.0, 15.0, 15.0
HOUR = 3600.0
# Parts that faults touch whose ids begin otherwise: `PUSHES` is what must work for a process of a push to be found.
MIRROR, AGGREGATOR, PUSHES = frozenset({"mirror"}), frozenset({"aggregator"}), frozenset({"web", "master", "serve"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A row of the table. It lasts `hold` seconds, and is over by `within` seconds after its end.

    Of the mirrors that it `spares` nothing is promised meanwhile. A fault that `is_plain` needs no brokers and receivers; any
    other fault needs `brokers` brokers of Kafka. It `touches` the part that its id begins with, unless said otherwise; a fault
    that `is_alone` needs all other parts.
    """

    id: str
    does: str
    promised: str
    strike: Strike
    hold: float = 2.0
    within: float = SOON
    spares: tuple[str, ...] = ()
    is_plain: bool = False
    brokers: int = 1
    touches: frozenset[str] = frozenset()
    is_alone: bool = False

    def meets(self, other: "Fault") -> bool:
        """Return whether the two must not strike at once."""
        return self.is_alone or other.is_alone or not self._parts.isdisjoint(other._parts)

    @property
    def _parts(self) -> frozenset[str]:
        return self.touches or frozenset({self.id.partition("-")[0]})


OUTBOX = "pushes are accepted and wait in the outbox"
WAITS = "pushes are accepted; notices wait"
REFUSED = "pushes are refused until it is back; mirrors serve on"
TAKEOVER = "another one takes over"
WHOLE = "the push is in or not, whole; it is pushed again"
CLIENTS = "its clients go to another mirror"
ALONE = "its messages wait, those of other destinations go on"
REPEATED = "a message is sent again until its answer comes"
GIVEN_UP = "its messages are given up, and kept for an operator to send again"
HEALED = "the mirror copies it from the master at the next event"

# Each service → its name for readers, what is promised without it, and the mirror whose pages it serves.
SERVICES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "relay": ("relay", OUTBOX, ()),
    "mirror": ("mirror", WAITS, ()),
    "aggregator": ("aggregator", TAKEOVER, ()),
    "notifier": ("notifier", TAKEOVER, ()),
    "web-master": ("master's web server", REFUSED, ()),
    "web-alpha": ("mirror's web server", CLIENTS, ("alpha",)),
}


def _of_each_service() -> list[Fault]:
    found = []
    for service, (name, promised, spares) in SERVICES.items():
        of_service = functools.partial(Fault, promised=promised, spares=spares)
        found += [
            of_service(
                id=f"{service}-killed", does=f"{name}: `kill -9`", strike=strikes.killed(service), is_plain=True
            ),
            of_service(id=f"{service}-restarted", does=f"{name}: stopped as asked", strike=strikes.terminated(service)),
            of_service(
                id=f"{service}-stopped",
                does=f"{name}: SIGSTOP for {STOPPED:.0f} s",
                strike=strikes.stopped(service),
                hold=STOPPED,
            ),
        ]
    return found


def _of_each_clock() -> list[Fault]:
    return [
        Fault(
            id=f"{service}-clock-{word}",
            does=f"{service}: its clock is an hour {word} for {WRONG:.0f} s",
            promised="nothing changes",
            strike=strikes.wrong_clock(service, ahead),
            hold=WRONG,
        )
        for service in ("relay", "mirror", "aggregator", "notifier")
        for word, ahead in (("ahead", HOUR), ("back", -HOUR))
    ]


PROCESSES = (
    Fault(
        id="worker-killed",
        does="worker of a mirror: `kill -9`",
        promised="the mirror starts another",
        strike=strikes.worker(signal.SIGKILL),
        is_plain=True,
        touches=MIRROR,
    ),
    Fault(
        id="worker-stopped",
        does="worker of a mirror: SIGSTOP for 40 s",
        promised="it is replaced; its repository is detached as slow",
        strike=strikes.worker(signal.SIGSTOP),
        hold=STOPPED,
        within=HEALS,
        touches=MIRROR,
    ),
    Fault(
        id="serve-killed",
        does="serving process of a push: `kill -9`",
        promised=WHOLE,
        strike=strikes.serving_killed,
        is_plain=True,
        touches=PUSHES,
    ),
    Fault(
        id="developer-killed",
        does="pusher's `hg`: `kill -9`",
        promised=WHOLE,
        strike=strikes.developer_killed,
        is_plain=True,
        touches=PUSHES,
    ),
    Fault(
        id="aggregators-killed",
        does="all aggregators: `kill -9`, 10 s",
        promised=WAITS,
        strike=strikes.all_killed("aggregator"),
        hold=10.0,
        within=KAFKA,
        touches=AGGREGATOR,
    ),
    Fault(
        id="notifiers-killed",
        does="all notifiers: `kill -9`, 10 s",
        promised="messages wait",
        strike=strikes.all_killed("notifier"),
        hold=10.0,
        touches=frozenset({"notifier"}),
    ),
    Fault(
        id="mirrors-killed",
        does="all mirrors: `kill -9`, 10 s",
        promised=WAITS,
        strike=strikes.all_killed("mirror"),
        hold=10.0,
        touches=MIRROR,
    ),
    Fault(
        id="two-killed",
        does="relay and aggregator: `kill -9`",
        promised=OUTBOX,
        strike=strikes.killed("relay", "aggregator"),
        touches=AGGREGATOR | {"relay"},
    ),
    Fault(
        id="all-killed",
        does="all services at once: `kill -9`",
        promised=REFUSED,
        strike=strikes.all_killed(""),
        within=KAFKA,
        spares=("alpha", "beta"),
        is_alone=True,
    ),
    Fault(
        id="aggregator-lost",
        does="aggregator's machine lost with its disk",
        promised=TAKEOVER,
        strike=strikes.emptied("aggregator"),
    ),
    Fault(
        id="notifier-lost",
        does="notifier's machine lost with its disk",
        promised=TAKEOVER,
        strike=strikes.emptied("notifier"),
    ),
)
LOG = (
    Fault(
        id="log-killed", does="Kafka: `kill -9`, 5 s", promised=WAITS, strike=strikes.log_killed, hold=5.0, within=KAFKA
    ),
    Fault(id="log-restarted", does="Kafka: restarted", promised=WAITS, strike=strikes.log_restarted, within=KAFKA),
    Fault(
        id="log-hangs",
        does="Kafka: SIGSTOP for 20 s",
        promised=WAITS,
        strike=strikes.log_stopped,
        hold=20.0,
        within=KAFKA,
    ),
    Fault(
        id="log-slow",
        does="Kafka answers 300 ms later for 15 s",
        promised="all goes on, slower",
        strike=strikes.log_delayed,
        hold=TROUBLED,
    ),
    Fault(
        id="log-without-requests",
        does="nothing reaches Kafka for 20 s",
        promised=WAITS,
        strike=strikes.log_without_requests,
        hold=20.0,
        within=KAFKA,
    ),
    Fault(
        id="log-without-answers",
        does="nothing comes back from Kafka for 20 s",
        promised=WAITS,
        strike=strikes.log_without_answers,
        hold=20.0,
        within=KAFKA,
    ),
    Fault(
        id="log-resets",
        does="each tenth answer of Kafka is cut in its middle, its connection reset, for 15 s",
        promised="all goes on, slower",
        strike=strikes.log_resets,
        hold=TROUBLED,
        within=KAFKA,
    ),
    Fault(
        id="log-notices-older",
        does="Kafka: `kill -9`; it comes back without the newest 5 s of `notices`",
        promised="the aggregator writes them again",
        strike=strikes.notices_older,
        hold=5.0,
        within=HEALS,
        is_alone=True,
    ),
    Fault(
        id="mirror-positions-back",
        does="stored positions of a mirror are lost",
        promised="it reads the log again, and applies nothing twice",
        strike=strikes.positions_back("mirror-alpha", "mirror-alpha", EVENTS),
        within=HEALS,
        is_alone=True,
    ),
    Fault(
        id="aggregator-positions-back",
        does="stored positions of the aggregators are lost",
        promised="they read the log again, and announce nothing twice",
        strike=strikes.positions_back("aggregator", "aggregator", EVENTS, ACKS, ROSTER_REQUESTS),
        within=HEALS,
        is_alone=True,
    ),
)
RECEIVERS = (
    Fault(
        id="rabbitmq-stopped",
        does="RabbitMQ: stopped for 15 s",
        promised=ALONE,
        strike=strikes.rabbitmq_stopped,
        hold=TROUBLED,
    ),
    Fault(
        id="rabbitmq-killed", does="RabbitMQ: `kill -9`, 5 s", promised=ALONE, strike=strikes.rabbitmq_killed, hold=5.0
    ),
    Fault(
        id="rabbitmq-hangs", does="RabbitMQ: SIGSTOP for 20 s", promised=ALONE, strike=strikes.rabbitmq_hangs, hold=20.0
    ),
    Fault(
        id="rabbitmq-connections-closed",
        does="RabbitMQ closes all connections",
        promised=ALONE,
        strike=strikes.connections_closed,
    ),
    Fault(
        id="rabbitmq-memory",
        does="RabbitMQ: memory alarm for 15 s",
        promised=ALONE,
        strike=strikes.memory_alarm,
        hold=TROUBLED,
    ),
    Fault(
        id="rabbitmq-right-taken",
        does="RabbitMQ: the user may not write for 15 s",
        promised=ALONE,
        strike=strikes.right_taken,
        hold=TROUBLED,
    ),
    Fault(
        id="rabbitmq-password-changed",
        does="RabbitMQ: another password for 15 s",
        promised=ALONE,
        strike=strikes.password_changed,
        hold=TROUBLED,
    ),
    Fault(
        id="queue-full",
        does="one consumer's queue is full (nack), then deleted",
        promised="that queue has a gap, the others have all",
        strike=strikes.queue_full,
        hold=TROUBLED,
        touches=frozenset({"rabbitmq"}),
    ),
    Fault(
        id="webhook-500",
        does="webhook's endpoint answers 500 for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(CI, Reply(status=500)),
        hold=TROUBLED,
        within=SOON,
    ),
    Fault(
        id="webhook-503",
        does="webhook's endpoint is overloaded (503) for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(CI, Reply(status=503)),
        hold=TROUBLED,
        within=SOON,
    ),
    Fault(
        id="webhook-429",
        does="webhook's endpoint has too many requests (429) for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(CI, Reply(status=429)),
        hold=TROUBLED,
        within=SOON,
    ),
    Fault(
        id="webhook-hangs",
        does="webhook's endpoint does not answer for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(CI, strikes.hanging()),
        hold=TROUBLED,
        within=SOON,
    ),
    Fault(
        id="webhook-resets",
        does="webhook's endpoint resets connections for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(CI, Reply(status=500, reset=True)),
        hold=TROUBLED,
        within=SOON,
    ),
    Fault(
        id="webhook-answers-lost",
        does="webhook's endpoint takes messages for 15 s, and its answers are lost",
        promised=REPEATED,
        strike=strikes.endpoint(CI, Reply(reset=True)),
        hold=TROUBLED,
    ),
    Fault(
        id="webhook-flaps",
        does="webhook's endpoint fails every second time for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(CI, Reply(), Reply(status=500)),
        hold=TROUBLED,
        within=SOON,
    ),
    Fault(
        id="webhook-drips",
        does="webhook's endpoint answers a byte a second for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(CI, Reply(drips=1.0, body=bytes(60))),
        hold=TROUBLED,
        within=SOON,
    ),
    Fault(
        id="webhook-404",
        does="webhook's endpoint answers 404 for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(CI, Reply(status=404)),
        hold=TROUBLED,
    ),
    Fault(
        id="webhook-redirects",
        does="webhook's endpoint answers with a redirect for 15 s",
        promised=GIVEN_UP,
        strike=strikes.endpoint(CI, Reply(status=302)),
        hold=TROUBLED,
    ),
    Fault(
        id="webhook-gone",
        does="webhook's endpoint is gone (410) for 15 s",
        promised="the subscription is paused until an operator resumes it",
        strike=strikes.endpoint_gone,
        hold=TROUBLED,
        is_alone=True,
    ),
    Fault(
        id="sns-throttled",
        does="SNS throttles for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(SNS, refuse(400, "Throttling")),
        hold=TROUBLED,
    ),
    Fault(
        id="sns-answers-lost",
        does="SNS takes messages for 15 s, and its answers are lost",
        promised=REPEATED,
        strike=strikes.endpoint(SNS, Reply(reset=True)),
        hold=TROUBLED,
    ),
    Fault(
        id="sns-forbidden",
        does="SNS refuses (403) for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(SNS, refuse(403, "AuthorizationError")),
        hold=TROUBLED,
    ),
    Fault(
        id="sns-hangs",
        does="SNS does not answer for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(SNS, strikes.hanging()),
        hold=TROUBLED,
    ),
    Fault(
        id="s3-slow-down",
        does="S3 asks to slow down (503) for 15 s",
        promised=ALONE,
        strike=strikes.endpoint(S3, refuse(503, "SlowDown")),
        hold=TROUBLED,
        touches=frozenset({"sns"}),
    ),
)
DISKS = (
    Fault(
        id="master-power-cut",
        does="master: power cut; its disk loses what was not synced",
        promised=f"pushers' word holds; {REFUSED}",
        strike=strikes.power_cut("master", "relay", "web-master"),
        touches=PUSHES | {"relay"},
    ),
    Fault(
        id="mirror-power-cut",
        does="mirror: power cut; its disk loses what was not synced",
        promised="it answers 503 until it has again what it had acknowledged",
        strike=strikes.power_cut("beta", "mirror-beta", "web-beta"),
        within=HEALS,
        spares=("beta",),
    ),
    Fault(
        id="master-disk-full",
        does="master's disk is full for 10 s",
        promised="pushes are refused, whole",
        strike=strikes.disk_full("master"),
        hold=10.0,
        touches=PUSHES,
    ),
    Fault(
        id="master-disk-read-only",
        does="master's disk is read-only for 10 s",
        promised="pushes are refused",
        strike=strikes.disk_read_only("master"),
        hold=10.0,
        touches=PUSHES | {"relay"},
    ),
    Fault(
        id="mirror-disk-full",
        does="mirror's disk is full for 10 s",
        promised="the mirror retries; notices wait",
        strike=strikes.disk_full("beta"),
        hold=10.0,
        within=HEALS,
        spares=("beta",),
    ),
    Fault(
        id="mirror-repository-damaged",
        does="mirror's repository: half of its changelog is lost",
        promised=HEALED,
        strike=strikes.repository_damaged,
        within=HEALS,
        spares=("beta",),
    ),
    Fault(
        id="mirror-repository-emptied",
        does="mirror's repository: its store is gone",
        promised=HEALED,
        strike=strikes.repository_emptied,
        within=HEALS,
        spares=("beta",),
    ),
    Fault(
        id="mirror-repository-removed",
        does="mirror's repository is gone",
        promised=HEALED,
        strike=strikes.repository_removed,
        within=HEALS,
        spares=("beta",),
    ),
    Fault(
        id="mirror-notes-removed",
        does="mirror: killed, its folder of notes is gone",
        promised="the mirror makes a new one",
        strike=strikes.notes_removed,
        within=HEALS,
    ),
    Fault(
        id="mirror-deactivated",
        does="an operator deactivates a mirror, and activates it 5 s later",
        promised="notices go out without it meanwhile",
        strike=strikes.deactivated,
        hold=5.0,
        spares=("beta",),
        is_alone=True,
    ),
    Fault(
        id="mirror-lost",
        does="mirror's machine lost with its disk, filled anew",
        promised="an operator deactivates and bootstraps it",
        strike=strikes.mirror_lost,
        within=HEALS,
        spares=("beta",),
        is_alone=True,
    ),
)
_of_three = functools.partial(Fault, promised="another broker takes over", within=KAFKA, brokers=3, is_alone=True)
BROKERS = (
    _of_three(
        id="broker-leader-killed",
        does="one of three brokers, which leads the busiest partition of `events`: `kill -9`, 10 s",
        strike=strikes.broker_killed(strikes.leader),
        hold=10.0,
    ),
    _of_three(
        id="broker-coordinator-killed",
        does="one of three brokers, the coordinator of the aggregators: `kill -9`, 10 s",
        strike=strikes.broker_killed(strikes.coordinator),
        hold=10.0,
    ),
    _of_three(
        id="broker-controller-killed",
        does="one of three brokers, the controller: `kill -9`, 10 s",
        strike=strikes.broker_killed(strikes.controller),
        hold=10.0,
    ),
    _of_three(
        id="broker-power-cut",
        does="one of three brokers: power cut; its disk loses what was not synced",
        strike=strikes.broker_power_cut,
        hold=10.0,
    ),
    _of_three(
        id="broker-stopped",
        does="one of three brokers: SIGSTOP for 20 s",
        strike=strikes.broker_stopped,
        hold=20.0,
    ),
    _of_three(
        id="brokers-restarted", does="three brokers: restarted one after the other", strike=strikes.brokers_restarted
    ),
    _of_three(
        id="two-brokers-killed",
        does="two of three brokers: `kill -9`, 20 s",
        promised=WAITS,
        strike=strikes.two_brokers_killed,
        hold=20.0,
        within=HEALS,
    ),
)
# The faults of an installation with one broker, and all faults.
FAULTS = (*_of_each_service(), *PROCESSES, *_of_each_clock(), *LOG, *RECEIVERS, *DISKS)
EVERY = (*FAULTS, *BROKERS)
