# SPDX-License-Identifier: GPL-2.0-or-later
"""What users of an installation saw, and whether it kept the promises; pure.

`check` returns a line for each violation:

- lost: a change was accepted, and a destination never got its message, or a mirror never served it, though all was healed;
- early: a message arrived before each mirror had served the change that gated ever since the change was accepted (of a repository
  that the master has deleted by then, a mirror need not serve anything);
- misordered: first deliveries of a repository skip one or go back, or come before those of the repository that had the path. A
  successor waits only so long for a repository of which the log gets no event (DEPARTURE_PATIENCE); what comes later is late;
- repeated: a message came again though the destination's position was stored behind it, or its sender knew since its turn began
  that it was confirmed. A notifier that another one overtook may repeat for PROOF seconds since it last wrote, and after those what
  it was about to send;
- divergent: at the end a mirror differs from the master;
- two masters: the log has two events in one place, or one not accepted by a master in office. What a replaced master had accepted
  and not sent, or accepts later, is not promised to anyone.
- lost, too: the roster at the end does not have a decision that it once had;
- two writers: a process wrote for an identity after a newer process had.
"""

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hgext.vcsreplicator.aggregator.decisions.succession import DEPARTURE_PATIENCE
from hgext.vcsreplicator.log import NOTICES

# Seconds for which a notifier believes that it still has its turn, and the messages that it may then be about to send.
PROOF, ABOUT_TO_SEND = 5.0, 4
NEVER = float("inf")


