# SPDX-License-Identifier: GPL-2.0-or-later
"""The watch over queues, round after round.

It warns owners, deletes queues beyond the limit, and mails reports. The order of its steps is the promise: it stores the state of
a queue together with the report, records a deletion before it asks the broker for it, and forgets a report once the mail server
took it. So a kill at any instant repeats one mail at most, and no queue is deleted without a mail. The next round begins with the
deletions whose outcome is unknown.
"""

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

import structlog
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.owned import CHECK_EVERY
from hgext.vcsreplicator.log.turns import work_in_turns
from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import BadConfig, Refused, Rejected, Unavailable
from hgext.vcsreplicator.words.records import GUARDIAN_KEY

from ...delivery.window import RETRY
from .broker import DeletionOutcome, delete_queue
from .clients import Clients, client_of, is_queue_name
from .filling import Filling, QueueStep, WatchedQueue, next_step, read_queue
from .mail import GONE_MEANWHILE, LISTED, MailServer, Postponed, compose
from .management import Management
from .settings import GuardianSettings
from .state import GuardianState, QueueDeletion, QueueReport, open_state

# The columns of the broker's list of queues, without the arguments.
COLUMNS = "name,messages,consumers,durable,auto_delete,effective_policy_definition"

# Seconds after which a round begins no further mail: a mail server that is slow must not keep it from looking at queues.
MAILING = 30.0

ACTIVE = Gauge("vcsreplicator_guardian_active", "Whether this process watches (1) or stands by (0)")
QUEUES = Gauge("vcsreplicator_guardian_queues", "Queues by state; a queue may be in several", ["state"])
DELETED = Counter("vcsreplicator_guardian_deleted_queues", "Queues deleted beyond their limit")
MAILED = Counter("vcsreplicator_guardian_mails", "Emails that the mail server accepted")
REFUSED_MAILS = Counter("vcsreplicator_guardian_refused_mails", "Emails that the mail server refused permanently")
LOST_REPORTS = Counter("vcsreplicator_guardian_lost_reports", "Reports that the operator's address refused too")
WAITING = Gauge("vcsreplicator_guardian_waiting_reports", "Reports that no mail server has accepted yet")
LAST_ROUND = Gauge(
    "vcsreplicator_guardian_last_round_timestamp_seconds", "Time by this machine when the last round was complete"
)

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFinding:
    """A round's finding about a queue, and its step."""

    queue: WatchedQueue
    owner: str
    filling: Filling
    step: QueueStep


