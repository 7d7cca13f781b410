# SPDX-License-Identifier: GPL-2.0-or-later
"""The connections of kafka-python's clients, with a limit on each wait.

All clients of the process know within seconds that a broker hangs.

A broker that hangs (stopped, or behind a network that drops everything) accepts connections and never answers. Each client would
wait for its own time-out, and again for each new client that happens to ask this broker first. So a client whose oldest request has
waited long probes its broker by a separate connection, which it keeps for that. A slow request alone proves nothing: a produce
request may wait for replicas, and a fetch for records, for seconds. While the process is idle, one of its clients probes. Every
client avoids a broker that does not answer: it closes its connections to it, opens none, and asks for metadata until that broker
leads nothing more; one client probes it every second.
"""

import selectors
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import ApiVersionsRequest, MetadataResponse

from .transports import open_transport

# Seconds. A request that waits for SUSPICION makes its broker a suspect, which has ANSWER_WITHIN to answer a probe; at most
# SUSPICION later all clients have left a broker that hangs: in all under 5 s. While there are suspects a client looks every
# LOOK_EVERY.
LOOK_EVERY = 0.5
SUSPICION = 1.0
ANSWER_WITHIN = 2.5
PROBE_EVERY = 1.0

# The same for a single broker, which no other can replace: its fetches may last longer, so that little happens when idle.
LONE_SUSPICION = 4.0

# How long a hanging broker is remembered without another failed probe: between two attempts a service has no client to probe it.
REMEMBERED = 60.0
# Seconds that a broker of the URL may take at the first attempt; they double with each failure.
FIRST_PATIENCE = 1.0
# Seconds between two lookups of a coordinator.
LOOKUP_PAUSE = 0.1

BrokerAddress = tuple[str, int]


