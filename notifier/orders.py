# SPDX-License-Identifier: GPL-2.0-or-later
"""Operators' requests to one destination: pause, resume, skip, replay.

They are carried out between the turns of its loop.

A request is answered only after it took effect, and stays open until it is answered: killed between, it is carried out
again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.log import Log, Record
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Unavailable

from .message import Message
from .rejects import Rejects
from .replay import Replay
from .state import DestinationRequest, Kind, StateDatabase
from .window import Window

ASK_EVERY = 0.5

SKIPPED = Counter("vcsreplicator_notifier_skipped_messages", "Skipped by an operator", ["destination"])
PAUSED = Gauge("vcsreplicator_notifier_paused_flag", "1 while an operator paused the destination", ["destination"])

logger = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Orders:
    """The requests to the destination `name`.

    `messages_of` returns the destination's messages of a record.
    """

    name: str
    state: StateDatabase
    log: Log
    clock: Clock
    window: Window
    rejects: Rejects
    messages_of: Callable[[Record], list[Message]]
    _replays: list[Replay] = field(default_factory=list)
    _asked_at: float = float("-inf")

    def carry_out_requests(self) -> None:
        """Carry out the requests made since the last call."""
        now = self.clock.monotonic()
        if now - self._asked_at < ASK_EVERY:
            return
        self._asked_at = now
        try:
            for request in self.state.open_requests(self.name):
                self._carry_out(request)
            self.window.paused = self.state.paused(self.name)
        except Unavailable as error:
            logger.warning("requests not carried out", reason=str(error))
        PAUSED.labels(self.name).set(self.window.paused)

    @property
    def replaying(self) -> bool:
        """Whether a replay has more to read now."""
        return any(replay.has_more for replay in self._replays)

    def read_replays(self) -> None:
        """Read on in each replay; end those that are settled."""
        for replay in list(self._replays):
            replay.numbers = {number for number in replay.numbers if self.window.holds(number)}
            for record in replay.records(self.window.room):
                for message in self._readable(record):
                    replay.numbers.add(self.window.take_replay(replay.marked(message)))
                    replay.count += 1
            if replay.finished:
                self._done(replay.request, f"sent {replay.count} messages again")
                self._replays.remove(replay)
                replay.close()

    def close(self) -> None:
        """Free the readers; replays that are not done begin again at the next start."""
        for replay in self._replays:
            replay.close()
        self._replays.clear()

    def _carry_out(self, request: DestinationRequest) -> None:
        match request.kind:
            case Kind.PAUSE | Kind.RESUME:
                self._done(request, f"{request.kind.value}d")
            case Kind.SKIP:
                self._skip(request)
            case Kind.REPLAY:
                if all(replay.request.id != request.id for replay in self._replays):
                    self._replays.append(Replay(request, self.log))

    def _skip(self, request: DestinationRequest) -> None:
        """Skip a message; record it in `errors` first.

        A kill between the two repeats the skip and never forgets it. A message of a replay is skipped there alone: the
        live stream may not have sent it yet.
        """
        delivery = self.window.skippable(request.argument.get("message"))
        if delivery is None:
            self._done(request, "nothing skipped: no such message waits for another attempt")
            return
        message = delivery.message
        self.rejects.keep_message(message, f"skipped by {request.who}")
        live = message if message.replay is None else None
        self._done(request, f"skipped {message.id} of {message.repo_url}", skipped=live)
        self.window.settle(delivery.number)
        SKIPPED.labels(self.name).inc()

    def _readable(self, record: Record) -> list[Message]:
        try:
            return self.messages_of(record)
        except Exception:  # kept when the live stream met it
            return []

    def _done(self, request: DestinationRequest, result: str, *, skipped: Message | None = None) -> None:
        self.state.done(
            request.id,
            result,
            now=self.clock.now(),
            skipped=None if skipped is None else skipped.id,
            skipped_offset=None if skipped is None else skipped.offset,
        )
        logger.info("request carried out", request=request.id, kind=request.kind.value, who=request.who, result=result)
