# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes that no Mercurial makes: changesets, manifests and files with any content, as a client's program could send them."""

import hashlib
import struct
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NULL = bytes(20)
END = bytes(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A text with a parent; its hash is the right one, unless `false` is given.

    `base` is the revision to which `delta` is the difference; of none, the text is sent whole.
    """

    text: bytes
    parent: bytes = NULL
    false: bytes = b""
    base: bytes = NULL
    delta: bytes = b""

    @property
    def node(self) -> bytes:
        return self.false or hashlib.sha1(b"".join(sorted((self.parent, NULL))) + self.text).digest()

    def encode(self, changeset: bytes) -> bytes:
        delta = self.delta or struct.pack(">lll", 0, 0, len(self.text)) + self.text
        return _frame(self.node + self.parent + NULL + self.base + changeset + delta)


def manifest(*entries: tuple[bytes, bytes, bytes], parent: bytes = NULL) -> Revision:
    """Entries are names, nodes and flags."""
    return Revision(text=b"".join(b"%s\0%s%s\n" % (n, node.hex().encode(), f) for n, node, f in entries), parent=parent)


def changeset(manifest: Revision, *names: bytes, date: bytes = b"0 0", parent: bytes = NULL) -> Revision:
    """The changeset says that it changed the files of these names."""
    text = b"\n".join([manifest.node.hex().encode(), b"dana", date, *names, b"", b"crafted"])
    return Revision(text=text, parent=parent)


def push(
    address: str,
    change: Revision,
    manifests: Iterable[Revision],
    files: Mapping[bytes, Iterable[Revision]],
    *,
    before: Iterable[Revision] = (),
) -> str:
    """Push a changeset, and those `before` it, over HTTP; what the pusher reads. All content is linked to this changeset."""
    return send(address, bundle(part(b"CHANGEGROUP", content(change, manifests, files, before=before), version=b"02")))


def content(
    change: Revision,
    manifests: Iterable[Revision],
    files: Mapping[bytes, Iterable[Revision]],
    *,
    before: Iterable[Revision] = (),
) -> bytes:
    """A changegroup of version 02."""
    of_files = [_frame(name) + _encode(versions, change) for name, versions in files.items()]
    changes = b"".join(each.encode(each.node) for each in (*before, change)) + END
    return b"".join([changes, _encode(manifests, change), *of_files, END])


def bundle(*parts: bytes, reply: bool = True) -> bytes:
    """A bundle of parts, which asks for a reply or not."""
    asked = [part(b"replycaps", b"HG20\nerror=abort\n")] if reply else []
    return b"".join([b"HG20", END, *asked, *parts, END])


def part(name: bytes, payload: bytes, **parameters: bytes) -> bytes:
    """A part with parameters that the receiver must know."""
    sizes = b"".join(bytes([len(key), len(value)]) for key, value in parameters.items())
    values = b"".join(key.encode() + value for key, value in parameters.items())
    head = bytes([len(name)]) + name + END + bytes([len(parameters), 0]) + sizes + values
    return struct.pack(">i", len(head)) + head + (struct.pack(">i", len(payload)) + payload if payload else b"") + END


def send(address: str, pushed: bytes) -> str:
    """Push any bytes over HTTP; what the pusher reads."""
    request = urllib.request.Request(
        f"{address}?cmd=unbundle&heads={b'force'.hex()}",
        data=pushed,
        headers={"Content-Type": "application/mercurial-0.1"},
    )
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode(errors="replace"))


def _encode(revisions: Iterable[Revision], change: Revision) -> bytes:
    return b"".join(revision.encode(change.node) for revision in revisions) + END


def _frame(chunk: bytes) -> bytes:
    """As in a changegroup: the size counts itself."""
    return struct.pack(">l", len(chunk) + 4) + chunk
