# SPDX-License-Identifier: GPL-2.0-or-later
"""An aggregator of the campaign: real sessions, and the real decisions to stand by and to take over.

What is played is the loop around them (`aggregator.loop`, `aggregator.standby`), which waits.
"""

from __future__ import annotations

from hgext.vcsreplicator.aggregator import standby
from hgext.vcsreplicator.aggregator.decisions.poison import Poison
from hgext.vcsreplicator.aggregator.loading import IDENTITY, read_beat, read_state
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import Transactor
from hgext.vcsreplicator.log.standby import POLL, Rival, StandbyReader
from hgext.vcsreplicator.log.table import Table
from hgext.vcsreplicator.words.clock import Silence
from hgext.vcsreplicator.words.errors import Expired, Fenced, Unavailable
from hgext.vcsreplicator.words.records import AGGREGATOR
from hgext.vcsreplicator.words.roster import Roster
from testing.campaign.process import Process


class Aggregator(Process):
    """Stands by, or works; all that it keeps is in the log."""

    def begin(self) -> None:
        key = str(self.folder / "aggregator.key")
        self._settings = AggregatorSettings(beat=1.5, takeover_after=3.0, key=key)
        self._poison, self._silence = Poison(), Silence(self.clock.monotonic())
        self._reader: StandbyReader | None = None
        self._transactor: Transactor | None = None
        self._session: Session | None = None
        self._written: Roster | None = None
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
        else:
            self._transactor.renew()
        self._session = Session(
            self._settings, self.log, self._transactor, self.clock, self._poison, self._silence, self.stop, state,
            self._written, f"{self.name} {self.life}",
        )  # fmt: skip

    def _close(self) -> None:
        if self._session is not None:
            self._written = self._session.written
            self._session.close()
            self._session = None
