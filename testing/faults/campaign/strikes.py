# SPDX-License-Identifier: GPL-2.0-or-later
"""How a fault is brought about: each strike is a block in which it lasts, and whose end heals it."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from testing.builders.notifier.endpoint import Reply, Request
from testing.faults.campaign.site import Site
from testing.faults.wrong_clock import set_clock
from testing.services.guard import descendants
from testing.waiting import eventually
from testing.warm import is_stem

Strike = Callable[[Site], AbstractContextManager[None]]


def killed(service: str) -> Strike:
    """SIGKILL to one of these services."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        site.cluster.kill(site.pick(service))
        yield
        site.revive()

    return strike


def terminated(service: str) -> Strike:
    """One of these services is asked to stop, and started again."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        site.signal(role := site.pick(service), signal.SIGTERM)
        eventually(lambda: not site.cluster.running(role), f"{role} ends")
        yield
        site.revive()

    return strike


def stopped(service: str) -> Strike:
    """SIGSTOP to one of these services, with all of its processes."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        site.signal(role := site.pick(service), signal.SIGSTOP)
        yield
        site.signal(role, signal.SIGCONT)

    return strike


def wrong_clock(service: str, ahead: float) -> Strike:
    """The clock of one of these services is wrong by so many seconds."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        set_clock(clock := site.clock(site.pick(service)), ahead)
        yield
        set_clock(clock, 0.0)

    return strike


@contextmanager
def worker_killed(site: Site) -> Iterator[None]:
    """One worker of a mirror."""
    pid = site.cluster.pid(site.pick("mirror"))
    _kill_one(site, lambda: [each for each in descendants(pid) if not is_stem(each)])
    yield


@contextmanager
def serving_killed(site: Site) -> Iterator[None]:
    """The `hg serve --stdio` of a push that is under way."""
    _kill_one(site, lambda: [each for pusher in site.pushers for each in descendants(pusher.developer.pid or 0)])
    yield


@contextmanager
def developer_killed(site: Site) -> Iterator[None]:
    """A developer's `hg`, in the middle of a push perhaps."""
    pusher = site.random.choice(site.pushers)
    with pusher.working:
        _kill_one(site, lambda: [pid for pid in [pusher.developer.pid] if pid])
    yield


def _kill_one(site: Site, find: Callable[[], list[int]]) -> None:
    def is_killed() -> bool:
        try:
            os.kill(site.random.choice(find()), signal.SIGKILL)
        except (IndexError, ProcessLookupError):
            return False
        return True

    eventually(is_killed, "there is a process to kill")


@contextmanager
def log_killed(site: Site) -> Iterator[None]:
    site.kafka.kill()
    yield
    site.kafka.start()


@contextmanager
def log_stopped(site: Site) -> Iterator[None]:
    site.kafka.pause()
    yield
    site.kafka.resume()


@contextmanager
def log_delayed(site: Site) -> Iterator[None]:
    site.proxy.delay = 0.3
    yield
    site.proxy.delay = 0.0


@contextmanager
def log_without_requests(site: Site) -> Iterator[None]:
    site.proxy.requests.clear()
    yield
    site.proxy.requests.set()


@contextmanager
def log_without_answers(site: Site) -> Iterator[None]:
    site.proxy.answers.clear()
    yield
    site.proxy.answers.set()


@contextmanager
def rabbitmq_stopped(site: Site) -> Iterator[None]:
    site.rabbitmq.stop_app()
    yield
    site.rabbitmq.start_app()


def endpoint(service: str, *replies: Reply) -> Strike:
    """The receiver gives these answers in turn."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        turns = iter(range(1 << 30))

        def reply(request: Request) -> Reply:
            return replies[next(turns) % len(replies)]

        site.moods[service] = reply
        yield
        del site.moods[service]

    return strike


def hanging() -> Reply:
    """No answer until the client leaves, or the campaign ends."""
    return Reply(status=500, hang=threading.Event())
