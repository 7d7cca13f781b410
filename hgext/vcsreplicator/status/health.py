# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a load balancer may send clients to a mirror, and if not, why.

`judge` decides, purely, from the picture that the log gives. `Endpoint` answers a mirror's /health: it keeps a picture, and
remembers since when each repository is late, because a push is always late for some milliseconds.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..log import Log
from ..log.aside import ask_aside
from ..words.clock import DAY, Clock, Silence, SystemClock
from ..words.errors import ReplicationError, counted
from ..words.records import AGGREGATOR
from ..words.roster import MirrorState
from ..words.shape import Seconds, within
from . import Picture
from .follower import Follower
from .wording import name_paths

# Most late repositories that a reason names.
LATE_NAMED = 5

# Seconds that a request waits for a reading of the log: a load balancer's patience is short.
PATIENCE = 1.0
# The same while the last reading failed: requests that wait take the threads of the HTTP server.
GLANCE = 0.1

# Seconds after which a reading shows that the log or the disk hung, rather than that it is slow.
HANG = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """When a mirror is not ready; docs/install.md explains each key."""

    behind: int = 600
    late: Seconds = 10.0
    silence: Seconds = 30.0
    refuse_when_silent: bool = False

    def __post_init__(self) -> None:
        within(self, behind=(0, 10**9), late=(0, DAY), silence=(0, DAY))


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthVerdict:
    """Why a mirror is not ready, and why it is degraded.

    Degraded means that nothing new is released, for all mirrors alike.
    """

    reasons: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()


def judge(
    picture: Picture, mirror: str, *, since: Mapping[str, float], silence: Silence, now: float, settings: HealthSettings
) -> HealthVerdict:
    """Judge whether the mirror is ready, and whether it is degraded.

    `since` says, by repository, since when the mirror is late with it, on the monotonic clock.
    """
    behind, limit = picture.behind(mirror), settings.behind
    reasons = (
        _describe_standing(picture, mirror),
        _describe_silence("the mirror", mirror in picture.heartbeats, silence.seconds(mirror, now), settings),
        f"{counted(behind, 'event')} behind, at most {limit} are allowed" if behind > limit else None,
        _judge_lateness(picture, since, now, settings),
    )
    aggregator = _describe_silence(
        "the aggregator", picture.aggregator is not None, silence.seconds(AGGREGATOR, now), settings
    )
    return _join_reasons(tuple(filter(None, reasons)), aggregator, settings)


def _join_reasons(reasons: tuple[str, ...], common: str | None, settings: HealthSettings) -> HealthVerdict:
    """Join the reasons of the mirror and a reason for all mirrors."""
    if common is None:
        return HealthVerdict(reasons=reasons)
    return HealthVerdict(reasons=(*reasons, common) if settings.refuse_when_silent else reasons, degraded=(common,))


def late(picture: Picture, mirror: str) -> Set[str]:
    """Return the repositories in which the mirror serves less than is released.

    Only those count that it carries and that are not deleted.
    """
    lags = picture.measure_lags(mirror)
    return {state.repository for state, lag in lags if lag.unserved and picture.must_have(mirror, state)}


def _describe_standing(picture: Picture, mirror: str) -> str | None:
    known = picture.roster.mirror(mirror)
    if known is None:
        return "not in the roster"
    return None if known.state is MirrorState.ACTIVE else known.state.value


def _describe_silence(who: str, is_known: bool, seconds: float, settings: HealthSettings) -> str | None:
    if not is_known:
        return f"{who} has sent no heartbeat"
    return f"{who} is silent for {seconds:.0f} s" if seconds > settings.silence else None


def _judge_lateness(picture: Picture, since: Mapping[str, float], now: float, settings: HealthSettings) -> str | None:
    names = sorted(picture.states[name].path for name, began in since.items() if now - began > settings.late)
    if not names:
        return None
    return f"shows less than is released of {name_paths(names, LATE_NAMED)}"


class _SharedQuestion(Generic[T]):
    """A question that one thread at a time answers, begun by a request."""

    def __init__(self, find_answer: Callable[[], T], clock: Clock) -> None:
        self._find_answer, self._clock = find_answer, clock
        self._lock = threading.Lock()
        self._answer: Future[T] | None = None
        self._began = 0.0

    def ask(self) -> tuple[Future[T], float]:
        """Return the answer that is awaited, and since when."""
        with self._lock:
            if self._answer is None or self._answer.done():
                now = self._clock.monotonic()
                # Raises if the system has no thread left: then the next request asks.
                self._answer, self._began = ask_aside("health", self._find_answer), now
            return self._answer, self._began


