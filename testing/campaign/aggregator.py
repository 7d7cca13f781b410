# SPDX-License-Identifier: GPL-2.0-or-later
"""An aggregator of the campaign: real sessions, and the real decisions to stand by and to take over.

What is played is the loop around them (`aggregator.loop`, `aggregator.standby`), which waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from hgext.vcsreplicator.aggregator import standby
from hgext.vcsreplicator.aggregator.lasting import Lasting
from hgext.vcsreplicator.aggregator.loading import IDENTITY, read_beat, read_state
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import NOTICES, Record
from hgext.vcsreplicator.log.standby import POLL, Rival, StandbyReader
from hgext.vcsreplicator.log.table import Table
from hgext.vcsreplicator.words.errors import Expired, Fenced, Unavailable
from hgext.vcsreplicator.words.records import AGGREGATOR, Notice
from hgext.vcsreplicator.words.shape import from_json
from testing.campaign.faults import Strike
from testing.campaign.log import Call, ProcessTransactor
from testing.campaign.process import Process


class Aggregator(Process):
    """Stands by, or works; what it keeps is in the log, but for the newest notices: while it has to write some again, it lives."""

    # The ids of the notices that it has to write again.
    _owed: frozenset[str] = frozenset()
    rival: Aggregator

    @property
    def can_step(self) -> bool:
        return super().can_step and not self.rival.is_owing()

    def is_remembering(self, notices: Collection[Record]) -> bool:
        """Whether it is at work and would write these notices again."""
        if not self._is_alive or self.is_frozen or self.rival.is_frozen or self._transactor is None:
            return False
        is_newest = self._transactor._transactor.epoch == self.stage.log._epochs[IDENTITY]
        return is_newest and {record.value for record in notices} <= self._lasting.recent._written.keys()

    def is_owing(self) -> bool:
        if self._owed:
            self._owed -= list_ids(self.stage.log.records(NOTICES))
        return bool(self._owed)

    def owe(self, notices: Collection[Record]) -> None:
        self._owed |= list_ids(notices)

    def _strike(self, kind: Call) -> Callable[[], None]:
        if self.is_owing():
            self.delay(Strike.KILL, Strike.KILL_AFTER, Strike.LOSE_MACHINE, Strike.FREEZE, Strike.SUSPEND)
        return super()._strike(kind)

    def begin(self) -> None:
        key = str(self.folder / "aggregator.key")
        self._settings = AggregatorSettings(beat=1.5, takeover_after=3.0, key=key)
        self._reader: StandbyReader | None = None
        self._transactor: ProcessTransactor | None = None
        self._session: Session | None = None
        self._lasting = Lasting(self.clock, f"{self.name} {self.life}")
        self._has_turn = self._is_fenced = False

    def step(self) -> None:
        try:
            if not self._has_turn:
                self._stand_by()
            elif self._session is None:
                self._open()
            else:
                self._session.step(0.0)
                if self._session.is_outdated:
                    self._session.finish()
                    self._close()
        except Fenced:
            self._close()
            self._transactor, self._has_turn, self._is_fenced = None, False, True
        except (Unavailable, Expired):
            self._close()
            self._reader = None
            self.rest(0.2)

    def _stand_by(self) -> None:
        if self._reader is not None:
            if self._reader.find_turns():
                self._has_turn, self._reader = True, None
            else:
                self.rest(POLL / 4)
            return
        state = read_state(self.log, self.stop)
        beat = read_beat(state)
        if not self._is_fenced and (beat is None or not standby._may_work(beat)):
            self._has_turn = True
            return
        rivals = {AGGREGATOR: Rival(heard=self.clock.monotonic())}
        self._reader = StandbyReader(
            self.log,
            state.positions,
            rivals,
            read_signs=standby._SignReader(f"{self.name} {self.life}", None if beat is None else beat.instance).read,
            patience=max(self._settings.takeover_after, 2 * self._settings.beat),
            clock=self.clock,
        )

    def _open(self) -> None:
        state: Table | None = None
        if self._transactor is None:
            state = read_state(self.log, self.stop)
            self._transactor = self.log.transactor(IDENTITY)
            self._lasting = Lasting(self.clock, f"{self.name} {self.life}")
        else:
            self._transactor.renew()
        self._session = Session(self._settings, self.log, self._transactor, self.clock, self._lasting, self.stop, state)

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def list_ids(notices: Collection[Record]) -> frozenset[str]:
    return frozenset(from_json(Notice, record.value or b"").event.id for record in notices)
