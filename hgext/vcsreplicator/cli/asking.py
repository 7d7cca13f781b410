# SPDX-License-Identifier: GPL-2.0-or-later
"""The state of log and machine that `status` and `check` show."""

import contextlib
import errno
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from ..config import Config
from ..dashboard.asked.question import StatusQuestion, ask
from ..log import Log
from ..log.opening import identify_log
from ..relay.settings import RelaySettings
from ..status.findings import sort_findings
from ..status.follower import Follower, look_at_destinations, look_at_topics
from ..status.services import DOWN, REPORTED_WITHIN, START, Expectations, finding_of
from ..status.summary import Summary, make_summary
from ..status.wording import Finding, Severity
from ..words.errors import BadConfig, Unavailable
from ..words.records import RELAY_KEY
from .options import relay_of
from .progress import metered_log

# Bytes below which a disk counts as full.
LEAST = 1 << 20
# Seconds that a disk may take to answer; one on a network may hang indefinitely.
PATIENCE = 3.0
# Errors that say nothing of a disk: it is elsewhere, another user's, read-only on purpose, or knows no file without a name.
_SAY_NOTHING = frozenset((errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP, errno.EISDIR))


def expect(config: Config, **limits: Any) -> Expectations:
    """Return the services that the file names; `limits` are the other members."""
    relay, names = relay_of(config), None
    if "notifier" in config.tables:
        table = config.tables["notifier"]
        names = tuple(name for name in config.names("notifier") if isinstance(table[name], Mapping))
    mirrors = tuple(config.names("mirror")) if "mirror" in config.tables else ()
    source, raw = relay.source if relay else None, _find_raw(config)
    return Expectations(destinations=names, relay=source, mirrors=mirrors, raw=raw, **limits)


def _find_raw(config: Config) -> str | None:
    """Return the topic that the file's decoders read; None without any, or if they read a queue."""
    section = config.tables.get("decode")
    if not isinstance(section, Mapping):
        return None
    from notifier.messages.raw import DEFAULT_PLACE, topic_of

    try:
        return topic_of(str(section.get("input", DEFAULT_PLACE)))
    except ValueError as error:
        raise BadConfig(f"{config.file}: decode.input: {error}") from error


def _find_summary(config: Config, open_log: Callable[[], Log], expected: Expectations) -> Summary:
    """Ask the dashboard whose socket the file names; else read the log.

    Standard error says why a socket that this user may use was of no use.
    """
    section = config.tables.get("dashboard")
    path = section.get("socket") if isinstance(section, dict) else None
    if isinstance(path, str):
        try:
            return ask(path, StatusQuestion(log=identify_log(config.log), expected=expected))
        except Unavailable as error:
            if "\0" not in path and os.access(path, os.W_OK):
                click.echo(f"dashboard not asked: {error}; the log was read instead", err=True)
    log = open_log()
    with closing(Follower(log)) as follower:
        return follow_summary(follower, log, expected)


def find_all(config: Config, expected: Expectations) -> Summary:
    """Make the summary, with the findings on this machine; open the log if needed."""
    with contextlib.ExitStack() as stack:
        open_log = functools.cache(lambda: stack.enter_context(metered_log(config)))
        summary = _find_summary(config, open_log, expected)
        return add_findings(summary, find_here(config, open_log, expected, summary.measure_silence))


def add_findings(summary: Summary, here: Sequence[Finding]) -> Summary:
    """Add what is found on this machine to a summary of the log."""
    return replace(summary, findings=tuple(sort_findings(*here, *summary.findings)))


def find_here(
    config: Config, open_log: Callable[[], Log], expected: Expectations, measure_silence: Callable[[str], float]
) -> list[Finding]:
    """Find bad disks and a stopped relay here, or troubles in the outboxes.

    `measure_silence` returns the seconds since a service reported.
    """
    found = [finding for finding in (find_full_log(config), find_full_blobs(config)) if finding is not None]
    relay = relay_of(config)
    found += find_full_roots(relay) if relay else []
    if relay and measure_silence(RELAY_KEY + relay.source) > max(expected.patience, REPORTED_WITHIN):
        found += _find_on_disk(relay, open_log)
    elif relay:
        found += _find_stopped(relay)
    return found


def follow_summary(follower: Follower, log: Log, expected: Expectations) -> Summary:
    """Read the log to its present end, and summarize it."""
    now = follower.present()
    look_at_destinations(log, follower.picture, expected.raw)
    look_at_topics(log, follower.picture)
    return make_summary(follower.picture, now, expected)


