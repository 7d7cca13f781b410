# SPDX-License-Identifier: GPL-2.0-or-later
"""Records of the aggregator for mirrors: states, the roster, and its heartbeat."""

import os
from collections.abc import Iterable
from pathlib import Path

import structlog

from ...log import ROSTER, STATE
from ...words.errors import Rejected
from ...words.records import AGGREGATOR, AggregatorHeartbeat, RepositoryState, read_state
from ...words.roster import KEY as ROSTER_KEY
from ...words.roster import Roster
from ...words.rules import refused
from ...words.shape import from_json
from ...words.unexpected import fault
from .. import metrics
from ..namesake import Namesakes
from .departures import Departures, deletion
from .state import State

# The file by whose time web servers know when this machine last heard the aggregator.
FRESH = "fresh"
logger = structlog.get_logger()


class Control:
    """Takes the records of `state` and `roster`.

    It keeps the newest state of each repository that is not gone for good.
    """

    def __init__(self, state: State, departures: Departures, namesakes: Namesakes) -> None:
        self._fresh, self._clock = Path(state.settings.folder) / FRESH, state.clock
        self._table, self._agenda, self._acks = state.table, state.agenda, state.acks
        self._membership, self._departures, self._namesakes = state.membership, departures, namesakes
        self._writer = state.writer
        self._states: dict[str, RepositoryState] = {}
        self._aggregator_beat: AggregatorHeartbeat | None = None

    def state_of(self, repository: str) -> RepositoryState | None:
        """Return a repository's newest state; None if it has none or was deleted."""
        return self._states.get(repository)

    def take_record(self, topic: str, key: str | None, value: bytes | None, *, is_new: bool = True) -> None:
        """Take a record of `state` or `roster`; MalformedEvent changes nothing."""
        if topic == STATE:
            self._take_state(key, value, is_new=is_new)
        elif topic == ROSTER and key == ROSTER_KEY:
            self._take_roster(value)

    def load(self, topic: str, key: str, value: bytes | None) -> None:
        """Take the record that a topic held for a key at the start.

        A record that cannot be handled is logged and skipped. The aggregator's heartbeat among them may have any age: only a newer
        one shows that it runs.
        """
        try:
            self.take_record(topic, key, value, is_new=False)
        except Exception as error:
            if not isinstance(error, Rejected) and fault(error) is None:
                raise
            logger.error("record not understood", topic=topic, key=key, reason=str(error)[:300])

    def _take_state(self, key: str | None, value: bytes | None, *, is_new: bool) -> None:
        if key is None or value is None:
            return
        if key == AGGREGATOR:
            beat = from_json(AggregatorHeartbeat, value)
            if is_new and beat != self._aggregator_beat:
                self._renew_fresh()
                self._namesakes.take(beat)
                self._write_overwritten(beat)
            self._aggregator_beat = beat
            return
        self._learn(read_state(key, value, without=("streams", "serials")))  # it needs neither, and keeps all states

    def _write_overwritten(self, beat: AggregatorHeartbeat) -> None:
        """Write what another program has overwritten; without a seal it would not count either."""
        prefix = f"{self._membership.name}/"
        keys = [key for key in beat.overwritten if key.startswith(prefix)] if self._writer.is_sealing else []
        if keys:
            logger.error("acks overwritten by another program, written again", keys=keys)
            self.write_again([key.removeprefix(prefix) for key in keys])

    def write_again(self, repositories: Iterable[str]) -> None:
        """Write the acks of these repositories, or tombstones where there is nothing to say."""
        for repository in repositories:
            following = self._table.get(repository)
            if following is None or not self._acks.send_again(following):
                self._acks.withdraw(repository)

    def _renew_fresh(self) -> None:
        """Record that the aggregator was heard, by this machine's clock and no other."""
        now = self._clock.now()
        metrics.AGGREGATOR_BEAT.set(now)
        try:
            self._fresh.touch()
            os.utime(self._fresh, (now, now))
        except OSError as error:
            logger.error("file not renewed", file=str(self._fresh), reason=error.strerror)

    def _learn(self, state: RepositoryState) -> None:
        is_finished = state.deleted and state.noticed >= state.seq
        if is_finished:
            self._states.pop(state.repository, None)
            self._departures.finish(state)
        else:
            self._states[state.repository] = state
        following, is_carried = self._table.get(state.repository), self._membership.carries(state.path)
        if following is None and not is_finished and is_carried:
            if state.deleted and self._departures.is_deleted(state.repository):
                self._departures.acknowledge_if_awaited(state)
                return
            following = self._table.get_or_add(state.repository, state.path)
        if following is not None:
            last = deletion(state, self._clock.now()) if state.deleted else None
            following.change(following.learn(state, is_carried=is_carried, deletion=last))
            self._departures.leave_if_due(following)
            self._agenda.queue(following)

    def _take_roster(self, value: bytes | None) -> None:
        """Take this mirror's rules from the roster.

        An older version comes from a log that was rewound. A rule that cannot be evaluated (of an older release) leaves nothing
        out, as in the aggregator: a mirror must carry every repository that it gates, or notices would wait indefinitely.
        """
        if value is None:
            return
        before, roster = self._membership.member, from_json(Roster, value)
        ends_doubt = self._membership.take_roster(roster, self._clock.monotonic())
        now = self._membership.member
        if self._writer.take_roster(roster):
            self._send_all_again()
        if now is None or (before == now and not ends_doubt):
            return
        if before is None or before.rules != now.rules:
            for rule, problem in refused((*now.rules.include, *now.rules.exclude)).items():
                logger.error("rule refused, leaves nothing out", rule=rule[:200], reason=problem)
        if ends_doubt or before is None or (before.rules, before.role) != (now.rules, now.role):
            self._apply_rules()
        if before is not None and (before.state, before.since) != (now.state, now.since):
            self._send_all_again()  # a mirror that was removed meanwhile has no acks in the log

    def _send_all_again(self) -> None:
        for following in self._table:
            self._acks.send_again(following)

    def end_doubt(self) -> None:
        """Let repositories leave once an older roster has stayed the newest for a while."""
        if self._membership.end_doubt(self._clock.monotonic()):
            logger.warning("older roster followed", version=self._membership.roster.version)
            self._apply_rules()

    def _apply_rules(self) -> None:
        """Take in the repositories that this mirror must have now; others leave."""
        for state in [*self._states.values()]:
            self._learn(state)
        for following in self._table:
            self._departures.leave_if_due(following)