class Kind(enum.StrEnum):
    """What happened."""

    ACCEPTED = "accepted"
    LOGGED = "logged"
    PROMOTED = "promoted"
    DECLARED = "declared"
    GATING = "gating"
    SERVED = "served"
    DELIVERED = "delivered"
    CONFIRMED = "confirmed"
    STORED = "stored"
    WROTE = "wrote"
    FAULT = "fault"
    ENDED = "ended"
    LOST = "lost"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One observation.

    `who` is a mirror, a destination, an identity of a transactor, a topic that lost records, or what a fault struck. `names` are
    the paths that a mirror gates, but for the repositories that are `spared`, or a fault's text. `life` counts processes, `turn`
    transactors, and `own` is the monotonic clock of the process, or of the log for what is logged; `offset` is the notice's place,
    or a stored position. The end of a mirror has its level of each repository that still exists.
    """

    step: int
    kind: Kind
    who: str = ""
    repository: str = ""
    seq: int = 0
    digest: str = ""
    path: str = ""
    generation: int = 0
    offset: int = -1
    life: int = 0
    turn: int = 0
    own: float = 0.0
    names: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    is_deletion: bool = False

    def __str__(self) -> str:
        """One line for a person who reads a failure."""
        event = f" {self.path or self.repository[:6]}@{self.seq}" if self.repository else ""
        life = f" by process {self.life}" if self.life else ""
        place = f" at {self.offset}" if self.offset >= 0 else ""
        return f"{self.step:5} {self.kind.value:9} {self.who}{event}{place}{life} {' '.join(self.names)}".rstrip()


@dataclass(slots=True)
class _Repository:
    accepted: dict[int, Seen] = field(default_factory=dict)
    # The digest of each event that the log took, and when it first did.
    logged: dict[int, str] = field(default_factory=dict)
    logged_at: dict[int, float] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)

    @property
    def is_deleted(self) -> bool:
        return bool(self.accepted) and self.accepted[max(self.accepted)].is_deletion


class Checker:
    """Takes observations in their order; `violations` are the lines found so far."""

    def __init__(self, destinations: Iterable[str]) -> None:
        self.violations: list[str] = []
        self._destinations = tuple(destinations)
        self._repositories: dict[str, _Repository] = {}
        # The source of the newest promoted master.
        self._master: str | None = None
        # Of each mirror: since which step it gates a path, and until which one it did not gate a repository.
        self._gating_since: dict[str, dict[str, float]] = {}
        self._spared_until: dict[str, dict[str, float]] = {}
        self._stored: dict[str, int] = {}
        self._confirmed: set[tuple[str, int, int]] = set()
        self._turns: dict[str, int] = {}
        # Of each destination and process: its newest write.
        self._proofs: dict[tuple[str, int], Seen] = {}
        self._overtaken: Counter[tuple[str, int]] = Counter()
        self._generations: dict[tuple[str, str], int] = {}
        # The destinations that lost notices and have not begun again.
        self._may_go_back = set[str]()
        # When the log took the first event of each generation at a path.
        self._arrived: dict[str, dict[int, float]] = {}

    def take(self, seen: Seen) -> None:
        repository = self._repositories.setdefault(seen.repository, _Repository()) if seen.repository else _Repository()
        match seen.kind:
            case Kind.ACCEPTED:
                if self._master in (None, seen.who):
                    repository.accepted[seen.seq] = seen
            case Kind.LOGGED:
                self._log(repository, seen)
            case Kind.PROMOTED:
                self._promote(seen)
            case Kind.DECLARED:
                if seen.who != self._master:
                    self._report(seen, f"two masters: {self._master} was promoted")
            case Kind.GATING:
                self._gate(seen)
            case Kind.SERVED:
                repository.served[seen.who] = max(seen.seq, repository.served.get(seen.who, 0))
            case Kind.DELIVERED:
                self._deliver(repository, seen)
            case Kind.CONFIRMED:
                self._confirmed.add((seen.who, seen.life, seen.offset))
            case Kind.STORED:
                self._store(seen)
            case Kind.LOST if seen.who == NOTICES:
                self._may_go_back.update(self._destinations)
            case Kind.FORGOTTEN:
                self._report(seen, "lost: the roster forgot what was decided")
            case Kind.WROTE:
                if seen.turn < self._turns.get(seen.who, 0):
                    self._report(seen, "two writers: a newer process wrote before")
                self._turns[seen.who] = max(seen.turn, self._turns.get(seen.who, 0))
                former = self._proofs.get((seen.who, seen.life))
                if (
                    former is not None and former.turn != seen.turn
                ):  # it begins at the stored position, as another one would
                    self._confirmed = {each for each in self._confirmed if each[:2] != (seen.who, seen.life)}
                self._proofs[seen.who, seen.life] = seen
            case Kind.ENDED:
                self._end(repository, seen)

    def finish(self) -> None:
        """Nothing follows, and all was healed."""
        for repository in self._repositories.values():
            for seen in repository.accepted.values():
                for name in self._destinations:
                    if seen.seq > repository.delivered.get(name, 0):
                        self._report(seen, f"lost: {name} never got it")

    def _log(self, repository: _Repository, seen: Seen) -> None:
        accepted = repository.accepted.get(seen.seq)
        repository.logged_at.setdefault(seen.seq, seen.own)
        self._arrived.setdefault(seen.path, {}).setdefault(seen.generation, seen.own)
        if repository.logged.setdefault(seen.seq, seen.digest) != seen.digest:
            self._report(seen, "two masters: the log had another event there")
        elif accepted is None or accepted.digest != seen.digest:
            self._report(seen, "two masters: a former one sent it")

    def _promote(self, seen: Seen) -> None:
        self._master = seen.who
        for repository in self._repositories.values():
            # What the promoted master itself accepted, before a handover that was undone, is still in its outboxes.
            unsent = {
                seq: each
                for seq, each in repository.accepted.items()
                if seq not in repository.logged and each.who != seen.who
            }
            for each in unsent.values() if seen.names else ():
                self._report(each, "lost: its master was handed over without it")
            for seq in unsent:
                del repository.accepted[seq]

    def _deliver(self, repository: _Repository, seen: Seen) -> None:
        last = repository.delivered.get(seen.who, 0)
        accepted = repository.accepted.get(seen.seq)
        if accepted is None:
            self._report(seen, "early: it was never accepted")
            return
        if seen.seq <= last:
            if self._is_overtaken(seen):
                return
            if seen.offset < self._stored.get(seen.who, 0):
                self._report(seen, f"repeated: the position was {self._stored[seen.who]} before")
            elif (seen.who, seen.life, seen.offset) in self._confirmed:
                self._report(seen, "repeated: the process knew that it was confirmed")
            return
        if seen.seq > last + 1:
            self._report(seen, f"misordered: the last was {last}")
        repository.delivered[seen.who] = seen.seq
        place = seen.who, seen.path
        if seen.generation < self._generations.get(place, 0) and not self._is_late(repository, seen):
            self._report(seen, f"misordered: {seen.path} was another repository's before")
        self._generations[place] = max(seen.generation, self._generations.get(place, 0))
        for mirror in self._gating_since:
            has_served = repository.is_deleted or repository.served.get(mirror, 0) >= seen.seq
            if not has_served and self._gates_since(mirror, accepted, repository):
                self._report(seen, f"early: {mirror} has served {repository.served.get(mirror, 0)}")

    def _is_late(self, repository: _Repository, seen: Seen) -> bool:
        """Whether a successor was there already, and then the log got no event of the repository for too long."""
        arrived = self._arrived.get(seen.path, {})
        successor = min((at for generation, at in arrived.items() if generation > seen.generation), default=NEVER)
        before = float("-inf")
        for seq in range(1, seen.seq + 1):
            at = repository.logged_at.get(seq, before)
            if at - max(before, successor) >= DEPARTURE_PATIENCE:
                return True
            before = max(before, at)
        return False

    def _store(self, seen: Seen) -> None:
        """Take a stored position; once after each loss of notices a destination may begin again, also where it stood."""
        stored = self._stored.get(seen.who, 0)
        if seen.offset < stored and seen.who not in self._may_go_back:
            self._report(seen, "repeated: the position went back")
        if seen.offset <= stored and seen.who in self._may_go_back:
            self._confirmed = {each for each in self._confirmed if each[0] != seen.who}
        if seen.offset < stored:
            self._may_go_back.discard(seen.who)
        self._stored[seen.who] = seen.offset

    def _gate(self, seen: Seen) -> None:
        since, until = self._gating_since.get(seen.who, {}), self._spared_until.setdefault(seen.who, {})
        self._gating_since[seen.who] = {path: since.get(path, seen.step) for path in seen.names}
        until.update((name, seen.step) for name, step in until.items() if step == NEVER and name not in seen.spared)
        until.update(dict.fromkeys(seen.spared, NEVER))

    def _gates_since(self, mirror: str, accepted: Seen, repository: _Repository) -> bool:
        """Whether a mirror gated a repository, at all paths that it had, ever since it accepted this."""
        paths = {each.path for seq, each in repository.accepted.items() if seq >= accepted.seq}
        since = max(self._gating_since[mirror].get(path, NEVER) for path in paths)
        return max(since, self._spared_until[mirror].get(accepted.repository, 0)) <= accepted.step

    def _is_overtaken(self, seen: Seen) -> bool:
        """Whether the sender of a repeat could not know yet that another notifier has its turn."""
        proof = self._proofs.get((seen.who, seen.life))
        if proof is None or proof.turn == self._turns[seen.who]:
            return False
        if seen.own - proof.own > PROOF:
            self._overtaken[seen.who, seen.life] += 1
        return self._overtaken[seen.who, seen.life] <= ABOUT_TO_SEND

    def _end(self, repository: _Repository, seen: Seen) -> None:
        if not repository.accepted:
            self._report(seen, "divergent: no master has it")
            return
        last = repository.accepted[max(repository.accepted)]
        if (seen.seq, seen.digest) != (last.seq, last.digest):
            self._report(seen, f"divergent: the master is at {last.seq}")

    def _report(self, seen: Seen, text: str) -> None:
        self.violations.append(f"{seen} - {text}")


def check(history: Iterable[Seen], destinations: Iterable[str], *, is_settled: bool = True) -> list[str]:
    """Return a line for each violation of a history; unless it `is_settled`, nothing is lost yet."""
    checker = Checker(destinations)
    for seen in history:
        checker.take(seen)
    if is_settled:
        checker.finish()
    return checker.violations
