# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator verify-notice`: who signed a notice, and who served it."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TextIO

import click

from ..keys.pairs import SIGNING_KEY
from ..keys.seal import decode_public_key
from ..keys.signed import CheckedNotice, SignedNotice, check_notice, hash_heads
from ..words.errors import Refused, ReplicationError, visible
from ..words.event import is_node
from ..words.shape import Count, extensible, from_json
from ..words.streams import Stream, message_id
from .requests import when


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class LinePush:
    """A push that a message names."""

    pushid: Count


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class LineData:
    """The part of a message's data that is signed."""

    heads: tuple[str, ...] = ()
    pushlog_pushes: tuple[LinePush, ...] = ()

    def __post_init__(self) -> None:
        for node in self.heads:
            if not is_node(node):  # a line feed in one would make two of it
                raise ValueError(f"heads: expected nodes of 40 hexadecimal digits, got {node[:60]!r}")


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class LineMessage:
    """What is signed of a line of JSON."""

    signed: str
    type: str
    id: str
    previous: str | None
    repository: str
    sequence: Count
    data: LineData


@click.command()
@click.argument("file", type=click.File(errors="replace"), default="-")
@click.option(
    "--key",
    "keys",
    multiple=True,
    required=True,
    metavar="[MIRROR=]KEY",
    help="A key of the aggregator, or one with which that mirror must have signed; may be repeated.",
)
def command(file: TextIO, keys: tuple[str, ...]) -> None:
    """Verify signed notices: who sent them, and which mirrors served them when.

    Each line of FILE (or of standard input) is a signed notice, or a line of a destination of JSON lines, which is compared with
    its signed notice. `vcsreplicator key NAME --signing` prints a key. No network is needed.

    Exit code 0: all lines are right; 2: a line is not, and a message says why.
    """
    trusted, of_mirrors = _read_keys(keys)
    number, is_wrong = 0, False
    for number, line in enumerate(filter(str.strip, file), 1):
        try:
            click.echo("\n".join(map(visible, describe(check_line(line.strip(), trusted, of_mirrors)))))
        except ReplicationError as error:
            click.echo(f"vcsreplicator: notice {number}: {visible(str(error))}", err=True)
            is_wrong = True
    if not number:
        raise Refused("no notice to verify: expected lines `KEY SIGNATURE TEXT`, or JSON with the member `signed`")
    if is_wrong:
        sys.exit(2)


def _read_keys(keys: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the keys of aggregators, and those of mirrors by name; raise Refused."""
    trusted: list[str] = []
    of_mirrors: dict[str, list[str]] = {}
    for each in keys:
        mirror, _, key = ("", "", each) if each.startswith(SIGNING_KEY) else each.partition("=")
        if decode_public_key(key, SIGNING_KEY) is None:
            see = "vcsreplicator key NAME --signing"
            raise Refused(f"--key {each[:80]}: expected [MIRROR=]{SIGNING_KEY} and base64, as printed by: {see}")
        (of_mirrors.setdefault(mirror, []) if mirror else trusted).append(key)
    return trusted, of_mirrors


def check_line(line: str, trusted: list[str], of_mirrors: dict[str, list[str]]) -> CheckedNotice:
    """Verify a line; raise Refused or MalformedEvent."""
    if not line.startswith("{"):
        return check_notice(line, trusted, of_mirrors)
    message = from_json(LineMessage, line.encode())
    found = check_notice(message.signed, trusted, of_mirrors)
    if message.type not in found.notice.previous:
        raise Refused(f"type of the message: {message.type[:40]!r}, signed: {', '.join(found.notice.previous)}")
    for what, said, signed in _pair_members(message, found.notice):
        if said != signed:
            raise Refused(f"{what} of the message: {str(said)[:100]!r}, signed: {str(signed)[:100]!r}")
    return found


def _pair_members(message: LineMessage, notice: SignedNotice) -> Iterator[tuple[str, object, object]]:
    """Yield what a message says, and what its signed notice says of the same."""
    previous = notice.previous[message.type]
    yield "id", message.id, message_id(notice.event, message.type)
    yield "previous", message.previous, previous and message_id(previous, message.type)
    yield "repository", message.repository, notice.repository
    yield "sequence", message.sequence, notice.sequence
    if message.type == Stream.CHANGEGROUP:
        yield "SHA-256 of the heads", hash_heads(message.data.heads), notice.heads
        pushes = [push.pushid for push in message.data.pushlog_pushes]
        yield "pushids", pushes, [] if notice.push is None else [notice.push]


def describe(found: CheckedNotice) -> Iterator[str]:
    notice = found.notice
    names = f"event {notice.event}, sequence {notice.sequence} of repository {notice.repository}"
    yield f"{notice.path}: {', '.join(notice.previous)}: {names}"
    yield f"  written {when(notice.time)} UTC at version {notice.roster} of the roster, signed by {found.key}"
    for said in found.mirrors:
        signer = "as the aggregator says" if said.key is None else f"signed by {said.key}"
        yield f"  {said.mirror} served it by {when(said.served_at)} UTC, {signer}"