class QueueWatch:
    """A virtual host under watch.

    Without a log nothing is mailed, deleted or remembered beyond the process.
    """

    def __init__(self, settings: GuardianSettings, file: str, log: Log | None, clock: Clock | None = None) -> None:
        """Read the state, and fence other guardians; raises BadConfig or Unavailable."""
        self.settings, self._is_dry_run, self._clock = settings, log is None, clock or SystemClock()
        self._management = Management(settings, file)
        self._clients = Clients(self._management, settings.vhost)
        self._mail = MailServer(settings)
        self.state = GuardianState() if log is None else open_state(settings, log, self._clock)
        self._named: dict[str, set[str]] = {}
        self._is_checked = False
        # Why mails wait: by owner, "" for all.
        self._unsent: dict[str, str] = {}
        # The owner after whom the next round begins to send.
        self._tried = ""

    def close(self) -> None:
        self.state.close()
        self._management.close()

    def round(self) -> list[QueueFinding]:
        """Look at every queue once and act; return what was found.

        Raises Unavailable if broker or log do not answer, BadConfig for what only an operator can change, and Fenced if another
        guardian took over: then at most one mail was sent, or one deletion asked for, that the other guardian repeats.
        """
        self.state.check()
        if not self._is_checked:
            self._management.check(self.settings.vhost)
            self._is_checked = True
        self._settle_deletions()
        owners = self._clients.owners()
        fillings = self.state.fillings()
        queues = list_queues(self._management, self.settings.vhost)
        found = []
        for queue in queues:
            owner = owners.get(client_of(queue.name) or "") or self.settings.operator
            found.append(self._watch_queue(queue, fillings.get(queue.name, Filling.FINE), owner))
        self.state.forget(sorted(fillings.keys() - {queue.name for queue in queues}))
        _measure(found)
        self._send_mails()
        self.state.end_round(self._clock.now())
        LAST_ROUND.set(self._clock.now())
        return found

    def _watch_queue(self, queue: WatchedQueue, before: Filling, owner: str) -> QueueFinding:
        filling, step = next_step(queue, before, self.settings)
        if step is QueueStep.DELETE and not self._is_dry_run:
            if self._delete(queue, owner):
                return QueueFinding(queue=queue, owner=owner, filling=filling, step=step)
            step = QueueStep.REPORT if filling > before else QueueStep.NOTHING
        messages = queue.messages or 0
        if step is not QueueStep.NOTHING:
            logger.warning("queue " + step.value, queue=queue.name, messages=messages, dry_run=self._is_dry_run)
        if filling is not before:
            report = None if step is QueueStep.NOTHING else (owner, step.value, messages)
            self.state.record(queue.name, filling, report, self._clock.now())
        return QueueFinding(queue=queue, owner=owner, filling=filling, step=step)

    def _delete(self, queue: WatchedQueue, owner: str) -> bool:
        """Delete the queue if it still is to be deleted; return whether it was."""
        deletion = QueueDeletion(queue=queue.name, owner=owner, messages=queue.messages or 0)
        self.state.begin_deletion(deletion)
        try:
            outcome, messages = delete_queue(self.settings, queue.name)
        except Unavailable as error:  # this queue's affair: the others must not wait for it
            logger.error("queue not deleted; tried again", queue=queue.name, reason=str(error))
            return False
        is_deleted = outcome is DeletionOutcome.DELETED
        self.state.end_deletion(deletion, QueueStep.DELETE.value if is_deleted else None, self._clock.now())
        if is_deleted:
            DELETED.inc()
            logger.error("queue deleted", queue=queue.name, messages=messages, limit=self.settings.limit)
        else:
            logger.info("queue kept", queue=queue.name, outcome=outcome.name.lower(), messages=messages)
        return is_deleted

    def _settle_deletions(self) -> None:
        """End the deletions of which a kill or a lost connection hid the outcome."""
        for deletion in self.state.deletions():
            try:
                outcome, messages = delete_queue(self.settings, deletion.queue)
            except Unavailable as error:
                logger.error("queue not deleted; tried again", queue=deletion.queue, reason=str(error))
                continue
            what = {
                DeletionOutcome.DELETED: QueueStep.DELETE.value,
                DeletionOutcome.GONE: QueueStep.DELETE.value,
                DeletionOutcome.SMALLER: GONE_MEANWHILE,
                DeletionOutcome.IN_USE: None,
            }[outcome]
            self.state.end_deletion(deletion, what, self._clock.now())
            if what is not None:
                DELETED.inc()
                logger.error("queue deleted before an interruption", queue=deletion.queue, messages=messages, what=what)

    def log_odd_queues(self, found: list[QueueFinding]) -> None:
        """Log each odd queue once.

        A queue is odd if no client consumes it, if nothing bounds it, or if its name is not a client's.
        """
        odd = _list_odd_queues(found)
        for state, names in odd.items():
            for name in sorted(names - self._named.get(state, set())):
                logger.warning(f"queue {state}", queue=name)
        self._named = odd

    def _send_mails(self) -> None:
        """Send the waiting reports, one mail for each owner and round.

        For the next round wait mails that the server does not take now, reports for which a mail has no room, and owners whose turn
        does not come in time.
        """
        waiting, end = self.state.reports(), self._clock.monotonic() + MAILING
        for owner in sorted(waiting, key=lambda owner: (owner <= self._tried, owner)) if not self._is_dry_run else ():
            if self._clock.monotonic() >= end:
                break
            self._tried, reports = owner, waiting[owner][:LISTED]
            try:
                self._mail.send(compose(reports, self.settings, to=owner, now=self._clock.now()))
            except Postponed as error:
                self._log_unsent(owner, error, reports)
            except Unavailable as error:
                self._log_unsent("", error, reports)
                break
            except Rejected as error:
                self._redirect_refused(owner, reports, error)
            else:
                for known in ("", owner):
                    self._unsent.pop(known, None)
                MAILED.inc()
                self.state.forget_reports(reports)
        WAITING.set(sum(map(len, self.state.reports().values())))

    def _log_unsent(self, owner: str, error: Unavailable, reports: Sequence[QueueReport]) -> None:
        """Log why a mail waits, once for each reason; without an owner, all wait."""
        if self._unsent.get(owner) != str(error):
            logger.error("mail not sent", owner=owner, reason=str(error), reports=len(reports))
        self._unsent[owner] = str(error)

    def _redirect_refused(self, owner: str, reports: Sequence[QueueReport], error: Rejected) -> None:
        """Give refused reports to the operator, or leave them to the log.

        Reports that the operator's address refuses too are logged completely before they are forgotten.
        """
        REFUSED_MAILS.inc()
        logger.error("mail refused", owner=owner, reason=str(error), queues=[each.queue for each in reports])
        if owner != self.settings.operator:
            self.state.readdress(reports, self.settings.operator)
            return
        for each in reports:
            logger.error("report lost", queue=each.queue, messages=each.messages, what=each.what, time=each.time)
        LOST_REPORTS.inc(len(reports))
        self.state.forget_reports(reports)


