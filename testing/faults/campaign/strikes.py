# SPDX-License-Identifier: GPL-2.0-or-later
"""How a fault is brought about: each strike is a block in which it lasts, and whose end heals it."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import kombu

from hgext.vcsreplicator.aggregator.loading import IDENTITY
from hgext.vcsreplicator.demo.layout import EXCHANGES
from hgext.vcsreplicator.log import EVENTS, NOTICES
from hgext.vcsreplicator.status.follower import read_picture
from hgext.vcsreplicator.words.roster import MirrorState
from testing.builders.notifier.endpoint import Reply, Request
from testing.faults.campaign.site import CI, Site
from testing.faults.wrong_clock import set_clock
from testing.services.guard import descendants
from testing.services.kafka.cluster import Member
from testing.waiting import eventually
from testing.warm import is_stem

Strike = Callable[[Site], AbstractContextManager[None]]

_kombu: Any = kombu  # has no types


def killed(*services: str) -> Strike:
    """SIGKILL to one of each of these services."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        site.cluster.kill(*(roles := [site.pick(service) for service in services]))
        yield
        site.revive(*roles)

    return strike


def all_killed(service: str) -> Strike:
    """SIGKILL to each of these services; none is left."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        site.cluster.kill(*(roles := site.roles(service) if service else list(site.cluster.roles)))
        yield
        site.revive(*roles)

    return strike


def terminated(service: str) -> Strike:
    """One of these services is asked to stop, and started again."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        site.signal(role := site.pick(service), signal.SIGTERM)
        eventually(lambda: not site.cluster.running(role), f"{role} ends")
        yield
        site.revive(role)

    return strike


def stopped(service: str) -> Strike:
    """SIGSTOP to one of these services, with all of its processes."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        site.signal(role := site.pick(service), signal.SIGSTOP)
        yield
        site.signal(role, signal.SIGCONT)

    return strike


def emptied(service: str) -> Strike:
    """One of these services is killed, and all that it kept on its machine is removed, but for its configuration."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        site.cluster.kill(role := site.pick(service))
        for path in (site.folder / "machines" / role).iterdir():
            if path.suffix != ".toml":
                path.unlink()
        yield
        site.revive(role)

    return strike


def wrong_clock(service: str, ahead: float) -> Strike:
    """The clock of one of these services is wrong by so many seconds."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        set_clock(clock := site.clock(site.pick(service)), ahead)
        yield
        set_clock(clock, 0.0)

    return strike


def worker(number: signal.Signals) -> Strike:
    """One worker of a mirror gets a signal; a stopped one is continued in the end, if it still runs."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        pid = site.cluster.pid(site.pick("mirror"))
        process = _signal_one(site, lambda: [each for each in descendants(pid) if not is_stem(each)], number)
        yield
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)

    return strike


@contextmanager
def serving_killed(site: Site) -> Iterator[None]:
    """The `hg serve --stdio` of a push that is under way."""
    _signal_one(site, lambda: [each for pusher in site.pushers for each in descendants(pusher.developer.pid or 0)])
    yield


@contextmanager
def developer_killed(site: Site) -> Iterator[None]:
    """A developer's `hg`, in the middle of a push perhaps."""
    pusher = site.random.choice(site.pushers)
    with pusher.working:
        _signal_one(site, lambda: [pid for pid in [pusher.developer.pid] if pid])
    yield


def _signal_one(site: Site, find: Callable[[], list[int]], number: signal.Signals = signal.SIGKILL) -> int:
    def try_one() -> int:
        try:
            os.kill(process := site.random.choice(find()), number)
        except (IndexError, ProcessLookupError):
            return 0
        return process

    return eventually(try_one, "there is a process")


@contextmanager
def log_killed(site: Site) -> Iterator[None]:
    site.kafka.kill()
    yield
    site.kafka.start()


@contextmanager
def log_restarted(site: Site) -> Iterator[None]:
    site.kafka.stop()
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
def log_resets(site: Site) -> Iterator[None]:
    site.proxy.resets = 0.1
    yield
    site.proxy.resets = 0.0


@contextmanager
def notices_older(site: Site) -> Iterator[None]:
    """The broker comes back with the partitions of `notices` that it had a while ago, and all else."""
    site.kafka.copy()
    yield
    site.kafka.kill()
    for older in (site.kafka.folder / "copy").glob(f"*{NOTICES}-*"):
        shutil.rmtree(site.kafka.data / older.name)
        shutil.copytree(older, site.kafka.data / older.name)
    site.kafka.start()


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


