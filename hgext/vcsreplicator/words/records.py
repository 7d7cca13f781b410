# SPDX-License-Identifier: GPL-2.0-or-later
"""Records of all topics but `events`: levels, heartbeats, states, notices.

In a compacted topic a record is the latest value of its key: reading the topic whole gives the present, and an older value never
matters. Sequences count from 1; 0 means nothing yet. All services are upgraded one by one: members that a newer one added are
ignored.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .errors import MalformedEvent
from .event import Event, check_place
from .shape import Count, Time, extensible, interned, parse, read

# The format of the aggregator's records. An older aggregator refuses to take over: it would drop `base` and `stays` from each
# state, and since 3 count levels that are not sealed.
AGGREGATOR_FORMAT = 3
# What the aggregator writes while no level has to be sealed.
UNSEALED_FORMAT = 2

# The key of the aggregator's heartbeat in topic `state`.
AGGREGATOR = "aggregator"

# The beginnings of keys in topic `services`, before the source of a relay, the name of a destination, a host, and a mirror's name;
# in topic `watches` before a host and what its process watches.
RELAY_KEY, DESTINATION_KEY, AGGREGATOR_KEY, NOTIFIER_KEY = "relay ", "destination ", "aggregator ", "notifier "
VERIFY_KEY, GUARDIAN_KEY, POLL_KEY = "verify ", "guardian ", "poll "
# Those of services of which one process works, and others may stand by.
STANDBY_KEYS = (AGGREGATOR_KEY, NOTIFIER_KEY, GUARDIAN_KEY, POLL_KEY)

# The group of the decoders' positions; with a topic behind it, the group whose members divide that.
DECODE_GROUP = "decode"

# The key of the newest promotion in topic `services`.
MASTER_KEY = "master"

# The beginning of the group whose stored position is a destination's, before its name.
DESTINATION_GROUP = "notifier-"

# The format of a mirror's records; since 2 an ack has `floor`.
MIRROR_FORMAT = 2
# Bytes of a level, whose note has 500 characters, and of a mirror's heartbeat, with 5,000 partitions: readers take no larger one.
ACK_LIMIT, HEARTBEAT_LIMIT = 16 * 1024, 128 * 1024
# Characters of their keys: all that mirrors write are shorter.
ACK_KEY_LIMIT = 200


class Reason(enum.StrEnum):
    """The reasons why a mirror detaches a repository."""

    SLOW = "slow"
    LOCKED = "locked"
    CRASHED = "crashed"
    GAP = "gap"
    BLOB_MISSING = "blob-missing"
    CORRUPT = "corrupt"
    DIVERGED = "diverged"
    FORK = "fork"
    UNKNOWN_VERSION = "unknown-version"
    BOOTSTRAP = "bootstrap"
    EXPIRED = "expired"
    REFUSED = "refused"
    DISK = "disk"


@extensible
@interned
@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The level of a mirror in one repository. Topic `acks`, key `MIRROR/REPOSITORY`.

    It may go down (a restored mirror). `applied` and `serving` are sequences, `event` and `digest` belong to `applied`; the times
    are when the mirror reached those levels. `floor`, if not 0, is the lowest sequence beyond `serving` that the mirror can serve:
    it was filled to there, or earlier changesets were stripped since. `detached` names the reason while the repository is detached:
    a Reason, or a word of newer mirrors; `detached_since`, by the mirror's clock, is None in an ack of an older release.
    `assumed` is true if the mirror does not know whether the master is publishing, and answers clients as if it were not.
    `signature` is there if it may enter a signed notice (`keys.signed`); it makes no other level. A mirror
    that no longer carries a repository writes a tombstone. A deletion is acked like any other event (applied and serving), because
    its notice waits for that; the tombstone may follow once `state` says that the deletion is noticed. When it starts, a mirror
    makes sure that all its levels are in the log.
    """

    mirror: str
    repository: str
    incarnation: str
    applied: Count
    serving: Count
    event: str
    digest: str
    applied_at: Time
    served_at: Time
    detached: str | None = None
    note: str | None = None
    floor: Count = 0
    detached_since: Time | None = None
    assumed: bool | None = None
    signature: str | None = field(default=None, compare=False)


class Lag(NamedTuple):
    """The lag of a mirror in one repository.

    `unapplied` counts the events that it has not applied, `unserved` the released events that it does not serve.
    """

    unapplied: int
    unserved: int

    @property
    def is_late(self) -> bool:
        """Whether the mirror lacks anything."""
        return self.unapplied > 0 or self.unserved > 0