def list_queues(management: Management, vhost: str) -> list[WatchedQueue]:
    """Return the queues of a virtual host, without their arguments if the list cannot be read with them.

    A client may give a queue arguments of any depth and size, and must not so keep the guardian from others' queues.
    """
    try:
        return [read_queue(row) for row in management.rows("queues", vhost, columns=f"{COLUMNS},arguments")]
    except (BadConfig, Unavailable) as error:
        queues = [read_queue(row) for row in management.rows("queues", vhost, columns=COLUMNS)]
        logger.warning("arguments of queues not read; which are unbounded is not known", reason=str(error))
        return queues


def _list_odd_queues(found: list[QueueFinding]) -> dict[str, set[str]]:
    queues = [each.queue for each in found]
    return {
        "unconsumed": {queue.name for queue in queues if not queue.consumers},
        "unbounded": {queue.name for queue in queues if queue.is_bounded is False},
        "misnamed": {queue.name for queue in queues if not is_queue_name(queue.name)},
    }


def _measure(found: list[QueueFinding]) -> None:
    QUEUES.labels("all").set(len(found))
    for filling in (Filling.NEAR, Filling.BEYOND):
        QUEUES.labels(filling.name.lower()).set(sum(each.filling is filling for each in found))
    for state, names in _list_odd_queues(found).items():
        QUEUES.labels(state).set(len(names))


def check_secret(settings: GuardianSettings, file: str) -> None:
    """Raise BadConfig if a secret is missing: an operator must supply it before the start."""
    if settings.smtp_password is not None:
        settings.smtp_password.read(f"{file}: guardian.smtp-password")


def run(
    settings: GuardianSettings,
    log: Log | None = None,
    *,
    file: str,
    stop: threading.Event,
    ready: Callable[[], None],
    instance: str | None = None,
) -> None:
    """Watch, or stand by for another guardian, until `stop` is set.

    An unavailable broker or log is retried indefinitely. Heartbeats name this guardian by `instance`, or else by its process.
    Raises BadConfig only before the first complete round: later, a broker may refuse the guardian because it is being restored.
    """

    def work(ready: Callable[[], None]) -> None:
        with closing(QueueWatch(settings, file, log)) as watch:
            ACTIVE.set(1)
            try:
                keep_watching(watch, stop, ready)
            finally:
                ACTIVE.set(0)
                QUEUES.clear()
                WAITING.set(0)

    if log is None:
        work(ready)
    else:
        patience, clock = settings.takeover_after, SystemClock()
        work_in_turns(
            log,
            GUARDIAN_KEY,
            settings.name,
            work,
            patience=patience,
            stop=stop,
            ready=ready,
            clock=clock,
            instance=instance,
        )


def keep_watching(watch: QueueWatch, stop: threading.Event, ready: Callable[[], None]) -> None:
    """Make rounds until `stop` is set; raises BadConfig as `run` does, and Fenced."""
    failures, is_complete, is_ready = 0, False, False
    while not stop.is_set():
        try:
            watch.log_odd_queues(watch.round())
        except (Unavailable, Refused, BadConfig) as error:
            if isinstance(error, BadConfig) and not is_complete:
                raise
            failures += 1
            if failures == 1:
                logger.warning("round not complete; retried until it is", reason=str(error))
            delay = RETRY.delay(failures, random.random())
        else:
            if failures:
                logger.info("rounds are complete again", failures=failures)
            failures, is_complete, delay = 0, True, watch.settings.every
        if not is_ready:
            ready()
            is_ready = True
        while delay > 0 and not stop.wait(min(delay, CHECK_EVERY)):
            delay -= CHECK_EVERY
            with suppress(Unavailable):  # the next round meets it too
                watch.state.check()
