# SPDX-License-Identifier: GPL-2.0-or-later
"""Pushes over HTTP that cannot be read: their pusher reads why, and no operator is called."""

import struct
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testing.builders.master.changegroups import NULL, Revision, bundle, changeset, manifest, part, push, send
from testing.builders.master.pushing import Master, new_master

pytestmark = pytest.mark.processes

ONE = Revision(text=b"one")
ENTRY = (b"file", ONE.node, b"")
NAMED = manifest(ENTRY)
UNKNOWN = b"k" * 20
KEY = {"namespace": b"phases", "key": b"zz", "old": b"1", "new": b"0"}

PARTS = {
    "a header that is too short": (b"HG20" + bytes(4) + b"\0\0\0\3\xff\0\0" + bytes(8), "error: unpack requires"),
    "heads of any size": (bundle(part(b"CHECK:HEADS", b"abc")), "AssertionError"),
    "a phase that there is not": (bundle(part(b"PHASE-HEADS", struct.pack(">i20s", 9, NULL))), "KeyError: 9"),
    "a phase of an unknown changeset": (bundle(part(b"PHASE-HEADS", struct.pack(">i20s", 0, UNKNOWN))), ""),
    "a key of no changeset": (bundle(part(b"PUSHKEY", b"", **KEY)), "unsupported changeid 'zz'"),
    "a key without a name": (bundle(part(b"PUSHKEY", b"", namespace=b"phases")), "KeyError: b'key'"),
    "markers without a version": (bundle(part(b"OBSMARKERS", b"")), "error: unpack requires"),
    "a marker that is cut off": (bundle(part(b"OBSMARKERS", b"\1\0\0\0\x50abc")), "ValueError: overflow"),
    "a changegroup of no version": (bundle(part(b"CHANGEGROUP", bytes(4), version=b"09")), "KeyError: b'09'"),
    "a target phase that is no number": (
        bundle(part(b"CHANGEGROUP", bytes(4), version=b"02", targetphase=b"x")),
        "ValueError: invalid literal",
    ),
}
BROKEN = manifest((b"b", ONE.node, b""), (b"a", ONE.node, b""))
ODD = manifest((b"a//b", ONE.node, b""))
CHANGESETS = {
    "a changeset without an end": (Revision(text=b"0" * 40), [], {}, "ValueError: subsection not found"),
    "a changeset of no manifest": (
        Revision(text=b"z" * 40 + b"\nu\n0 0\nfile\n\nd"),
        [],
        {b"file": [ONE]},
        "Error: Non-hex",
    ),
    "a manifest that is not sorted": (changeset(BROKEN, b"b"), [BROKEN], {b"b": [ONE]}, "not in sorted order"),
    "a difference that is none": (
        changeset(NAMED, b"file"),
        [NAMED],
        {b"file": [Revision(text=b"one", delta=b"x")]},
        "patch cannot be decoded",
    ),
    "a difference to nothing": (
        changeset(NAMED, b"file"),
        [NAMED],
        {b"file": [Revision(text=b"one", base=UNKNOWN)]},
        f"data/file@{UNKNOWN.hex()}",
    ),
    "metadata that is not closed": (
        changeset(NAMED, b"file"),
        [NAMED],
        {b"file": [Revision(text=b"\1\nunclosed")]},
        "AttributeError",
    ),
    "an empty folder": (changeset(ODD, b"a//b"), [ODD], {b"a//b": [ONE]}, "an empty folder"),
}


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with new_master("acknowledge = outbox") as master:
        yield master


@pytest.fixture(scope="module")
def address(master: Master) -> Iterator[str]:
    master.create("one")
    with master.serve("one") as address:
        yield address


def assert_refused(master: Master, said: str, reason: str) -> None:
    start = "the pushed bundle is damaged: "
    assert said.count(start) == 1, said
    assert reason in said.partition(start)[2]
    assert str(master.folder) not in said
    assert master.operate("log", "-R", str(master.root / "one")) == ""


