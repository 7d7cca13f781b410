# SPDX-License-Identifier: GPL-2.0-or-later
"""Destinations: messages per second from the log to the other side, and webhooks while a third of the endpoints fail.

Each notice is a push; 100 repositories take turns. The log is the embedded one; brokers, clouds and endpoints are real or moto, on
this machine and its cores.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import structlog
from prometheus_client import REGISTRY

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.retry import Backoff
from notifier.delivery.destination import DestinationSettings
from notifier.delivery.window import Patience
from notifier.destinations.jsonlines import JsonLinesSettings
from notifier.destinations.pulse.destination import PulseSettings
from notifier.destinations.sns.destination import SnsSettings
from notifier.destinations.webhook.deliveries import Deliveries
from notifier.destinations.webhook.destination import WebhookSettings
from notifier.destinations.webhook.subscription import Order, Subscription
from notifier.messages.public import PublicSettings
from notifier.publishing import publisher
from notifier.publishing.settings import NotifierSettings
from testing.bench.measure import Row
from testing.bench.stub_cloud import stub_cloud
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.builders.notifier.notices import a_notice, an_event, publish, with_topics
from testing.builders.notifier.receivers import PulseReceiver, SnsReceiver
from testing.services.aws import Aws
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually

REPOSITORIES = 100
# Destinations of one notifier.
MANY = 20
# Subscriptions with a filter.
FILTERED = 1000
PUBLIC = PublicSettings(urls={"": "https://hg.example/"})
PATIENCE = 600.0


def rows() -> list[Row]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    try:
        return [
            *pulse(),
            *beside_trouble(),
            *sns(),
            *sns_alone(),
            *webhooks(),
            filters(),
            *lines(),
            *failing_endpoints(),
        ]
    finally:
        structlog.reset_defaults()


@contextmanager
def fresh_log() -> Iterator[tuple[Log, Path]]:
    with tempfile.TemporaryDirectory() as folder, open_log(f"sqlite://{folder}/log.db", creates=True) as log:
        yield with_topics(log), Path(folder)


@contextmanager
def at_work(log: Log, folder: Path, settings: DestinationSettings, **others: DestinationSettings) -> Iterator[None]:
    """A notifier with this destination, named `it`, and others, for the length of a block."""
    stop, ready = threading.Event(), threading.Event()
    whole = NotifierSettings(public=PUBLIC, destinations={"it": settings, **others}, state=str(folder / "notifier.db"))
    thread = threading.Thread(target=lambda: publisher.run(whole, log, stop=stop, ready=ready.set))
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def write(log: Log, count: int, first: int = 1) -> None:
    """`count` notices, in batches, the repositories in turn."""
    for begin in range(0, count, 500):
        numbers = range(begin, min(begin + 500, count))
        publish(log, *(a_notice(an_event(f"r{n % REPOSITORIES}", first + n // REPOSITORIES)) for n in numbers))


def drain_rate(name: str, settings: DestinationSettings, count: int, *, repeat: int = 3) -> Row:
    """Messages per second of a backlog, from the start of the notifier until all are confirmed."""
    rates = []
    for _ in range(repeat):
        with fresh_log() as (log, folder):
            write(log, count)
            if isinstance(settings, WebhookSettings):
                settings = replace(settings, database=str(folder / "deliveries.db"))
            end, began = confirmed() + count, time.perf_counter()
            with at_work(log, folder, settings):
                eventually(lambda: confirmed() == end, timeout=PATIENCE, every=0.01)  # noqa: B023
                rates.append(count / (time.perf_counter() - began))
    return Row(name=name, unit="messages/s", samples=rates)


def confirmed(*names: str) -> float:
    """Return how many messages these destinations have confirmed in this process."""
    name = "vcsreplicator_notifier_delivered_messages_total"
    return sum(REGISTRY.get_sample_value(name, {"destination": each}) or 0.0 for each in names or ("it",))


def delivered(deliveries: Deliveries, count: int) -> None:
    eventually(lambda: deliveries.counts().get("delivered", 0) == count, timeout=PATIENCE, every=0.005)


def pulse() -> Iterator[Row]:
    with RabbitMQ() as broker:
        receiver = PulseReceiver(broker, "v2")
        receiver.close()
        settings = PulseSettings(url=receiver.url, exchange=receiver.exchange)
        yield drain_rate("Pulse, confirmed, one durable queue bound", settings, 20_000)
        with fresh_log() as (log, folder), at_work(log, folder, settings):
            samples = [one_by_one(log, number) for number in range(1, 101)]
        yield Row(name="Pulse, one push alone: notice to confirmation", unit="ms", samples=samples)


def beside_trouble() -> Iterator[Row]:
    """One destination's latency while the broker of another hangs and a webhook's endpoint never answers."""
    hang = threading.Event()
    with RabbitMQ() as broker, RabbitMQ() as other, Endpoint(always(Reply(hang=hang))) as endpoint:
        receivers = [PulseReceiver(broker, "v2"), PulseReceiver(other, "v2")]
        it, sick = [PulseSettings(url=each.url, exchange=each.exchange) for each in receivers]
        for receiver in receivers:
            receiver.close()
        found = {}
        for name, trouble in (("the others well", False), ("one other hangs, one never answers", True)):
            with fresh_log() as (log, folder):
                wanted = {"one": Subscription(url=endpoint.url, timeout=1.0)} if trouble else {}
                if trouble:
                    other.pause()
                with at_work(log, folder, it, sick=sick, hooks=webhook_settings(folder, wanted)):
                    one_by_one(log, 1)
                    found[name] = [one_by_one(log, number) for number in range(2, 102)]
                    if trouble:
                        hang.set()
                        other.resume()
        baseline = statistics.median(found["the others well"])
        for name, samples in found.items():
            yield Row(name=f"Pulse, one push alone, {name}", unit="ms", samples=samples, baseline=baseline)


def one_by_one(log: Log, number: int) -> float:
    before, began = confirmed(), time.perf_counter()
    publish(log, a_notice(an_event("alone", number)))
    while confirmed() == before:
        time.sleep(0.0005)
    return (time.perf_counter() - began) * 1000


def sns() -> Iterator[Row]:
    """moto works and answers like the cloud, at the cost of Python: it closes each connection, and is one process of one lock."""
    with Aws() as cloud, _credentials(cloud.credentials):
        receiver = SnsReceiver(cloud.url)
        receiver.unsubscribe()
        settings = receiver.settings()
        assert isinstance(settings, SnsSettings)
        # More workers only wait for each other there.
        settings = replace(settings, workers=4)
        drain_rate("warming", settings, 200, repeat=1)
        # Each message in a queue of moto's makes the next one dearer: 16 ms at 400, 33 ms at 1,200.
        note = "warmed by 200; no queue subscribed"
        yield replace(drain_rate("SNS, object and message, moto", settings, 600), note=note)
        with fresh_log() as (log, folder), at_work(log, folder, settings):
            samples = [one_by_one(log, number) for number in range(1, 101)]
        yield Row(name="SNS, one push alone: notice to confirmation", unit="ms", samples=samples)


def sns_alone() -> Iterator[Row]:
    """What the destination itself can do, beside a cloud that costs almost nothing."""
    with stub_cloud() as url, _credentials({"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}):
        settings = SnsSettings(
            topic_arn="arn:aws:sns:us-west-2:123456789012:bench",
            bucket="bench",
            region="us-west-2",
            sns_endpoint_url=url,
            s3_endpoint_url=url,
        )
        yield drain_rate("SNS, object and message, a stub that keeps nothing", settings, 3000)


@contextmanager
def _credentials(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def lines() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield drain_rate("JSON lines, synced", JsonLinesSettings(file=f"{folder}/out"), 5000)
    for rate, count in (None, 5000), (20, 400):
        how = "from a backlog" if rate is None else f"at {rate}/s"
        samples = [many_lines(count, rate) for _ in range(3)]
        yield Row(name=f"{MANY} times JSON lines, a notice {how}, processor", unit="ms", samples=samples)


def many_lines(count: int, rate: float | None) -> float:
    """Return the processor time of this process for a notice to MANY files, in milliseconds.

    Without a `rate` the notices are a backlog. At a rate, what the same destinations use at rest is left out.
    """
    with fresh_log() as (log, folder):
        names = [f"d{number}" for number in range(MANY)]
        it, *others = (JsonLinesSettings(file=f"{folder}/{name}") for name in names)
        if rate is None:
            write(log, count)
        end, began = confirmed("it", *names[1:]) + MANY * count, time.process_time()
        with at_work(log, folder, it, **dict(zip(names[1:], others, strict=True))):
            if rate is not None:
                time.sleep(5.0)  # it starts
                began, rested = time.process_time(), time.perf_counter()
                time.sleep(5.0)
                rest = (time.process_time() - began) / (time.perf_counter() - rested)
                began, started = time.process_time(), time.perf_counter()
                for number in range(count):
                    time.sleep(max(0.0, started + number / rate - time.perf_counter()))
                    publish(log, a_notice(an_event(f"r{number % REPOSITORIES}", 1 + number // REPOSITORIES)))
                began += rest * (time.perf_counter() - started)
            eventually(lambda: confirmed("it", *names[1:]) == end, timeout=PATIENCE, every=0.01)
            return (time.process_time() - began) * 1000 / count


def webhook_settings(folder: Path, subscriptions: dict[str, Subscription]) -> WebhookSettings:
    return WebhookSettings(
        database=str(folder / "deliveries.db"),
        ladder=(0, 0.5, 1, 2),
        allow=("127.0.0.0/8",),
        allow_http=True,
        subscriptions=subscriptions,
        patience=Patience(retry=Backoff(first=0.05, longest=1.0)),
    )


def webhooks() -> Iterator[Row]:
    """One endpoint, in order per repository, from the first notice to the last delivery recorded."""
    rates, count = [], 2000
    for _ in range(3):
        with fresh_log() as (log, folder), Endpoint() as endpoint:
            wanted = {"one": Subscription(url=endpoint.url, concurrency=16)}
            write(log, count)
            began = time.perf_counter()
            with at_work(log, folder, webhook_settings(folder, wanted)):
                deliveries = Deliveries(str(folder / "deliveries.db"))
                delivered(deliveries, count)
                rates.append(count / (time.perf_counter() - began))
                deliveries.close()
    yield Row(name="webhooks, one endpoint", unit="deliveries/s", samples=rates)


def filters() -> Row:
    """1,000 subscriptions to one repository each, of which there are no notices: each filter looks at each notice."""
    samples = [filtered(500) for _ in range(3)]
    return Row(name=f"a notice to {FILTERED} subscriptions with filters, processor", unit="ms", samples=samples)


def filtered(count: int) -> float:
    """Return the processor time of this process for a notice that no filter wants, in milliseconds."""
    wanted = {
        f"s{number}": Subscription(
            url="http://127.0.0.1:9/", filter=f"type == 'changegroup.1' && contains(data.repo_url, '/other{number}/')"
        )
        for number in range(FILTERED)
    }
    with fresh_log() as (log, folder):
        write(log, count)
        end, began = confirmed() + count, time.process_time()
        with at_work(log, folder, webhook_settings(folder, wanted)):
            eventually(lambda: confirmed() == end, timeout=PATIENCE, every=0.01)
            return (time.process_time() - began) * 1000 / count


def failing_endpoints() -> Iterator[Row]:
    """10 subscriptions, 1,000 notices at a steady pace: 10,000 deliveries; in the second run 3 endpoints fail, each in its way."""
    healthy = latencies(failing=False)
    sick = latencies(failing=True)
    for name, samples in (("no failures", healthy), ("3 of 10 endpoints fail", sick)):
        yield Row(
            name=f"first attempts at sound endpoints, {name}",
            unit="ms",
            samples=samples,
            baseline=statistics.median(healthy),
        )
    p95 = [sorted(samples)[int(len(samples) * 0.95)] for samples in (healthy, sick)]
    yield Row(name="their 95th percentiles: with failures / without", unit="ratio", samples=[p95[1] / p95[0]])


SUBSCRIPTIONS, FAILING, NOTICES_SENT, PACE = 10, 3, 1000, 25.0


def always(reply: Reply) -> Callable[[Request], Reply]:
    return lambda request: reply


def latencies(*, failing: bool) -> list[float]:
    """Milliseconds from notice to arrival at the endpoints that never fail; every delivery is accounted for at the end."""
    sent: dict[str, float] = {}
    came: list[float] = []
    hang = threading.Event()

    def sound(request: Request) -> Reply:
        began = sent.get(json.loads(request.text)["data"]["heads"][0])
        if began is not None:
            came.append((time.perf_counter() - began) * 1000)
        return Reply()

    broken = (Reply(status=500), Reply(reset=True), Reply(hang=hang))
    with ExitStack() as stack, fresh_log() as (log, folder):
        wanted = {}
        for number in range(SUBSCRIPTIONS):
            bad = failing and number < FAILING
            reply = broken[number] if bad else None
            endpoint = stack.enter_context(Endpoint(sound if reply is None else always(reply)))
            # Many strict subscriptions would queue behind themselves; speed shows what retries cost others.
            wanted[f"s{number}"] = Subscription(url=endpoint.url, timeout=1.0, order=Order.SPEED)
        with at_work(log, folder, replace(webhook_settings(folder, wanted), ladder=(0, 1, 2))):
            for number in range(NOTICES_SENT):
                event = an_event(f"r{number % REPOSITORIES}", 1 + number // REPOSITORIES)
                sent[event.changes.heads_added[0]] = time.perf_counter()
                publish(log, a_notice(event))
                time.sleep(1 / PACE)
            deliveries = Deliveries(str(folder / "deliveries.db"))
            sound_ones = NOTICES_SENT * (SUBSCRIPTIONS - (FAILING if failing else 0))
            delivered(deliveries, sound_ones)
            hang.set()  # so that what hung may end
            counts = deliveries.counts()
            assert sum(counts.values()) == NOTICES_SENT * SUBSCRIPTIONS, counts
            print(f"accounted for, failing={failing}: {counts}", file=sys.stderr)
            deliveries.close()
    return came