class HangingBrokers:
    """The brokers that hang, as this process's clients noticed; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[BrokerAddress, float] = {}
        self._suspected: dict[BrokerAddress, float] = {}
        self._probed: dict[BrokerAddress, tuple[float, int]] = {}

    def __contains__(self, address: BrokerAddress | None) -> bool:
        return address is not None and self._until.get(address, 0.0) > time.monotonic()

    def add(self, address: BrokerAddress) -> None:
        self._until[address] = time.monotonic() + REMEMBERED

    def suspect(self, address: BrokerAddress) -> None:
        """Note that a broker was slow to greet; clients with a choice avoid it."""
        self._suspected[address] = time.monotonic() + REMEMBERED

    def doubtful(self, address: BrokerAddress) -> bool:
        return address in self or self._suspected.get(address, 0.0) > time.monotonic()

    def remove(self, address: BrokerAddress) -> None:
        """Note that a broker answered: it neither hangs nor is a suspect."""
        self._until.pop(address, None)
        self._suspected.pop(address, None)

    def claim(self, address: BrokerAddress, client: int) -> bool:
        """Return whether this client should probe the broker.

        One client at a time is enough: the same one as long as it probes, because it has a connection for that.
        """
        with self._lock:
            now = time.monotonic()
            probed, before = self._probed.get(address, (float("-inf"), client))
            if now - probed < (PROBE_EVERY if before == client else PROBE_EVERY + LOOK_EVERY):
                return False
            self._probed[address] = now, client
            return True


HANGING = HangingBrokers()


def _suspicious_at(connection: Any, suspicion: float) -> float:
    """Return when the oldest request will have waited too long for an answer.

    It is infinity if there is no request. While the connection is being opened, its beginning counts in place of a request.
    """
    if connection.initializing:
        return float(connection.begun + SUSPICION)
    oldest = next(iter(connection.in_flight_requests.copy()), None)
    return float("inf") if oldest is None else float(oldest[2] + suspicion)


class Connections(KafkaConnectionManager):  # type: ignore[misc]
    """The connections of one client.

    A handshake has a time limit like everything else; a broker that hangs counts as away. `failure` is why an attempt failed: the
    newest one, or an earlier one if the newest merely ran out of time. `lost` counts the connections that ended, without those of
    the bootstrap.
    """

    def __init__(self, net: NetworkSelector, **settings: Any) -> None:
        super().__init__(net, **settings)
        self.failure: Exception | None = None
        self.lost = 0
        self._look_due = float("inf")
        manager = weakref.proxy(self)  # as the library does: no cycle for the collector
        self.cluster.bootstrap_brokers = lambda: manager._first_to_ask()

    def connection_delay(self, node_id: Any) -> float:
        """Return the seconds until a connection to this broker makes sense.

        For a broker that hangs they are at least LOOK_EVERY: the caller goes to another one, or comes again later.
        """
        delay: float = super().connection_delay(node_id)
        return max(delay, LOOK_EVERY) if self._find_address(node_id) in HANGING else delay

    def is_connected(self, node_id: Any) -> bool:
        """Return whether requests reach this broker at once, as far as known."""
        connection = self._conns.get(node_id)
        return connection is not None and connection.connected and self._find_address(node_id) not in HANGING

    def send(self, request: Any, node_id: Any = None, request_timeout_ms: float | None = None) -> Any:
        """Send a request, and begin to look whether an answer comes."""
        self._begin_to_look()
        return super().send(request, node_id=node_id, request_timeout_ms=request_timeout_ms)

    def bootstrap(self, timeout_ms: float | None = None, refresh: bool = True) -> None:
        """Find the brokers, and one of them that does not hang, as far as known.

        A client that avoided them all would be replaced after its first question, before it probes one. Raises KafkaConnectionError
        if none answers within ANSWER_WITHIN.
        """
        super().bootstrap(timeout_ms, refresh)
        addresses = [(node.host, node.port) for node in self.cluster.brokers()]
        if addresses and all(address in HANGING for address in addresses):
            self.run(self._probe_all, addresses)
            if all(address in HANGING for address in addresses):
                mute = "; ".join(f"{host}:{port} does not answer" for host, port in addresses)
                raise kafka_errors.KafkaConnectionError(mute)

    async def _probe_all(self, addresses: Sequence[BrokerAddress]) -> None:
        for probe in [self.call_soon(self._probe, address) for address in addresses]:
            await probe

    def get_connection(self, node_id: Any, timeout_ms: float | None = None, **settings: Any) -> Any:
        if self.cluster.is_bootstrap(node_id):
            timeout_ms = self._bootstrap_patience(node_id, timeout_ms)
        self._begin_to_look()
        known = self._conns.get(node_id)
        connection = super().get_connection(node_id, timeout_ms=timeout_ms, **settings)
        if connection is not known:
            connection.begun = time.monotonic()
            self._begin_to_look(SUSPICION)
            if not self.cluster.is_bootstrap(node_id):
                connection.close_future.add_both(self._count_lost)
        return connection

    def _count_lost(self, _: object) -> None:
        self.lost += 1

    def _first_to_ask(self) -> list[Any]:
        """Return the brokers of the URL that are likely to answer.

        It leaves out brokers that hang, were slow or just failed, while there are others.
        """
        named = list(self.cluster._bootstrap_brokers.values())
        well = [node for node in named if not HANGING.doubtful((node.host, node.port))]
        return [node for node in well if not self.connection_delay(node.node_id)] or well or named

    def _bootstrap_patience(self, node_id: Any, timeout_ms: float | None) -> float | None:
        """Return the milliseconds that this broker of the URL may take; None: no limit.

        The first attempt leaves time to ask another broker.
        """
        if timeout_ms is None or len(self.cluster._bootstrap_brokers) == 1:
            return timeout_ms
        failures = int(self._backoff.get(node_id, (0,))[0])
        return min(timeout_ms, float(FIRST_PATIENCE * 1000 * 2**failures))

    def _find_address(self, node_id: Any) -> BrokerAddress | None:
        node = self.cluster.broker_metadata(node_id)
        return None if node is None else (node.host, node.port)

    def _begin_to_look(self, delay: float | None = None) -> None:
        at = time.monotonic() + (self._suspect_after if delay is None else delay)
        if at < self._look_due and not self.closed:
            self._look_due = at
            self._net.call_at(at, lambda: self._look_if_due(at))

    def _look_if_due(self, at: float) -> None:
        """Look, unless an earlier look came in between, which decides about the next."""
        if at == self._look_due:
            self._look_at_requests()

    @property
    def _suspect_after(self) -> float:
        """Return how many seconds a request may wait before its broker is a suspect."""
        return LONE_SUSPICION if len(self.cluster.brokers()) == 1 else SUSPICION

    def _look_at_requests(self) -> None:
        """Drop the connections to brokers that hang, and probe slow ones.

        It runs again later while the client waits for an answer or doubts a broker.
        """
        self._look_due = float("inf")
        if self.closed:
            return
        now = time.monotonic()
        known = {
            (node.host, node.port) for node in (*self.cluster.brokers(), *self.cluster._bootstrap_brokers.values())
        }
        suspects = {address for address in known if HANGING.doubtful(address)}
        suspicion, next_at = self._suspect_after, float("inf")
        for connection in list(self._conns.values()):
            address = self._find_address(connection.node_id)
            if address is None:  # a probe
                continue
            if address in HANGING:
                connection.close(kafka_errors.KafkaConnectionError(f"{address[0]}:{address[1]} does not answer"))
            elif (at := _suspicious_at(connection, suspicion)) <= now:
                suspects.add(address)
            else:
                next_at = min(next_at, at)
        if suspects:
            self._begin_to_look(LOOK_EVERY)
        elif next_at < float("inf"):
            self._begin_to_look(next_at - now)
        for address in suspects:
            if HANGING.claim(address, id(self)):
                self.call_soon(self._probe, address)
        if any((node.host, node.port) in HANGING for node in self.cluster.brokers()):
            self.cluster.request_update()  # it may lead no more

    async def _probe(self, address: BrokerAddress) -> None:
        """Ask the broker something that it answers at once, to see whether it hangs.

        Other requests may wait for good reasons.
        """
        name, deadline = f"probe-{address[0]}:{address[1]}", time.monotonic() + ANSWER_WITHIN
        connection, answered = self._conns.get(name), False
        if connection is not None and connection.initializing:
            return  # an earlier probe still waits for it
        try:
            if connection is not None:
                names = {name: self.config[name] for name in ("client_software_name", "client_software_version")}
                await connection.send_request(ApiVersionsRequest(**names), request_timeout_ms=ANSWER_WITHIN * 1000)
                answered = True
            else:
                connection = await self._greet(name, address, deadline)
                answered = connection.init_future.succeeded()
            if answered and not self.closed:
                HANGING.remove(address)
        except kafka_errors.KafkaError:
            pass  # it was lost, or the time is over
        finally:
            if not answered and connection is not None:
                self._conns.pop(name, None)
                connection.close()
        if not answered and time.monotonic() >= deadline:
            HANGING.add(address)

    async def _greet(self, name: str, address: BrokerAddress, deadline: float) -> KafkaConnection:
        """Open a connection for probes and wait for the broker's first answer.

        It is closed with the other connections.
        """
        node = MetadataResponse.MetadataResponseBroker(name, *address, None)
        connection = self._conns[name] = KafkaConnection(
            self._net, node_id=name, broker_version_data=self.broker_version_data, **self.config
        )
        connection.close_future.add_both(lambda _: self._conns.pop(name, None))
        await super()._connect(node, connection, timeout_at=deadline)
        return connection

    async def _connect(self, node: Any, conn: Any, timeout_at: float | None = None, **settings: Any) -> None:
        await super()._connect(node, conn, timeout_at=timeout_at, **settings)
        if conn.init_future.failed():
            is_late = timeout_at is not None and time.monotonic() >= timeout_at
            if (
                self.failure is None or not is_late
            ):  # an earlier attempt's error says more than that the last one had no time
                self.failure = conn.init_future.exception
            if is_late and self.cluster.is_bootstrap(node.node_id):
                HANGING.suspect((node.host, node.port))

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        return await open_transport(self._net, node, self.config, has_tls=self.ssl_enabled, timeout_at=timeout_at)


class Selector(selectors.DefaultSelector):
    """The system's selector, which does not describe unregistered sockets.

    The library registers a socket for each wait, and asks for its key before, in vain. The usual error describes the socket twice,
    with four system calls: more work than all else for a wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self._registered: set[Any] = set()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self._registered.add(fileobj)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        self._registered.discard(fileobj)
        return super().unregister(fileobj)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        if fileobj not in self._registered:
            raise KeyError("not registered")
        return super().get_key(fileobj)


class Network(KafkaNetClient):  # type: ignore[misc]
    """The event loop of a client.

    Closing it ends its thread first, then closes every socket.
    """

    def __init__(self, **settings: Any) -> None:
        net = NetworkSelector(**settings)
        super().__init__(net=net, manager=Connections(net, **settings))

    def await_ready(self, node_id: Any, timeout_ms: float = 30_000) -> bool:
        """Return whether the broker can be asked; the library raises if not.

        On an exception, the library's sender of transactions would drop the request, and its caller would wait until the time
        limit. On False, the sender looks up the present coordinator and asks that one. It does so repeatedly, so the method pauses
        for LOOKUP_PAUSE first.
        """
        try:
            return bool(super().await_ready(node_id, timeout_ms=timeout_ms))
        except (kafka_errors.KafkaConnectionError, kafka_errors.UnknownBrokerIdError):
            time.sleep(LOOKUP_PAUSE)
            return False

    def close(self, node_id: Any = None) -> None:
        if node_id is None:
            self._net.stop()
        super().close(node_id)