@pytest.mark.parametrize("what", PARTS)
def test_a_damaged_part_is_refused_in_a_line(master: Master, address: str, what: str) -> None:
    pushed, reason = PARTS[what]
    assert_refused(master, send(address, pushed), reason)


@pytest.mark.parametrize("what", CHANGESETS)
def test_a_damaged_changegroup_is_refused_in_a_line(master: Master, address: str, what: str) -> None:
    change, manifests, files, reason = CHANGESETS[what]
    assert_refused(master, push(address, change, manifests, files), reason)


@pytest.mark.parametrize(
    "damaged", [b"HG10BZ" + b"x" * 100, b"HG10GZ" + b"x" * 100, b"HG10UN" + b"\0\0\0\x60" + b"x" * 92]
)
def test_a_damaged_push_in_the_former_form_is_refused(address: str, damaged: bytes) -> None:
    """Mercurial writes the reason to the server's standard error."""
    assert send(address, damaged).startswith("0\n")


@pytest.mark.parametrize("namespace", ["phases", "bookmarks"])
def test_a_damaged_key_is_refused_in_a_line(master: Master, address: str, namespace: str) -> None:
    asked = urllib.parse.urlencode({"cmd": "pushkey", **KEY, "namespace": namespace, "old": "", "new": "garbage"})
    request = urllib.request.Request(
        f"{address}?{asked}", data=b"", headers={"Content-Type": "application/mercurial-0.1"}
    )
    with urllib.request.urlopen(request) as answer:
        said = answer.read().decode()
    assert said.startswith("0\n")
    assert_refused(master, said, "unsupported changeid")


def test_a_push_that_asks_for_no_reply_is_answered(master: Master) -> None:
    master.create("unasked")
    with master.serve("unasked") as address:
        assert send(address, bundle(reply=False)).startswith("1\n")


def damage_markers(master: Master, folder: Path) -> None:
    (folder / ".hg/store/obsstore").write_bytes(b"\1\0\0\0\x50abc")


def damage_history(master: Master, folder: Path) -> None:
    stored = folder / ".hg/store/data/file.i"
    stored.write_bytes(stored.read_bytes().replace(b"uone", b"?one"))


def break_hook(master: Master, folder: Path) -> None:
    (master.folder / "site.py").write_text("def hook(**named):\n    raise ValueError('of the site')\n")
    with (folder / ".hg/hgrc").open("a") as hgrc:
        hgrc.write(f"[hooks]\npretxnchangegroup.site = python:{master.folder}/site.py:hook\n")


# A difference that is longer than the text: Mercurial makes the text of it, and reads what it is a difference to.
LONG = struct.pack(">lll", 0, 0, 0) * 30 + struct.pack(">lll", 1, 2, 1) + b"w"
TWO = Revision(text=b"owe", parent=ONE.node, base=ONE.node, delta=LONG)
MARKER = struct.pack(">dhHBBB20s", 0.0, 0, 0, 0, 3, 0, UNKNOWN)
MARKERS = bundle(part(b"OBSMARKERS", b"\1" + struct.pack(">I", len(MARKER) + 4) + MARKER))


@pytest.mark.parametrize("damage", [damage_markers, damage_history, break_hook])
def test_a_fault_of_the_server_remains_an_error(master: Master, damage: Callable[[Master, Path], None]) -> None:
    name = damage.__name__
    master.create(name)
    first = changeset(NAMED, b"file")
    after = manifest((b"file", TWO.node, b""), parent=NAMED.node)
    second = changeset(after, b"file", parent=first.node)
    with master.serve(name) as address:
        push(address, first, [NAMED], {b"file": [ONE]})
    damage(master, master.root / name)
    with master.serve(name) as address, pytest.raises(urllib.error.HTTPError, match="500"):
        send(address, MARKERS) if damage is damage_markers else push(address, second, [after], {b"file": [TWO]})
