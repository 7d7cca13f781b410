# SPDX-License-Identifier: GPL-2.0-or-later
"""Operators' requests to one destination: pause, resume, skip, replay.

The courier carries them out between the turns of its loop. It answers a request only after it took effect, in the log before it
does so in the file. The request stays open until then: if the daemon is killed in between, it is carried out again. A request
that can never work is answered with its error, and stops neither the destination nor other requests. A replay reads the log
beside the live stream.
"""

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.log import NOTICES, Log, Record
from hgext.vcsreplicator.log.requests import FAILED, NOTHING, OperatorRequest
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Expired, Rejected, Unavailable, counted
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.shape import from_json

from ..delivery.destination import KeepingDestination, Write
from ..delivery.rejects import Rejects, judged
from ..delivery.window import Window
from ..destinations.state import OF_WEBHOOKS, SUBSCRIPTION, Kind, RequestRecord, StateDatabase
from ..messages.message import Message, clean
from .reading import NoticeReader
from .requests import RequestFollower, record_requests

# Seconds between two readings of the requests, and between two looks for those of other machines.
ASK_EVERY, FOLLOW_EVERY = 1.0, 5.0

# Records of one read of a replay, and messages of it that may wait at once.
REPLAY_BATCH = 200

SKIPPED = Counter("vcsreplicator_notifier_skipped_messages", "Skipped by an operator", ["destination"])
PAUSED = Gauge("vcsreplicator_notifier_paused_flag", "1 while an operator paused the destination", ["destination"])

logger = structlog.get_logger()