def measure_lag(ack: Ack | None, *, seq: int, released: int) -> Lag:
    """Compare a mirror's level with the sequence of an event and the released one.

    `ack` is None if the mirror has no level that counts.
    """
    applied, serving = (ack.applied, ack.serving) if ack else (0, 0)
    return Lag(unapplied=max(0, seq - applied), unserved=max(0, released - serving))


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorHeartbeat:
    """A mirror's heartbeat, every few seconds. Topic `acks`, key `MIRROR`.

    `positions` are the mirror's stored positions in `events`, partition → offset; `version` is the program's; `format` is that of
    its acks (MIRROR_FORMAT; 1 if the record does not say). `instance` distinguishes mirrors of one name: it stays the same over
    restarts, and ends in `@` and the name of the machine. `trouble` says why the mirror cannot write its notes, for example because
    its disk is full, and `trouble_since`, by the mirror's clock, since when. `oldest` is the time by the log of the oldest event
    that the mirror has read and not applied. `file_system` is the number of that of the mirror's root, in hexadecimal digits.
    """

    mirror: str
    time: Time
    positions: Mapping[str, Count]
    version: str
    instance: str = ""
    format: Count = 1
    trouble: str | None = None
    trouble_since: Time | None = None
    oldest: Time | None = None
    file_system: str | None = None


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class FormerPath:
    """A path that a repository left by its event `until`, and its generation there."""

    path: str
    generation: int
    until: int


@extensible
@interned
@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryState:
    """The aggregator's view of one repository. Topic `state`, key REPOSITORY.

    The aggregator writes it with each release and notice. `seq`, `event` and `digest` are of the newest event seen in the log;
    `released` is the sequence up to which mirrors may serve; `noticed` that of the newest event whose notice is written.
    `streams` keeps the id of the last notice of each public stream. `roster` is the version of the roster behind the newest
    decision. Relay and mirrors compare their own view with `seq`, `event` and `incarnation`. `retired` are the incarnations
    before this one, `base` how many sequences they took: a public sequence is `base` + `seq` and never goes back. `stays` are the
    paths that the repository left by events that are not noticed yet, `left` the newest of those left by noticed events. `fork`
    is the id of the newest event that did not fit the chain, `forked_at` the time by the log of the first one. `source` is the
    master that sent the newest event, as its record says. `served_by` is how many mirrors gated the newest notice, all of which
    served it; None if that is not known, as of a state of an older aggregator. `deleted` if the newest event deletes it, or if a
    later repository was released at its path. `serials` has, by mirror, the serial of the newest sealed level (`keys.seal`) that
    the aggregator had read: an older one does not count any more.
    """

    repository: str
    incarnation: str
    path: str
    generation: Count
    seq: Count
    event: str
    digest: str
    released: Count
    noticed: Count
    roster: Count
    deleted: bool = False
    streams: Mapping[str, str] | None = None
    retired: tuple[str, ...] = ()
    fork: str | None = None
    base: Count = 0
    stays: tuple[FormerPath, ...] = ()
    source: str | None = None
    forked_at: Time | None = None
    served_by: Count | None = None
    serials: Mapping[str, Count] | None = None
    left: tuple[FormerPath, ...] = ()


