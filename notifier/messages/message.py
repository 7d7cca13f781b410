# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages: the public form of notices, exactly as receivers rely on it.

Pure: a notice and settings in, values out.

One notice becomes at most one message per public stream, in a fixed order. docs/messages.md defines the bodies. Later members
(id, previous, sequence) travel beside them as properties and headers and never change a documented body. U+FFFD replaces bytes of a
repository's text that are not Unicode.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hgext.vcsreplicator.words.event import Event, Marker, MarkerNode, PushConnection, PushEntry, read_disclosure
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.streams import Stream, message_id, streams

from .public import PublicSettings, public_url

Json = Mapping[str, Any]

_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False)
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as receivers get it.

    `id` is the same at every repeat; `previous` names the message before it of the same repository and type (None: the first).
    `sequence` is the event's, counted on over histories of the repository that an adopted one replaced; `seq` and `event_id` are
    the event's in its own history. `offset` is the notice's place in the log, and `index` counts the notice's messages from 0.
    `created` is when the change happened, in seconds since the epoch. `replay` says who asked for a replay, and when. `connection`
    is where a push came from. It is None except for a destination that takes connections, and no form that is shown contains it.
    `signed` is the signed notice, if the aggregator signs. `size` is the message's part of the bytes of the notice.
    """

    id: str
    previous: str | None
    type: Stream
    repository: str
    sequence: int
    seq: int
    event_id: str
    repo_url: str
    data: Json
    created: float
    offset: int
    index: int = 0
    replay: str | None = None
    connection: PushConnection | None = field(default=None, repr=False)
    signed: str | None = field(default=None, repr=False)
    size: int = field(default=0, repr=False, compare=False)

    @property
    def orders(self) -> tuple[str, ...]:
        """The repository and its URLs whose earlier messages must go first.

        The URLs are the present one and, after a rename, the former one.
        """
        urls = (self.repo_url, self.data.get("old_repo_url"))
        return (self.repository, *(url for url in urls if url is not None))

    @property
    def names(self) -> dict[str, str | int]:
        """The names of the message and its event, for a log line."""
        return {"message": self.id, "repository": self.repository, "seq": self.seq, "event_id": self.event_id}

    @property
    def envelope(self) -> Json:
        """`{"type": …, "data": …}`, the form of all destinations but Pulse v1."""
        return {"type": self.type.value, "data": self.data}


def messages(
    notice: Notice, offset: int, public: PublicSettings, signed: str | None = None, *, size: int = 0
) -> tuple[Message, ...]:
    """Return the messages of a notice of `size` bytes in sending order; none if it is not public."""
    event = notice.event
    url = public_url(event.path, public)
    if url is None:
        return ()
    kinds = streams(event)
    return tuple(
        Message(
            id=message_id(event.id, stream),
            previous=_find_previous(notice, stream),
            type=stream,
            repository=event.repository,
            sequence=(notice.base or 0) + event.seq,
            seq=event.seq,
            event_id=event.id,
            repo_url=url,
            data=_make_data(stream, event, url, public),
            created=event.time,
            offset=offset,
            index=index,
            replay=notice.replay,
            signed=signed,
            size=size // len(kinds),
        )
        for index, stream in enumerate(kinds)
    )


def to_text(value: Json) -> str:
    """Return JSON as all destinations write it: ASCII, sorted keys."""
    return _ENCODER.encode(value)


def clean(text: str) -> str:
    """Return the text with U+FFFD for each code point that UTF-8 cannot carry."""
    return text if text.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def _find_previous(notice: Notice, stream: Stream) -> str | None:
    before = notice.previous.get(stream.value)
    return None if before is None else message_id(before, stream)


def _make_data(stream: Stream, event: Event, url: str, public: PublicSettings) -> Json:
    changes, said = event.changes, read_disclosure(event)
    match stream:
        case Stream.CHANGEGROUP:
            return {
                "repo_url": url,
                "heads": list(said.heads),
                "source": clean(event.source),
                "pushlog_pushes": [] if changes.push is None else [push_entry(changes.push, url)],
            }
        case Stream.OBSOLETE:
            return {"repo_url": url, "markers": [_describe_marker(marker, url) for marker in changes.markers]}
        case Stream.BOOKMARK:
            moved = [{"name": clean(bookmark.name), "node": bookmark.node} for bookmark in said.bookmarks]
            return {"repo_url": url, "bookmarks": moved}
        case Stream.PHASE:
            moves = [{"phase": _PHASES[move.phase], "heads": list(move.nodes)} for move in said.phases]
            return {"repo_url": url, "phases": moves}
        case Stream.REPORENAMED:
            before = (event.detail or {}).get("from")
            return {"repo_url": url, "old_repo_url": None if before is None else public_url(before, public)}
        case Stream.NEWREPO | Stream.REPODELETED:
            return {"repo_url": url}


_PHASES = ("public", "draft", "secret")


def push_entry(push: PushEntry, url: str) -> Json:
    """Return an entry of `pushlog_pushes`.

    Receivers cut its URLs at the last slash and rely on the order of their parameters.
    """
    window = f"startID={push.id - 1}&endID={push.id}"
    return {
        "pushid": push.id,
        "time": push.date,
        "user": clean(push.user),
        "push_json_url": f"{url}/json-pushes?version=2&{window}",
        "push_full_json_url": f"{url}/json-pushes?version=2&full=1&{window}",
    }


def _describe_marker(marker: Marker, url: str) -> Json:
    return {
        "precursor": _marker_node(marker.precursor, url),
        "successors": [_marker_node(node, url) for node in marker.successors],
        "user": None if marker.user is None else clean(marker.user),
        "time": marker.time,
    }


def _marker_node(node: MarkerNode, url: str) -> Json:
    return {
        "node": node.node,
        "known": node.known,
        "visible": node.visible,
        "desc": None if node.desc is None else clean(node.desc),
        "push": None if node.push is None else push_entry(node.push, url),
    }