class Replay:
    """One replay at work.

    It reads from the beginning of the log to where the log ended when the replay began. The request's argument is `repository`
    (wire path or id) and `since_time` (seconds since the epoch, of the change) or `since_push` (the first push id). If the daemon
    is killed in the middle, the whole replay is sent again. It leaves out what the log dropped meanwhile. The live stream neither
    waits for a replay nor goes back.
    """

    def __init__(self, request: OperatorRequest, log: Log) -> None:
        self.request = request
        self.numbers: set[int] = set()
        self.taken = self.confirmed = 0
        self._log = log
        self._end = log.ends(NOTICES)[0]
        self._begin = self._position = log.beginnings(NOTICES)[0]
        self._reader = log.reader({(NOTICES, 0): self._position})
        asked = datetime.datetime.fromtimestamp(request.asked_at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.mark = f"{request.who} {asked} #{request.id}"

    def records(self, room: int) -> list[Record]:
        """Return the next records that the request asks for, at most `room`."""
        if not self.has_more or not room:
            return []
        try:
            found = self._reader.poll(0.2, limit=min(REPLAY_BATCH, room))
        except Expired:
            self._begin_again()
            return []
        if found:
            self._position = found[-1].offset + 1
        else:
            [self._position] = self._reader.positions().values()
        return [record for record in found if record.offset < self._end and self._is_wanted(record)]

    @property
    def has_more(self) -> bool:
        """Whether there is more to read now.

        Not while `REPLAY_BATCH` of its messages wait: a replay that is stuck leaves the room in the window to the live stream.
        """
        return self._position < self._end and len(self.numbers) < REPLAY_BATCH

    @property
    def finished(self) -> bool:
        """Whether everything was read and settled."""
        return self._position >= self._end and not self.numbers

    @property
    def progress(self) -> dict[str, int]:
        """How many records of the log were read, of how many, for the condition."""
        total = max(0, self._end - self._begin)
        return {"request": self.request.id, "read": min(self._position - self._begin, total), "total": total}

    def close(self) -> None:
        """Free the reader."""
        self._reader.close()

    def _begin_again(self) -> None:
        """Continue with the oldest record, as the log dropped the next ones.

        A log that lost its newest records may end before this replay does, which then ends there: the live stream sends all that
        the log has.
        """
        self._end = min(self._end, self._log.ends(NOTICES)[0])
        self._position = min(max(self._position, self._log.beginnings(NOTICES)[0]), self._end)
        old, self._reader = self._reader, self._log.reader({(NOTICES, 0): self._position})
        old.close()

    def _is_wanted(self, record: Record) -> bool:
        try:
            event = from_json(Notice, record.value or b"").event
        except Exception:  # the live stream says what is wrong with it
            return False
        argument = self.request.members
        if argument["repository"] not in (event.repository, event.path):
            return False
        if "since_push" in argument:
            push = event.changes.push
            return push is not None and push.id >= argument["since_push"]
        return event.time >= float(argument["since_time"])


def _describe_replay(replay: Replay) -> str:
    if replay.confirmed < replay.taken:
        what = f"sent {replay.confirmed} of {counted(replay.taken, 'message')} again"
        return f"{FAILED}{what}; vcsreplicator errors shows what was rejected or skipped"
    if replay.taken:
        return f"sent {counted(replay.taken, 'message')} again"
    argument = replay.request.members
    return f"{NOTHING}sent: the log has no message for it about {argument['repository']} since then"


@dataclass(slots=True, kw_only=True)
class Orders:
    """The requests to the destination `name`.

    `messages_of` returns the destination's messages of a record. The log's requests are followed from the offset `follows_from`, or
    from the first.
    """

    name: str
    state: StateDatabase
    log: Log
    write: Write
    keeper: KeepingDestination | None
    clock: Clock
    window: Window
    reader: NoticeReader
    rejects: Rejects
    messages_of: Callable[[Record], list[Message]]
    follows_from: int | None = None
    _meant: dict[int, int] = field(default_factory=dict)
    _replays: list[Replay] = field(default_factory=list)
    _asked_at: float = float("-inf")
    _followed_at: float = float("-inf")
    _follower: RequestFollower = field(init=False)

    def __post_init__(self) -> None:
        self._follower = RequestFollower(self.name, self.log, self.state, self.follows_from)

    def carry_out_requests(self) -> None:
        """Carry out the requests made since the last call.

        What is asked of webhooks is done in its order: carried out late, an earlier request would undo a later one.
        """
        now = self.clock.monotonic()
        if now - self._asked_at < ASK_EVERY:
            return
        self._asked_at = now
        self._follow_log(now)
        try:
            is_held = False
            for request in self.state.requests.list_open(self.name):
                if request.kind not in OF_WEBHOOKS:
                    self._try_request(request)
                elif not is_held:
                    is_held = not self._try_request(request)
            self.window.paused = self.state.paused(self.name)
        except Unavailable as error:
            logger.warning("requests not carried out", reason=str(error))
        PAUSED.labels(self.name).set(self.window.paused)

    def _follow_log(self, now: float) -> None:
        """Take over requests of other machines; requests of this one do not wait for the log."""
        if now - self._followed_at < FOLLOW_EVERY:
            return
        self._followed_at = now
        try:
            self._follower.follow(with_answers=False)
        except Unavailable as error:
            logger.warning("requests of other machines not read", reason=str(error))

    @property
    def replaying(self) -> bool:
        """Whether a replay has more to read now."""
        return self.window.replay_room > 0 and any(replay.has_more for replay in self._replays)

    def list_replays(self) -> list[dict[str, int]]:
        return [replay.progress for replay in self._replays]

    def read_replays(self) -> None:
        """Read on in each replay; end it once it is settled."""
        for replay in list(self._replays):
            self._take_step(replay.request, partial(self._read_replay, replay))

    def count_confirmed(self, number: int) -> None:
        """Count a confirmed delivery for the replay to which it belongs, if any."""
        for replay in self._replays:
            replay.confirmed += number in replay.numbers

    def close(self) -> None:
        """Free the readers; replays that are not done begin again at the next start."""
        for replay in self._replays:
            replay.close()
        self._replays.clear()

    def _try_request(self, request: OperatorRequest) -> bool:
        """Carry out a request; leave it open and return False while the log or the database is away."""
        try:
            self._take_step(request, partial(self._carry_out, request))
        except Unavailable as error:
            logger.warning("request not carried out", request=request.id, kind=request.kind, reason=str(error))
            return False
        return True

    def _take_step(self, request: OperatorRequest, proceed: Callable[[], None]) -> None:
        """Take a step of a request; answer it with the error if it can never work.

        Raises errors that waiting or a change of the configuration can solve.
        """
        try:
            proceed()
        except Exception as error:
            wrong = judged(error)
            if not isinstance(wrong, Rejected):
                raise wrong from error
            logger.error("request failed", request=request.id, kind=request.kind, reason=str(wrong), exc_info=True)
            self._answer_request(request, f"{FAILED}{wrong}")
            self._end_replay(request)

    def _read_replay(self, replay: Replay) -> None:
        replay.numbers = {number for number in replay.numbers if self.window.holds(number)}
        for record in replay.records(self.window.replay_room):
            for message in self._read_messages(record):
                replay.numbers.add(self.window.take_replay(replace(message, replay=replay.mark)))
                replay.taken += 1
        if replay.finished:
            self._answer_request(replay.request, _describe_replay(replay))
            self._end_replay(replay.request)

    def _end_replay(self, request: OperatorRequest) -> None:
        for replay in [each for each in self._replays if each.request.id == request.id]:
            self._replays.remove(replay)
            replay.close()

    def _carry_out(self, request: OperatorRequest) -> None:
        match request.kind:
            case Kind.PAUSE | Kind.RESUME:
                self._answer_request(request, f"{request.kind}d")
            case Kind.SKIP:
                self._skip_message(request)
            case Kind.REPLAY:
                if not self.reader.is_resting and all(replay.request.id != request.id for replay in self._replays):
                    self._replays.append(Replay(request, self.log))
            case kind if kind in OF_WEBHOOKS:
                if self.keeper is None:
                    raise Rejected(f"{self.name} is no webhook: it has no subscriptions")
                if (answer := self.keeper.carry_out(request)) is not None:
                    self._answer_request(request, answer)
            case _:
                raise Rejected("unknown kind of request; repeat it with the release that the notifier runs")

    def _skip_message(self, request: OperatorRequest) -> None:
        """Skip a message; record it in `errors` first.

        A kill between the two repeats a skip with an id and never forgets it. A message of a replay is skipped there alone: the
        live stream may not have sent it yet.
        """
        meant = self._find_meant(request)
        number = next(filter(self.window.is_skippable, meant), None)
        if number is None:
            if not any(map(self.window.will_be_skippable, meant)):
                self._explain_nothing(request, is_held=bool(meant))
            return
        if self.reader.is_resting:
            return
        message = self.window.delivery(number).message
        self.rejects.keep_message(message, f"skipped by {request.who}", is_counted=False)
        live = message if message.replay is None else None
        self._answer_request(request, f"skipped {message.id} of {message.repo_url}", skipped=live)
        self.window.settle(number)
        SKIPPED.labels(self.name).inc()

    def _find_meant(self, request: OperatorRequest) -> list[int]:
        """Return the deliveries in the window of which a skip means one.

        A skip without an id means the oldest delivery that had failed when the courier first saw the request, and no other.
        """
        wanted = request.members.get("message")
        if wanted is not None:
            return self.window.with_id(wanted)
        if request.id not in self._meant:
            found = self.window.failed(request.asked_at)
            self._meant[request.id] = found[0] if found else -1
        number = self._meant[request.id]
        return [number] if self.window.holds(number) else []

    def _explain_nothing(self, request: OperatorRequest, *, is_held: bool) -> None:
        """Answer a skip that found nothing to skip.

        After a start, a skip with an id waits until the window has every notice that the log had then.
        """
        wanted = request.members.get("message")
        if wanted is None:
            reason = "no message that failed waits for another attempt; to skip one after a start, name its id"
        elif is_held:
            reason = "a message that failed must be sent before this one"
        elif wanted in self.state.skipped(self.name, 0):
            self._answer_request(request, f"skipped {wanted} before")
            return
        elif self.reader.has_read_backlog():
            reason = "no such message waits for another attempt"
        else:
            return
        self._answer_request(request, f"{NOTHING}skipped: {reason}")

    def _read_messages(self, record: Record) -> list[Message]:
        try:
            return self.messages_of(record)
        except Exception:  # kept when the live stream met it
            return []

    def _answer_request(self, request: OperatorRequest, result: str, *, skipped: Message | None = None) -> None:
        result, now = clean(result), self.clock.now()
        answered = replace(_to_record(request), done_at=now, result=result)
        if skipped is not None:
            answered = replace(answered, skipped=skipped.id, skipped_offset=skipped.offset)
        record_requests(self.name, self.write, [answered])
        self.state.restore_requests(self.name, [answered])
        self._meant.pop(request.id, None)
        logger.info("request carried out", request=request.id, kind=request.kind, who=request.who, result=result)


def _to_record(request: OperatorRequest) -> RequestRecord:
    kept = {name: value for name, value in (request.argument or {}).items() if name != SUBSCRIPTION}
    argument = json.dumps(kept, sort_keys=True)
    return RequestRecord(kind=request.kind, argument=argument, who=request.who, asked_at=request.asked_at)