def read_state(key: str, value: bytes, *, without: Sequence[str] = ()) -> RepositoryState:
    """Read the record of a repository in topic `state`, `without` these members, which are None.

    Raises MalformedEvent, also if its names cannot name folders: mirrors make folders of these names, and empty some.
    """
    data = parse(value, RepositoryState.__name__)
    for name in without if type(data) is dict else ():
        data.pop(name, None)
    state = read(RepositoryState, data)
    check_place(state.repository, state.path)
    if state.repository != key:
        raise MalformedEvent(f"state: its key is not the repository {state.repository}")
    return state


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorHeartbeat:
    """The aggregator's heartbeat. Topic `state`, key `aggregator`.

    A mirror's `/health` is degraded after `[health] silence` seconds (30) without one. `alarms` are those that an operator cannot
    see in any other record, each in one line. `notices` is the earlier end of that topic: notices from this offset on may be newer
    than the states written before this heartbeat. `format` is AGGREGATOR_FORMAT or UNSEALED_FORMAT, 1 if the
    record does not say. `cut` has the
    partitions of `events` that lost their newest records and are being reread, partition → where it ended then: an aggregator that
    starts continues there. `partitions` is how many of that topic the aggregator reads. `instance` names the aggregator's process,
    and `ended` says that this is its last heartbeat, so that another one need not wait. `overwritten` are keys of `acks` whose
    mirror must write its record again, because another program wrote the newest. `namesakes` has, by mirror, the last two instances
    that sent its heartbeats, if there are two: instance → the offset in `acks` of its newest. `waits` are long waits that end by
    themselves, each in one line.
    """

    time: Time
    roster: Count
    held: Count
    alarms: tuple[str, ...] = ()
    notices: Count | None = None
    format: Count = 1
    cut: Mapping[str, Count] | None = None
    partitions: Count | None = None
    instance: str | None = None
    ended: bool = False
    overwritten: tuple[str, ...] = ()
    namesakes: Mapping[str, Mapping[str, Count]] | None = None
    waits: tuple[str, ...] = ()


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTrouble:
    """A trouble of a service, in one line that says what to do.

    `since` is by the clock of its reporter. An operator must know now of an urgent trouble, and of a permanent one, which waiting
    does not end; of any other once it has lasted for a while. If it `is_meant`, an operator made it, and it is only noted.
    """

    text: str
    since: Time
    is_urgent: bool = False
    is_permanent: bool = False
    is_meant: bool = False


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProgress:
    """The progress of `verify` in its present round, which has tried `done` of the `total` repositories of a mirror.

    All of them were compared with the master since `oldest`, by the clock of the mirror; it is None if some never were. `differing`
    ones need an operator; `failing` ones could not be compared at the last try.
    """

    done: Count
    total: Count
    oldest: Time | None = None
    differing: Count = 0
    failing: Count = 0


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReport:
    """The heartbeat of a relay, a destination, a `verify`, or a process of a service with standbys.

    Topic `services`, key `relay SOURCE`, `destination NAME`, `aggregator HOST`, `notifier HOST` or `verify MIRROR`; topic
    `watches`, key `guardian HOST NAME` or `poll HOST SOURCE`, of a standby with ` spare` at the end. `count` is the number of all
    troubles; `troubles` holds the first of them, urgent ones before others and older before newer. A relay says how many
    `partitions` of `events` it writes to. A process, which `instance` names, says what it works on, such as the names of
    destinations, and whether it only stands by for others.
    """

    time: Time
    version: str
    count: Count = 0
    troubles: tuple[ServiceTrouble, ...] = ()
    partitions: Count | None = None
    is_standby: bool = False
    instance: str | None = None
    works: tuple[str, ...] = ()
    progress: RoundProgress | None = None


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class MasterRecord:
    """The newest promotion. Topic `services`, key `master`.

    The relay of `source` sends for the repositories that relays of the sources in `replaces` sent before: these send nothing any
    more. `mirror` is the mirror that became the master.
    """

    source: str
    mirror: str
    replaces: tuple[str, ...]
    time: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An event that waits for its notice. Topic `pending`, key `REPOSITORY/SEQ`.

    Once the notice is written, a tombstone replaces it.
    """

    event: Event
    partition: Count
    offset: Count
    arrived: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorProof:
    """The times by which one gating mirror had reached the notice's sequence.

    They are exact unless the mirror was further by then. `applied_at` is never later than `served_at`.
    """

    mirror: str
    applied_at: Time
    served_at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The notice of an event that may be announced. Topic `notices`, key REPOSITORY.

    It is the event without its bundle, and the proof that it may be announced. `previous` maps each public stream to the id of the
    notice before this one in that stream for the same repository (the id of a notice is its event's id); a stream that this event
    does not appear in is absent. `roster` is the roster's version, `acks` the gating mirrors at that version. `replay` is set on
    records made by an operator's replay: who and when, in words. `base` is added to the event's sequence to make the public one;
    None without earlier incarnations.
    """

    event: Event
    time: Time
    roster: Count
    acks: tuple[MirrorProof, ...]
    previous: Mapping[str, str | None]
    replay: str | None = None
    base: Count | None = None


# Characters of a refused record's key that its ErrorRecord keeps: a whole key might not fit beside the rest.
KEY_KEPT = 200


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """A record or message that can never work, with the reason. Topic `errors`.

    Its bytes are kept as base64, cut at 64 KiB. `traceback` is there if an unexpected exception made it a reject: see `unexpected`.
    The decoder keeps the whole payload as value, and in `attributes` those of the message and the reasons.
    """

    time: Time
    service: str
    reason: str
    topic: str
    partition: int
    offset: int
    key: str | None
    value: str
    repository: str | None = None
    destination: str | None = None
    traceback: str | None = None
    attributes: Mapping[str, str] | None = None

    def without_value(self) -> "ErrorRecord":
        """Return what is kept of it if the topic refuses more."""
        return replace(self, value="", traceback=None)


# In the reason of a reject that stands for notices: they expired before a destination, which follows, had read them.
UNREAD = "left the log before they were delivered to"

# The key of records in topic `errors` that are not rejects but notes about some.
SUBMITTED_KEY = "submitted again"


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A note that rejects were submitted again. Topic `errors`.

    The key is `SUBMITTED_KEY`. The rejects are given by their numbers, which are their offsets.
    """

    time: Time
    numbers: tuple[Count, ...]