class Endpoint:
    """The answers to /health of one mirror; several threads may call it.

    A request waits a bounded time for the log and for the folder `root` of the mirror's repositories, so a hanging one delays no
    answer for long: then the last verdict is the answer. After HANG seconds a log makes it a degraded one, and without the folder
    the mirror is not ready. It is not ready either before the log was read once.
    """

    def __init__(
        self,
        log: Log,
        mirror: str,
        settings: HealthSettings,
        clock: Clock = SystemClock(),  # noqa: B008
        *,
        root: str | None = None,
    ) -> None:
        self._log, self._mirror, self._settings, self._clock, self._root = log, mirror, settings, clock, root
        self._follower: Follower | None = None
        self._silence = Silence(clock.monotonic())
        # End of the last reading, also a failed one, on a clock that stops while the log hangs.
        self._read_at = 0.0
        self._since: dict[str, float] = {}
        self._known: HealthVerdict | None = None
        self._reading = _SharedQuestion(self._read_verdict, clock)
        # The last failure, and the total time that the log hung.
        self._trouble: str | None = None
        self._hung = 0.0
        self._look = _SharedQuestion(lambda: root is None or os.path.isdir(root), clock)
        # Whether the folder was there at the last look; None before the first.
        self._is_there: bool | None = None

    def __call__(self) -> Mapping[str, Any]:
        """Return `alive`, `ready` with `reasons` if not, and why it is `degraded`.

        Passes on an unexpected exception of a reading.
        """
        look, (reading, began), trouble, known = self._look.ask(), self._reading.ask(), self._trouble, self._known
        try:
            verdict = reading.result(self._limit_wait(began, GLANCE if trouble else PATIENCE))
        except TimeoutError:
            lasts = self._clock.monotonic() - began
            if trouble is None and known is not None and lasts < HANG:
                verdict = known
            else:
                verdict = self._judge_without_log(trouble or f"the log cannot be read: no answer for {lasts:.0f} s")
        reasons = [*verdict.reasons, *self._judge_folder(*look)]
        return {
            "alive": True,
            "ready": not reasons,
            "reasons": reasons,
            "degraded": list(verdict.degraded),
            "mirror": self._mirror,
        }

    def _limit_wait(self, began: float, patience: float) -> float:
        """Return for how many seconds to wait for what began then."""
        return max(0.0, began + patience - self._clock.monotonic())

    def _judge_folder(self, look: "Future[bool]", began: float) -> Iterator[str]:
        """Yield why clients find no repository, if so."""
        try:
            self._is_there = look.result(self._limit_wait(began, PATIENCE))
        except TimeoutError:
            lasts = self._clock.monotonic() - began
            if self._is_there is None or lasts >= HANG:
                yield f"the folder {self._root} has not answered for {lasts:.0f} s"
                return
        if not self._is_there:
            yield f"the folder {self._root} is missing"

    def _read_verdict(self) -> HealthVerdict:
        """Read the log, and judge what it says."""
        began = self._clock.monotonic()
        try:
            if self._follower is None:
                self._follower = Follower(self._log, self._clock)
            picture = self._follower.update()
            self._count_hang(began)
            newest = self._follower.newest_heartbeat
            if self._known is None:
                # All heartbeats may be equally old; then only the report of another service shows it.
                newest = max(newest, self._follower.recent_report)
            self._known, self._trouble = self._judge(picture, newest), None
            return self._known
        except ReplicationError as error:
            # No heartbeat can arrive, so all silence begins again.
            self._count_hang(began)
            self._read_at = self._measure_time()
            self._silence = Silence(self._read_at)
            self._trouble = f"the log cannot be read: {error}"
            return self._judge_without_log(self._trouble)

    def _count_hang(self, began: float) -> None:
        """Count the time of a reading during which the log hung."""
        lasted = self._clock.monotonic() - began
        if lasted > HANG:
            self._hung += lasted

    def _measure_time(self) -> float:
        """Return the monotonic time, less the time that the log hung."""
        return self._clock.monotonic() - self._hung

    def _judge_without_log(self, reason: str) -> HealthVerdict:
        """Return the last verdict, degraded by `reason`; not ready without one."""
        if self._known is None:
            return HealthVerdict(reasons=(reason,))
        return _join_reasons(self._known.reasons, reason, self._settings)

    def _judge(self, picture: Picture, newest: float) -> HealthVerdict:
        """Judge the picture of a log that has reached the time `newest` by its own clock.

        The age of a heartbeat comes from the log's timestamps, after the first reading limited by the time since the last one.
        """
        now = self._measure_time()
        limit = math.inf if self._known is None else now - self._read_at
        for name in (AGGREGATOR, self._mirror):
            age = max(0.0, min(newest - picture.seen(name), limit))
            self._silence.heard(name, picture.heard.get(name), now - age)
        self._read_at = now
        self._since = {name: self._since.get(name, now) for name in late(picture, self._mirror)}
        return judge(picture, self._mirror, since=self._since, silence=self._silence, now=now, settings=self._settings)