def _find_stopped(relay: RelaySettings) -> list[Finding]:
    """Find out whether this machine's relay has stopped before it is silent.

    A user who may not connect does not learn it, nor does one on a machine without the outboxes.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        try:
            connection.connect(relay.socket)
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        except OSError:
            return []
        else:
            return []
    if not any(map(os.path.isdir, relay.roots)):
        return []
    from ..relay.lacking import has_outbox  # a quarter of a second

    command = f"{START}relay"
    text = f"the relay is not reachable at {relay.socket}: pushes wait in the outboxes; start it: {command}"
    return [Finding(level=Severity.CRITICAL, text=text, command=command, entry=DOWN)] if has_outbox(relay.roots) else []


def _find_on_disk(relay: RelaySettings, open_log: Callable[[], Log]) -> list[Finding]:
    """Find the troubles in the outboxes on this machine, for a relay that is silent."""
    roots, now = [root for root in relay.roots if os.path.isdir(root)], time.time()
    if not roots:
        return []
    from ..relay.lacking import find_lacking, has_outbox
    from ..relay.reasons.grouping import group_troubles  # a quarter of a second, with the next

    if not has_outbox(roots):
        return []
    return [
        finding_of(trouble, now - trouble.since, now)
        for trouble in group_troubles(find_lacking(roots, open_log(), now), roots)
    ]


def find_full_log(config: Config) -> Finding | None:
    """Find out whether the embedded log's disk is full or hangs.

    Then no service can report that it is alive: without this finding, all services would be named, and the disk would not.
    """
    parts = urlsplit(config.log)
    if parts.scheme != "sqlite":
        return None
    return _describe_full(os.path.dirname(unquote(parts.path)), "no service can write to the log", must_write=True)


def find_full_blobs(config: Config) -> Finding | None:
    parts = urlsplit(config.blobs or "")
    if parts.scheme != "file":
        return None
    return _describe_full(unquote(parts.path), "pushes with large bundles wait in their outboxes")


def find_full_roots(relay: RelaySettings) -> list[Finding]:
    """Find out which roots of a master here have a disk that is full, fails or hangs.

    The relay hardly writes there: without this finding only pushers would know.
    """
    found = (_describe_full(root, "the master refuses pushes", must_write=True) for root in relay.roots)
    findings = [finding for finding in found if finding is not None]
    if findings and any(map(os.path.isdir, relay.roots)):
        from ..relay.lacking import has_outbox  # a quarter of a second

        return findings if has_outbox(relay.roots) else []  # a mirror may use the same roots
    return findings


def _describe_full(folder: str, what: str, *, must_write: bool = False) -> Finding | None:
    """Describe a full or failing disk, with `must_write` also a read-only one.

    A disk may fail at writes alone, so a block is written to it, in a file without a name. Slow writes are no failure.
    """
    found, failed = list[os.statvfs_result](), list[OSError]()

    def measure() -> None:
        try:
            found.append(os.statvfs(folder))
            _write_block(folder)
        except OSError as error:
            failed.append(error)

    # Not `ask_aside`, which costs each check the time to load futures.
    thread = threading.Thread(target=measure, name="disk", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive() and not found:
        text = f"{folder}: its disk does not answer: {what}"
    elif found and must_write and found[0].f_flag & os.ST_RDONLY:
        text = f"{folder}: its disk is mounted read-only: {what}; see: journalctl -k"
    elif found and (lacking := _find_lacking(found[0])):
        text = f"{folder}: no {lacking} left on its disk: {what}; free some {lacking}"
    elif failed and failed[0].errno == errno.EDQUOT:
        text = f"{folder}: the quota of this user is used up: {what}; free some space, or raise the quota"
    elif failed and failed[0].errno not in _SAY_NOTHING:
        text = f"{folder}: its disk fails: {failed[0].strerror}: {what}; see: journalctl -k"
    else:
        return None
    return Finding(level=Severity.CRITICAL, text=text)


def _write_block(folder: str) -> None:
    """Write a block to a folder's disk, of which nothing is left."""
    file = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, bytes(4096))
        os.fsync(file)
    finally:
        os.close(file)


def _find_lacking(disk: os.statvfs_result) -> str | None:
    """Return what a disk has run out of, if anything.

    A file system without limits reports totals of 0.
    """
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < LEAST:
        return "space"
    return "inodes" if disk.f_files and not disk.f_favail else None