def leader(site: Site) -> int:
    """The broker that leads the busiest partition of `events`."""
    ends = site.log.ends(EVENTS)
    return site.several.leader(EVENTS, max(ends, key=lambda partition: ends[partition]))


def coordinator(site: Site) -> int:
    """The broker that coordinates the aggregators' transactions."""
    return site.several.coordinator("transaction", IDENTITY)


def controller(site: Site) -> int:
    return site.several.controller()


def _wait_in_sync(site: Site) -> None:
    """Wait until each partition has all its copies, as an administrator does before another broker may be away."""
    eventually(site.several.is_in_sync, "all copies are in sync", timeout=120.0, every=1.0)


def broker_killed(find: Callable[[Site], int]) -> Strike:
    """SIGKILL to one of three brokers."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        _wait_in_sync(site)
        broker = site.several.brokers[find(site)]
        broker.kill()
        yield
        broker.start()

    return strike


@contextmanager
def broker_stopped(site: Site) -> Iterator[None]:
    """SIGSTOP to the broker that leads the busiest partition of `events`."""
    _wait_in_sync(site)
    broker = site.several.brokers[leader(site)]
    broker.pause()
    yield
    broker.resume()


@contextmanager
def two_brokers_killed(site: Site) -> Iterator[None]:
    """SIGKILL to two of three brokers."""
    _wait_in_sync(site)
    lost = site.random.sample(list(site.several.brokers.values()), 2)
    for broker in lost:
        broker.kill()
    yield
    with ThreadPoolExecutor(2) as starting:  # neither answers alone
        list(starting.map(Member.start, lost))


@contextmanager
def brokers_restarted(site: Site) -> Iterator[None]:
    """Each broker is restarted in turn, once all copies are in sync."""
    for broker in site.several.brokers.values():
        _wait_in_sync(site)
        broker.stop()
        broker.start()
    yield


@contextmanager
def rabbitmq_stopped(site: Site) -> Iterator[None]:
    site.rabbitmq.stop_app()
    yield
    site.rabbitmq.start_app()


@contextmanager
def rabbitmq_killed(site: Site) -> Iterator[None]:
    site.rabbitmq.kill()
    yield
    site.rabbitmq.start()


@contextmanager
def rabbitmq_hangs(site: Site) -> Iterator[None]:
    site.rabbitmq.pause()
    yield
    site.rabbitmq.resume()


@contextmanager
def connections_closed(site: Site) -> Iterator[None]:
    site.rabbitmq.close_connections()
    yield


@contextmanager
def memory_alarm(site: Site) -> Iterator[None]:
    site.rabbitmq.block_publishers()
    yield
    site.rabbitmq.unblock_publishers()


@contextmanager
def right_taken(site: Site) -> Iterator[None]:
    """The notifier may not write; the broker remembers rights while a connection lives."""
    vhost = site.amqp.rpartition("/")[2]
    site.rabbitmq.allow_writing(vhost, "^$")
    site.rabbitmq.close_connections(vhost, "vcsreplicator")
    yield
    site.rabbitmq.allow_writing(vhost, ".*")


@contextmanager
def password_changed(site: Site) -> Iterator[None]:
    """The notifier's password is refused; the broker asks for it when a connection is opened."""
    site.rabbitmq.change_password("another")
    site.rabbitmq.close_connections()
    yield
    site.rabbitmq.change_password("guest")


@contextmanager
def queue_full(site: Site) -> Iterator[None]:
    """Another consumer's queue refuses what it has no room for, and is deleted in the end."""
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with _kombu.Connection(site.amqp) as opened:
        exchange = _kombu.Exchange(EXCHANGES[1], type="topic", durable=True)
        bound = _kombu.Queue("queue/guest/full", exchange, routing_key="#", queue_arguments=arguments)(opened)
        bound.declare()
        yield
        bound.delete()


