# SPDX-License-Identifier: GPL-2.0-or-later
"""What can go wrong, by the next step: wait, reject, heal, or stop.

Adapters translate the exceptions of their clients into these, with the cause chained. Above the adapters only the loop of a
service catches `Exception`. A message says what, where, and the operator's next step, in one line.
"""


class ReplicationError(Exception):
    """The root of every error this project raises on purpose."""


class Unavailable(ReplicationError):
    """Something outside does not answer now; it is tried again indefinitely."""


class Expired(ReplicationError):
    """The log no longer holds the position asked for; only a snapshot can fill the gap."""


class Rewound(Expired):
    """The log lost its newest records, restored from a copy or made anew: positions in it mean nothing any more."""


class Fenced(ReplicationError):
    """A newer instance with the same identity took over; this one must exit and stay down."""


class Rejected(ReplicationError):
    """This record can never work; it goes to `errors`, or its repository is detached."""


class MalformedEvent(Rejected):
    """The bytes are not a record of ours: wrong frame, shape, size, path or hash."""


class UnknownEvent(Rejected):
    """A well-formed record of a type or version newer than this program."""


class Diverged(ReplicationError):
    """The mirror differs from what the event says it must be; the repository is detached and healed."""


class Refused(ReplicationError):
    """A request of a user or an operator that must not be carried out, with the reason."""


class BadConfig(ReplicationError):
    """A setting is missing or wrong; the message names file, key and expected value. Stop at start."""


class TopicMissing(BadConfig):
    """A topic is not in the log yet; services wait until `vcsreplicator topics create` has made it."""


def visible(text: str) -> str:
    """Write what others chose in one line; control characters are escaped, as in `\\x1b`."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
