# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay daemon: moves a master's events from the outboxes to the log.

In each repository the oldest event goes first. A push pokes the relay over a Unix socket and waits for its answer (`client`). At
start, and periodically, the relay makes a round over all repositories, so a lost poke only delays. It sends from many repositories
at once, one batch at a time from each. It also rolls back transactions whose process died, announces
repositories that have no event, and compares the outboxes with the aggregator's states (`fork`).
"""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import prometheus_client
import structlog

from ..log import EVENTS, Log
from ..log.blob_retries import BlobRetries
from ..log.blobs import BlobStore, open_blobs
from ..log.names import expect_exact_names
from ..log.reports import ServiceReporter, name_trouble
from ..log.table import find_oldest_time
from ..outbox.file import outbox_of
from ..status.findings import REFUSES
from ..status.services import finding_of
from ..status.wording import Severity
from ..words.clock import DAY, Clock, SystemClock
from ..words.errors import BadConfig, ReplicationError
from ..words.memory import allow_threads
from ..words.records import RELAY_KEY, ServiceTrouble
from .admission import RelaySocket
from .fork import StateWatch
from .gone.watch import GoneWatch
from .jobs import Job, RepositoryJobs
from .lacking import WAITS, find_trouble, leave_out_sent
from .loss import LossWatch
from .mastership import Mastership
from .outside import WOULD_REFUSE, OutsideWatch
from .port import MasterPort
from .reasons.grouping import group_troubles
from .rounds import QuietRepositories, check_repository, find_work
from .sending import EventSender
from .server import Server
from .settings import RelaySettings
from .work import Work

logger = structlog.get_logger()

TROUBLES = prometheus_client.Gauge(
    "vcsreplicator_relay_troubles", "Troubles that the relay reports, by severity as in check", ["severity"]
)
FORKED = prometheus_client.Gauge(
    "vcsreplicator_relay_forked_repositories", "Repositories that refuse pushes because the log has another history"
)
LATE = prometheus_client.Gauge(
    "vcsreplicator_relay_late_repositories", "Repositories whose events have waited for more than a minute"
)

# Seconds that running jobs get at the end.
DRAIN = 8.0

# Shortest time in seconds between two looks at repositories of which events were sent, or in which a job failed.
RECHECK = 2.0
# Most repositories that one look at failures takes: a report names fewer troubles.
LOOKED_AT = 20

# Largest share of one core that rounds take, comparisons (`outside`) aside: the more repositories, the later the next round begins.
SHARE = 0.05
# But after this multiple of `scan` the next round begins in any case.
LONGEST = 4

# Seconds for which a refused push is reported, unless another one is accepted there.
REMEMBERED = 3600.0

# Seconds between two removals of old blobs.
BLOB_SWEEP = 3600.0

# Why events wait in a repository that pushes reported but that is below no root of the relay.
OUTSIDE = "hgrc has its root, [relay.roots] has not: add the root there, then systemctl restart vcsreplicator-relay"

# Two relays report as one, and each finds the other.
SHARED = (
    "two relays have the source {source}, this one on {machine}, and another one: stop the one that is not needed, or give each "
    "master's relay a `source` of its own (docs/push.md, One master for each log)"
)

# Margin in seconds, by the clock of the log: a blob is written before its record.
BLOB_MARGIN = DAY


def run(
    settings: RelaySettings,
    log: Log,
    port: MasterPort,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    clock: Clock | None = None,
    mastership: Mastership | None = None,
) -> None:
    """Relay until `stop` is set; raise BadConfig for an unusable socket or disk.

    From when it is ready, `mastership` says what this relay has read of it.
    """
    for root in settings.roots:
        expect_exact_names(root, "relay.roots")
    allow_threads(settings.workers)
    relay = Relay(settings, log, port, stop, clock or SystemClock())
    try:
        relay.start()
        if mastership is not None:
            mastership.find_reason = relay.find_successor
        ready()
        relay.make_rounds(stop)
    finally:
        stop.set()
        relay.close()


class Relay:
    """The parts of a relay, and its rounds over all repositories."""

    def __init__(
        self, settings: RelaySettings, log: Log, port: MasterPort, stop: threading.Event, clock: Clock
    ) -> None:
        self._settings, self._port, self._clock, self._blobs = settings, port, clock, _open_blobs(settings)
        store_blob = None if self._blobs is None else self._blobs.put
        sender = EventSender(log=log, source=settings.source, make_bundle=port.make_bundle, store_blob=store_blob)
        self._watch = StateWatch(log, stop)
        self._losses = LossWatch(log, self._watch.state, clock)
        self._retries = None if self._blobs is None else BlobRetries(clock)
        jobs = RepositoryJobs(sender, port, self._watch, self._losses, self._retries)
        self._work = Work(jobs.table(), workers=settings.workers, stop=stop, clock=clock)
        relay_socket = RelaySocket(settings.socket, group_of=next(iter(settings.roots)))
        self._server = Server(relay_socket, work=self._work, roots=tuple(settings.roots), find_state=self._watch.state)
        jobs.on_sent, jobs.on_available = self._note_sent, self._server.available
        jobs.on_fork_changed = self._note_fork
        self._server.on_push = self._note_answer
        # `woken` is set when there may be something to look at before the next round or report.
        self.woken, self._looked = threading.Event(), float("-inf")
        self._work.on_trouble = self.woken.set
        self._watch.on_state, self._work.on_failed = self._server.announced, self._server.failed
        self._reporter = ServiceReporter(log, f"{RELAY_KEY}{settings.source}", topic=EVENTS)
        self._watch.on_answer, self._watch.on_report = self._note_log_answer, self._reporter.note_record
        self._outside, self._quiet = OutsideWatch(port, clock.monotonic), QuietRepositories()
        self._log, self._blobs_due = log, float("-inf")
        self._gone = GoneWatch(settings, log, self._watch, clock, stop)
        self._stop, self._confirming = stop, threading.Thread()
        self._found: list[ServiceTrouble] = []
        # By repository, why the newest push was refused; the socket's thread changes it.
        self._refused: dict[str, ServiceTrouble] = {}
        self._reported: list[ServiceTrouble] = []
        self._shared_since = float("inf")
        # When the next round is due, by `time.monotonic`, and the eras of partitions that the last one began with.
        self._next_round, self._eras = float("-inf"), self._losses.eras()
        # Repositories with a failed job that were looked at since the last round.
        self._looked_at: set[str] = set()
        # Repositories of which events were sent since troubles were looked for. Workers add to this set, so nothing replaces it.
        self._sent: set[str] = set()
        # Likewise: repositories in which a fork began or ended since the last look.
        self._forked: set[str] = set()

    def start(self) -> None:
        """Serve pushes, and make the first round."""
        self._server.start()
        self._watch.start()
        self._make_round()

    def find_successor(self) -> str | None:
        """Say that another master replaced this one; None if none did, as far as read."""
        fork = self._watch.successor(self._settings.source)
        return None if fork is None else fork.reason

    def make_rounds(self, stop: threading.Event) -> None:
        """Make rounds periodically until `stop`, and report in between."""
        threading.Thread(target=_wake_at_stop, args=(stop, self.woken), name="stop", daemon=True).start()
        due = self._next_round = time.monotonic() + self._settings.scan  # the first one looks at all
        while self._wait_for_work(stop, due):
            if time.monotonic() < due:
                is_changed = self._leave_out_sent() | self._look_at_failures()
                is_changed |= self._list_refused() != self._reported
                if is_changed or time.monotonic() >= self._reporter.due:
                    self._report()
                continue
            try:
                self._losses.check_partitions()
            except ReplicationError as error:  # checked again before the next event is sent
                logger.warning("log not readable", reason=str(error))
            if time.monotonic() >= self._next_round or self._losses.eras() != self._eras:
                self._make_round()
            due = min(time.monotonic() + self._settings.scan, self._next_round)
            try:
                self._remove_old_blobs()
            except ReplicationError as error:  # left to a later round
                logger.warning("old blobs not removed", reason=str(error))

    def _wait_for_work(self, stop: threading.Event, due: float) -> bool:
        """Wait for a round, a report, or something to look at; return False at a stop.

        A job that fails, and an event that is sent although it was reported as waiting, end the wait, but not within RECHECK of the
        last look: many jobs may fail at once.
        """
        until, next_look = min(self._reporter.due, due), self._looked + RECHECK
        # Some may have been sent before the round found that they wait.
        is_unsure = bool(self._found and self._sent)
        self.woken.wait(max(0.0, (min(until, next_look) if is_unsure else until) - time.monotonic()))
        if self.woken.is_set():
            stop.wait(max(0.0, min(until, next_look) - time.monotonic()))
        self.woken.clear()
        self._looked = time.monotonic()
        return not stop.is_set()

    def _note_sent(self, folder: str, seq: int) -> None:
        """Answer those that wait for this event; workers call this method."""
        self._sent.add(folder)
        if self._found:
            self.woken.set()
        self._server.sent(folder, seq)

    def _note_fork(self, folder: str) -> None:
        """Look soon at a repository whose fork began or ended; workers call this."""
        self._forked.add(folder)
        self.woken.set()

    def _note_log_answer(self) -> None:
        """Report soon, for the thread that follows the log, which answers again."""
        self._reporter.note_answer()
        self.woken.set()

    def _note_answer(self, folder: str, reason: str | None) -> None:
        """Report soon that a push was refused, or no more, for the socket's thread."""
        known = self._refused.pop(folder, None)
        if reason is not None:
            text = f"{folder}: a push was refused: {reason}"
            refused = ServiceTrouble(text=text, since=self._clock.now(), is_urgent=True)
            self._refused[folder] = known if known and known.text == text else refused
        if known or reason is not None:
            self.woken.set()

    def _list_refused(self) -> list[ServiceTrouble]:
        """Return the remembered refusals that no other trouble explains."""
        now = self._clock.now()
        marks = REFUSES, WOULD_REFUSE
        explained = {each.text.partition(mark)[0] for each in self._found for mark in marks if mark in each.text}
        for folder, refused in list(self._refused.items()):
            if abs(now - refused.since) > REMEMBERED:
                self._refused.pop(folder, None)
        return [refused for folder, refused in list(self._refused.items()) if folder not in explained]

    def _leave_out_sent(self) -> bool:
        """Leave out the troubles that ended by sending; return whether any did."""
        sent = {self._sent.pop() for _ in range(len(self._sent))}
        before = len(self._found)
        self._found, waiting = leave_out_sent(self._found, sent)
        self._sent.update(waiting)
        return len(self._found) < before

    def _look_at_failures(self) -> bool:
        """Look where a job failed since the round, a fork changed, or pushes are refused.

        Returns whether there is a trouble, or a fork that began or ended.
        """
        failing = [folder for folder in self._work.list_failing() if folder not in self._looked_at]
        new = failing[:LOOKED_AT]
        self._looked_at.update(new)
        forked = {self._forked.pop() for _ in range(min(len(self._forked), LOOKED_AT))}
        if len(failing) > len(new) or self._forked:
            self.woken.set()
        now = self._clock.now()
        # The job of a refused push may fail after this look.
        looked_at = dict.fromkeys((*new, *forked, *list(self._refused)[:LOOKED_AT]))
        found = [each for folder in looked_at for each in check_repository(folder, self._work, self._losses, now)]
        kinds = {_name_kind(each) for each in found}
        self._found = [
            each
            for each in self._found
            if _name_kind(each) not in kinds and each.text.partition(REFUSES)[0] not in forked
        ] + found
        return bool(found or forked)

    def _remove_old_blobs(self) -> None:
        """Remove old blobs, if the last time is a while ago.

        A blob that an event of the log may name stays, however old it seems: this machine may have been off, or its clock ahead.
        """
        if self._blobs is None or self._clock.monotonic() < self._blobs_due:
            return
        before, oldest = self._clock.now() - self._settings.blob_age * DAY, find_oldest_time(self._log, EVENTS)
        self._blobs.remove_older(before if oldest is None else min(before, oldest - BLOB_MARGIN))
        self._blobs_due = self._clock.monotonic() + BLOB_SWEEP

    def close(self) -> None:
        """Let running jobs end, whose pushers get their answers; the caller has set `stop`."""
        self._work.drain(DRAIN)
        self._server.close()
        if self._confirming.ident is not None:
            self._confirming.join(2.0)
        self._gone.close()
        self._watch.close()

    def _make_round(self) -> None:
        """Make one round, and report the repositories' troubles."""
        settings, now, before = self._settings, self._clock.now(), time.thread_time() - self._outside.used
        self._eras = self._losses.eras()
        self._looked_at.clear()
        self._forked.clear()
        if self._retries is not None:
            self._retries.forget_gone()
        found = find_work(settings.roots, self._port, self._work, self._losses, now, self._quiet)
        if found.unconfirmed and not self._confirming.is_alive():
            self._confirming = threading.Thread(target=self._confirm, args=(found.unconfirmed,), daemon=True)
            self._confirming.start()
        for folder in found.folders if self._watch.successor(settings.source) else ():
            self._work.add(folder, Job.SEND)
        found.troubles.extend(self._outside.find(found.folders, now, quiet=found.quiet))
        found.troubles.extend(self._gone.find(found, now, is_shared=self._reporter.is_shared))
        began = {name_trouble(trouble.text): trouble.since for trouble in self._found}
        self._found = [
            replace(each, since=began.get(name_trouble(each.text), now)) if each.since == now else each
            for each in found.troubles
        ]
        for folder in self._server.outside():
            if (trouble := find_trouble(folder, outbox_of(folder), now, OUTSIDE)) is not None:
                self._found.append(trouble)
        self._report()
        used = time.thread_time() - self._outside.used - before
        self._next_round = time.monotonic() + max(settings.scan, min(used / SHARE, LONGEST * settings.scan))

    def _confirm(self, folders: list[str]) -> None:
        """Look for these repositories' newest events in the log, and add their jobs.

        It has a thread of its own, because the log may have much to read, and other repositories have events to send meanwhile.
        """
        self._watch.wait()
        self._losses.confirm_all(folders, self._stop, lambda folder: self._work.add(folder, Job.SEND))

    def _report(self) -> None:
        """Report the troubles to monitoring and, if a report is due, to the log."""
        now = self._clock.now()
        self._reported = self._list_refused()
        self._reporter.look_for_rival()
        self._shared_since = min(self._shared_since, now) if self._reporter.is_shared else float("inf")
        troubles = [*self._found, *self._reported]
        if self._reporter.is_shared:
            text = SHARED.format(source=self._settings.source, machine=socket.gethostname())
            troubles.append(ServiceTrouble(text=text, since=self._shared_since, is_permanent=True))
        counts = Counter(finding_of(each, now - each.since, now).level for each in troubles)
        for severity in (Severity.WARNING, Severity.CRITICAL):
            TROUBLES.labels(severity.name.lower()).set(counts[severity])
        FORKED.set(sum(REFUSES in each.text for each in self._found))
        LATE.set(sum(WAITS in each.text and each.is_urgent for each in self._found))
        self._reporter.report(group_troubles(troubles, self._settings.roots), now=now)


def _wake_at_stop(stop: threading.Event, stirred: threading.Event) -> None:
    stop.wait()
    stirred.set()


def _name_kind(trouble: ServiceTrouble) -> tuple[str, ...]:
    """Return a trouble's folder, and what is wrong there without the reason."""
    return tuple(trouble.text.split(": ")[:2])


def _open_blobs(settings: RelaySettings) -> BlobStore | None:
    if settings.blobs is None:
        return None
    try:
        return open_blobs(settings.blobs)
    except ValueError as error:
        raise BadConfig(f"blobs: {error}") from error