def endpoint(service: str, *replies: Reply) -> Strike:
    """The receiver gives these answers in turn."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        turns = iter(range(1 << 30))

        def reply(request: Request) -> Reply:
            return replies[next(turns) % len(replies)]

        held = [each.hang for each in replies if each.hang is not None]
        for event in held:
            event.clear()
        site.moods[service] = reply
        yield
        del site.moods[service]
        for event in held:
            event.set()

    return strike


def hanging() -> Reply:
    """No answer before the fault ends."""
    return Reply(status=500, hang=threading.Event())


def disk_full(folder: str) -> Strike:
    """No room is left on the disk with these repositories."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        filler = site.root(folder) / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        yield
        filler.unlink()

    return strike


def power_cut(disk: str, *roles: str) -> Strike:
    """The power of a machine is cut: its processes die, and its disk loses what was not synced."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        site.cluster.kill(*roles)
        if disk == "master":
            site.operator.end_command()
        site.disks[disk].cut()
        site.boot(disk)
        yield
        site.revive(*roles)

    return strike


@contextmanager
def broker_power_cut(site: Site) -> Iterator[None]:
    """The same with the machine of the broker that leads the busiest partition of `events`."""
    _wait_in_sync(site)
    number = leader(site)
    site.several.brokers[number].kill()
    site.disks[f"broker-{number}"].cut()
    yield
    site.several.brokers[number].start()


def disk_read_only(folder: str) -> Strike:
    """The disk with these repositories takes no writes."""

    def remount(site: Site, option: str) -> bool:
        words = ["mount", "-o", f"remount,{option}", str(site.root(folder))]
        return not subprocess.run(words, capture_output=True).returncode

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        eventually(lambda: remount(site, "ro"), "no file is open for writing")
        yield
        eventually(lambda: remount(site, "rw"), "the disk takes writes again")

    return strike


def _pick_repository(site: Site, mirror: str) -> Path:
    return site.random.choice([path for path in site.root(mirror).glob("repository-*") if path.is_dir()])


@contextmanager
def repository_damaged(site: Site) -> Iterator[None]:
    """The second half of a mirror's changelog is lost."""
    changelog = _pick_repository(site, "beta") / ".hg/store/00changelog.i"
    os.truncate(changelog, changelog.stat().st_size // 2)
    yield


@contextmanager
def repository_emptied(site: Site) -> Iterator[None]:
    """A mirror's store is gone, the repository is there."""
    shutil.rmtree(_pick_repository(site, "beta") / ".hg/store", ignore_errors=True)
    yield


@contextmanager
def repository_removed(site: Site) -> Iterator[None]:
    """A mirror's repository is gone."""
    shutil.rmtree(_pick_repository(site, "beta"), ignore_errors=True)
    yield


@contextmanager
def deactivated(site: Site) -> Iterator[None]:
    """A mirror is deactivated, and activated again."""
    site.run("roster", "deactivate", "beta", "--yes")
    yield
    site.run("roster", "join", "beta")
    _wait_until_active(site, "beta")


@contextmanager
def mirror_lost(site: Site) -> Iterator[None]:
    """A mirror's machine is lost with its disk; an operator deactivates it, and fills a new one."""
    site.cluster.kill("mirror-beta", "web-beta")
    for path in site.root("beta").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    site.run("roster", "deactivate", "beta", "--yes")
    site.run("bootstrap", "beta")
    yield
    site.revive()
    _wait_until_active(site, "beta")


def _wait_until_active(site: Site, name: str) -> None:
    def is_active() -> bool:
        mirror = read_picture(site.log).roster.mirror(name)
        return mirror is not None and mirror.state is MirrorState.ACTIVE

    eventually(is_active, f"{name} is active", timeout=120.0)


def positions_back(service: str, group: str, *topics: str) -> Strike:
    """These services end, and their stored positions are those of an empty log."""

    @contextmanager
    def strike(site: Site) -> Iterator[None]:
        site.cluster.kill(*site.roles(service))
        for topic in topics:
            site.log.acknowledge(group, topic, site.log.beginnings(topic))
        yield
        site.revive()

    return strike


@contextmanager
def endpoint_gone(site: Site) -> Iterator[None]:
    """A webhook's endpoint is gone, which pauses the subscription, until an operator resumes it."""
    with endpoint(CI, Reply(status=410))(site):
        yield
    site.run("subscription", "resume", "ci")


@contextmanager
def notes_removed(site: Site) -> Iterator[None]:
    """A mirror is killed, and its folder of notes is removed."""
    site.cluster.kill("mirror-beta")
    shutil.rmtree(site.root("beta") / "~vcsreplicator", ignore_errors=True)
    yield
    site.revive("mirror-beta")
