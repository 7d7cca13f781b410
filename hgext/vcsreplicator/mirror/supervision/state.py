# SPDX-License-Identifier: GPL-2.0-or-later
"""The supervisor's knowledge.

It consists of the repositories with their queues, the roster's rules for this mirror, and its acks.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Concatenate, ParamSpec

from ...log import partition_of
from ...words.clock import Clock
from ...words.records import Ack
from ...words.roster import Mirror, MirrorRole, Roster
from ...words.shape import to_json
from ..notes import Notes
from ..settings import MirrorSettings
from ..writer import AckWriter
from .agenda import Agenda
from .backlog import Backlog
from .life import Deed, Following, Transition, follow
from .values import Moment, Phase

_P = ParamSpec("_P")

# Seconds for which an older roster does not count alone: twice the time after which an aggregator writes the newest again.
DOUBT = 60.0


class RepositoryTable:
    """Every repository that this mirror follows."""

    def __init__(self) -> None:
        self._followings: dict[str, Following] = {}

    def __iter__(self) -> Iterator[Following]:
        """Iterate over a snapshot of the repositories: the loop may add and remove some."""
        return iter([*self._followings.values()])

    def get(self, repository: str | None) -> Following | None:
        return self._followings.get(repository or "")

    def get_or_add(self, repository: str, path: str) -> Following:
        """Return a repository, which is followed from now on."""
        following = self._followings.get(repository)
        if following is None:
            following = self._followings[repository] = follow(repository, path)
        return following

    def remove(self, following: Following) -> None:
        """Forget the repository."""
        del self._followings[following.id]


class Membership:
    """This mirror in the newest roster; without an entry it carries all.

    A log that lost its newest records may bring an older roster, until the aggregator writes the newest again. For DOUBT seconds
    both count, so that no repository leaves because of it.
    """

    def __init__(self, settings: MirrorSettings) -> None:
        self.roster = Roster()
        self.name, self._is_backup = settings.name, settings.backup
        # While an older roster is in doubt: the newest that was ever here, and until when it counts too.
        self._newest: Roster | None = None
        self._doubted_until = 0.0

    @property
    def member(self) -> Mirror | None:
        return self.roster.mirror(self.name)

    @property
    def is_backup(self) -> bool:
        """Whether nothing here may be removed, by a roster or the configuration."""
        return self._is_backup or any(
            each is not None and each.role is MirrorRole.BACKUP for each in self._list_members()
        )

    def take_roster(self, roster: Roster, now: float) -> bool:
        """Follow this roster from the time `now` of the monotonic clock on.

        Returns whether that ends the doubt about an older one.
        """
        newest, was_doubted = self._newest or self.roster, self._newest is not None
        if roster.version >= newest.version:
            self._newest = None
        elif self._newest is None:
            self._newest, self._doubted_until = newest, now + DOUBT
        self.roster = roster
        return was_doubted and self._newest is None

    def end_doubt(self, now: float) -> bool:
        """Return whether an older roster counts alone from now on, and did not before."""
        if self._newest is None or now < self._doubted_until:
            return False
        self._newest = None
        return True

    def carries(self, path: str) -> bool:
        """Return whether a repository at this path belongs here; True if it is unknown."""
        return not path or any(each is None or each.rules.carries(path) for each in self._list_members())

    def _list_members(self) -> list[Mirror | None]:
        """Return this mirror in each roster that counts."""
        return [self.member] if self._newest is None else [self.member, self._newest.mirror(self.name)]


class AckBook:
    """This mirror's acks, each written when it differs from its repository's last."""

    def __init__(self, name: str, writer: AckWriter) -> None:
        self._name, self._writer = name, writer

    def send(self, following: Following) -> bool:
        """Write how far the repository is; return whether there is anything to say.

        Writes nothing if the last ack says the same, or if nothing was ever known of the repository.
        """
        if following.checkpoint is None and following.log.sent_ack is None and following.note is None:
            return False
        ack, former = self._make_ack(following), following.log.sent_ack
        if ack != former:
            following.change(following.acknowledge(ack))
            if ack.serving > following.log.noticed:
                ack = self._writer.sign(ack)
            self._writer.ack(f"{self._name}/{following.id}", to_json(ack))
        return True

    def send_again(self, following: Following) -> bool:
        """Write how far the repository is again: the log may have lost the last ack.

        Returns whether there is anything to say.
        """
        following.change(following.acknowledge(None))
        return self.send(following)

    def withdraw(self, repository: str) -> None:
        """Write a tombstone: this mirror says nothing about the repository any more."""
        self._writer.ack(f"{self._name}/{repository}", None)

    def _make_ack(self, following: Following) -> Ack:
        checkpoint, disk = following.checkpoint, following.disk
        detached = following.note if following.phase is not Phase.STREAM else None
        return Ack(
            mirror=self._name,
            repository=following.id,
            incarnation=checkpoint.incarnation if checkpoint else "",
            applied=following.level,
            serving=min(disk.serving, following.level),
            floor=disk.floor,
            event=checkpoint.id if checkpoint else "",
            digest=checkpoint.digest if checkpoint else "",
            applied_at=checkpoint.time if checkpoint else 0.0,
            served_at=disk.served_at or (checkpoint.time if checkpoint else 0.0),
            detached=detached.reason if detached else None,
            note=detached.note if detached else None,
            detached_since=detached.since if detached else None,
            assumed=True if checkpoint and checkpoint.length and checkpoint.settings.publishing is None else None,
        )


class State:
    """The state that all parts of the supervisor share."""

    def __init__(
        self, settings: MirrorSettings, notes: Notes, writer: AckWriter, clock: Clock, positions: Mapping[int, int]
    ) -> None:
        self.settings, self.notes, self.writer, self.clock = settings, notes, writer, clock
        self.backlog = Backlog(positions)
        self.agenda = Agenda(self.backlog, clock, settings.batch_bytes)
        self.table = RepositoryTable()
        self.membership = Membership(settings)
        self.acks = AckBook(settings.name, writer)
        # How each deed of a transition is done; other parts add theirs.
        self.deeds: dict[Deed, Callable[[Following], object]] = {
            Deed.DROP_EVENTS: lambda following: self.backlog.drop(following.id),
            Deed.SET_ALARM: self.agenda.set_alarm,
            Deed.REMIND: self.agenda.remind,
            Deed.QUEUE: self.agenda.queue,
            Deed.ACK: self.acks.send,
        }

    def carry_out(self, following: Following, transition: Transition) -> None:
        """Change the repository's state, and do what the transition asks."""
        for deed in following.change(transition):
            self.deeds[deed](following)

    def send(
        self,
        following: Following,
        message: Callable[Concatenate[Following, Moment, _P], Transition],
        *arguments: _P.args,
        **members: _P.kwargs,
    ) -> tuple[Deed, ...]:
        """Send the repository a message, carry out the answer, and return its deeds."""
        transition = message(following, self.find_moment(following), *arguments, **members)
        self.carry_out(following, transition)
        return transition.todo

    def find_moment(self, following: Following) -> Moment:
        partition = partition_of(following.id, self.backlog.partitions)
        queued = self.backlog.peek(following.id, events=1, size=0)
        return Moment(
            now=self.clock.monotonic(),
            time=self.clock.now(),
            chance=random.random(),
            partition=partition,
            end=self.backlog.next(partition),
            queued=queued[0].offset if queued else None,
            is_worked_off=self.backlog.is_worked_off(following.id),
            filled=self.backlog.size(following.id) / self.settings.repository_buffer_bytes,
        )

    def vacate(self, following: Following) -> None:
        """Retry the refused repositories, because this one leaves its path.

        Any of them may need that path: a refused rename names it in an event that only the attempt reads.
        """
        for other in self.table:
            if other is not following and other.note is not None:
                self.send(other, Following.retry)
