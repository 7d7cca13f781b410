# SPDX-License-Identifier: GPL-2.0-or-later
"""Errors, each with its next step: wait, reject, heal, or stop.

Adapters translate the exceptions of their clients into these, with the cause chained. Above the adapters only the loop of a
service catches `Exception`. A message says what, where, and the operator's next step, in one line.
"""

# Characters of a value that a message repeats.
SHOWN = 200


class ReplicationError(Exception):
    """The root of every error this project raises on purpose."""


class Unavailable(ReplicationError):
    """Something outside does not answer now; services try again indefinitely."""


class NotAuthorized(Unavailable):
    """The log does not let this user do it, until an administrator allows it."""


class Changing(Unavailable):
    """A repository changes faster than it is read."""


class HeldUp(Unavailable):
    """Readers of a topic wait for the end of a transaction."""


class NoRoom(Unavailable):
    """A disk has no space left; the message names it."""


class BlobsUnavailable(Unavailable):
    """The blob store does not answer, or does not take a bundle; the log may be well."""


class NoRoomForBlobs(BlobsUnavailable, NoRoom):
    """The disk of the blob store has no space left; the message names it."""


class Expired(ReplicationError):
    """The log no longer has the requested position; only a snapshot fills the gap."""


class Rewound(Expired):
    """The log lost its newest records; positions in it no longer mean anything.

    It was restored from a copy or re-created.
    """


class Fenced(ReplicationError):
    """A newer instance of the same identity took over: this one must exit for good."""


class Rejected(ReplicationError):
    """This record can never work; it goes to `errors`, or its repository is detached."""


class MalformedEvent(Rejected):
    """The bytes are not one of our records: wrong frame, shape, size, path or hash."""


class UnknownEvent(Rejected):
    """A well-formed record of a type or version newer than this program."""


class Diverged(ReplicationError):
    """The mirror's repository differs from the state that the event requires.

    The mirror detaches and heals the repository.
    """


class Refused(ReplicationError):
    """A user's or an operator's request that must not be carried out; says why."""


class BadConfig(ReplicationError):
    """A setting is missing or wrong; a service stops at its start.

    The message names file, key and expected value.
    """


class TopicMissing(BadConfig):
    """A topic is not in the log yet.

    Services wait until `vcsreplicator topics create` has made it.
    """


def quote_value(value: object) -> str:
    """Return a value as messages repeat it: one line, cut after SHOWN characters."""
    if isinstance(value, str):
        return repr(value) if len(value) <= SHOWN else f"{value[:SHOWN]!r}…"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def visible(text: str) -> str:
    """Return untrusted text as one line, with control characters escaped (`\\x1b`)."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def counted(number: int, noun: str) -> str:
    """Write a number with its noun, which is in the plural unless the number is 1."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("ry"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith('sh') else 's'}"
