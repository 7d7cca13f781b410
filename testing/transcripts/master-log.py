# SPDX-License-Identifier: GPL-2.0-or-later
"""For transcripts: `create URL` makes the topics, `show URL [PATH]` prints the events in the log, one line each."""

import sys
from typing import Any

from hgext.vcsreplicator.log import EVENTS, Log, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words import digest, wire


def show(log: Log, only: str | None) -> None:
    reader = log.reader({(EVENTS, partition): 0 for partition in range(log.partitions(EVENTS))})
    known: dict[str, tuple[int, str | None, str, str]] = {}
    lines = []
    for record in reader.poll(1.0, limit=100_000):
        frame = wire.decode(record.value or b"")
        if frame.header.heartbeat is not None:
            lines.append(("", (0, 0), f"heartbeat in partition {record.partition}"))
            continue
        event = frame.event
        before = known.get(event.repository, (0, None, digest.START, event.incarnation))
        if before[3] != event.incarnation:
            before = (0, None, digest.START, event.incarnation)
        assert (event.seq, event.previous) == (before[0] + 1, before[1]), f"{event.path}: {event.seq} does not follow"
        assert event.digest == digest.advance(before[2], event.type, event.changes)
        known[event.repository] = (event.seq, event.id, event.digest, event.incarnation)
        lines.append((event.path, (event.generation, event.seq), line(frame)))
    for path, _, text in sorted(lines):
        if not only or path == only:
            print(text)


def line(frame: Any) -> str:
    event, changes = frame.event, frame.event.changes
    parts = [f"{event.path} {event.seq} {event.type.value}"]
    if event.generation > 1:
        parts.append(f"generation={event.generation}")
    if changes.added:
        parts.append(f"+{changes.added.count}")
    if changes.removed:
        parts.append(f"-{changes.removed.count}")
    parts += [f"heads+{len(changes.heads_added)}"] if changes.heads_added else []
    parts += [f"phase{move.phase}:{len(move.nodes)}" for move in changes.phases]
    parts += [f"{mark.name}={(mark.node or 'gone')[:12]}" for mark in changes.bookmarks]
    parts += [f"markers:{len(changes.markers)}"] if changes.markers else []
    parts += [f"push={changes.push.id} by {changes.push.user}"] if changes.push else []
    parts += [f"{key}={value[:12]}" for key, value in sorted((event.detail or {}).items()) if key != "replaces"]
    parts += [f"hgrc={event.hgrc}"] if event.hgrc else []
    parts.append(f"({frame.header.attachment.where.value})" if frame.header.attachment else "")
    parts.append(f"after={event.after.length}")
    return " ".join(part for part in parts if part)


with open_log(sys.argv[2], creates=True) as log:
    if sys.argv[1] == "create":
        log.create(topics())
    else:
        show(log, sys.argv[3] if len(sys.argv) > 3 else None)
