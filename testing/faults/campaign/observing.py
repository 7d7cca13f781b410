# SPDX-License-Identifier: GPL-2.0-or-later
"""Observers from outside: pushers' words, files of lines, a queue, mirrors by HTTP, `check`, and the comparison at the end.

Each runs in a thread of its own and writes what it sees to the history. Webhooks and SNS are the `site`'s endpoints.
"""

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import kombu

from hgext.vcsreplicator.demo.layout import EXCHANGES
from testing.checks import agreement, checker
from testing.checks.lines import try_line
from testing.faults.campaign.site import LINES, PULSE, Site

# Seconds between two questions to `check`.
ASKED = 5.0
# What `check` says of topics that remember all, for the judge's sake.
REMEMBERING = "cleanup.policy is delete"

_kombu: Any = kombu  # has no types


@contextmanager
def observing(site: Site) -> Iterator[None]:
    """Observe within the block, and until all that came has been looked at."""
    over, told = threading.Event(), queue.SimpleQueue[dict[str, Any] | None]()
    observers = [
        lambda: follow_lines(site, over, told.put),
        lambda: look(site, told),
        lambda: listen_to_pushers(site, over),
    ]
    if site.is_whole:
        observers += [lambda: consume(site, over), lambda: ask_check(site, over)]
    threads = [threading.Thread(target=_reporting, args=(site, observer)) for observer in observers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _reporting(site: Site, observer: Callable[[], None]) -> None:
    try:
        observer()
    except Exception as error:
        site.history.add("trouble", "an observer", text=repr(error))
        raise


def listen_to_pushers(site: Site, over: threading.Event) -> None:
    """Write down what pushers were told, and what the operator did."""
    done, acted, last = 0, 0, False
    while not last:
        last = over.wait(0.05)
        for kind, path in site.load.acted[acted:]:
            acted += 1
            site.history.add("acted", kind, path=path)
        for each in site.load.accepted[done:]:
            done += 1
            begin, end = each.began - site.history.start, each.ended - site.history.start
            site.history.add(
                "pushed",
                each.repository,
                begin=begin,
                end=end,
                head=each.head,
                attempts=each.attempts,
                kept=each.is_kept,
            )


def follow_lines(site: Site, over: threading.Event, put: Callable[[dict[str, Any] | None], None]) -> None:
    """Read the files of JSON lines as they grow, and hand each new message on."""
    read, known, last = dict[Path, int](), set[str](), False
    while not last:
        last = over.wait(0.02)
        for path in site.lines:
            for line in _read_on(path, read):
                site.deliver(LINES, line)
                if line["id"] not in known:
                    known.add(line["id"])
                    put(line)
    put(None)


def _read_on(path: Path, read: dict[Path, int]) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(read.get(path, 0))
        *lines, rest = file.read().split(b"\n")
        read[path] = file.tell() - len(rest)
        return [json.loads(line) for line in lines]
    return []


def look(site: Site, told: "queue.SimpleQueue[dict[str, Any] | None]") -> None:
    """Try each push on every mirror that no fault has taken away; not those to what the operator changes again at once."""
    while line := told.get():
        for mirror in site.cluster.about["mirrors"]:
            is_kept = line["type"] == "changegroup.1" and "/repository-" in line["data"]["repo_url"]
            if is_kept and mirror["name"] not in site.spared:
                begin = site.history.clock()
                missing = try_line([mirror], line, site.load.amended)
                site.history.add("looked", mirror["name"], begin=begin, id=line["id"], missing=missing)


def consume(site: Site, over: threading.Event) -> None:
    """Consume a durable queue of Pulse, and connect again as often as needed."""
    exchange = _kombu.Exchange(EXCHANGES[1], type="topic", durable=True)
    bound, known = _kombu.Queue("queue/guest/campaign", exchange, routing_key="#"), set[str]()

    def take(body: dict[str, Any], message: Any) -> None:
        name = message.properties["message_id"]
        if not (message.delivery_info.get("redelivered") and name in known):
            known.add(name)
            site.deliver(PULSE, {"id": name, **message.headers, **body["payload"]})
        message.ack()

    connection = _kombu.Connection(site.amqp)
    away = (*connection.connection_errors, *connection.channel_errors, _kombu.exceptions.OperationalError, OSError)
    while not over.is_set():
        with (
            suppress(*away),
            _kombu.Connection(site.amqp, connect_timeout=2) as opened,
            opened.Consumer([bound], callbacks=[take]),
        ):
            while not over.is_set():
                with suppress(TimeoutError):
                    opened.drain_events(timeout=0.2)
        over.wait(0.2)


def ask_check(site: Site, over: threading.Event) -> None:
    """Ask `check` every few seconds."""
    while not over.wait(ASKED):
        begin, done = site.history.clock(), site.cluster.cli("check", "--json")
        findings = [each["text"] for each in json.loads(done.stdout)["findings"]] if done.stdout else [done.stderr]
        site.history.add("checked", begin=begin, findings=[each for each in findings if REMEMBERING not in each])


def compare(site: Site, names: list[str]) -> None:
    """Write down, at the end, where mirrors differ, what is damaged or left behind, and what the log's own history says.

    And what the master lacks though a pusher was told that it is in.
    """
    report = checker.check(checker.history(site.log), lossy=site.disks)
    found = [("the log", text) for text in report.violations]
    found += [("a pusher", text) for text in site.load.failed]
    with agreement.Examiner(site.cluster) as examiner:
        for name in names:
            # An operator strips what was accepted.
            accepted = [] if name in site.load.living else site.load.accepted
            heads = [each.head for each in accepted if each.repository == name]
            wrong = examiner.disagreements(name) + examiner.damages(name) + examiner.lacks(name, heads)
            if site.is_whole and heads:
                wrong += examiner.clones(name, site.folder)
            found += [(name, text) for text in wrong]
    for root in [site.cluster.master_root, *(Path(mirror["root"]) for mirror in site.cluster.about["mirrors"])]:
        found += [(str(root), f"left behind: {path}") for name in names for path in agreement.remains(root / name)]
    for who, text in found:
        site.history.add("trouble", who, text=text)
