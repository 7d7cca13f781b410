# SPDX-License-Identifier: GPL-2.0-or-later
"""The parts of a push, checked before a master's repository is locked."""

import bz2
import io
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from mercurial import bundle2, error, exchange, util
from mercurial import ui as uimod

from hgext.vcsreplicator.hg import parts
from pushlog import versions

versions.initialize()
UI = uimod.ui.load()
END = bytes(4)
SENT = [
    *("replycaps", "check:heads", "check:updated-heads", "check:bookmarks", "check:phases", "changegroup"),
    *("phase-heads", "pushkey", "obsmarkers", "bookmarks", "pushvars"),
]


def frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def head(name: bytes, parameters: Mapping[bytes, bytes] = {}) -> bytes:
    """Return the header of a part; the name of a mandatory one is in capitals."""
    sizes = b"".join(bytes([len(key), len(value)]) for key, value in parameters.items())
    values = b"".join(key + value for key, value in parameters.items())
    return frame(bytes([len(name)]) + name + struct.pack(">IBB", 0, len(parameters), 0) + sizes + values)


def interruption(part: bytes) -> bytes:
    return struct.pack(">i", -1) + part


def check(*content: bytes, parameters: bytes = b"", file: type = io.BytesIO) -> list[str]:
    """Check a bundle of this content; return the names of the parts that are read after it."""
    packed = b"HG20" + frame(parameters) + b"".join(content) + END
    read: list[str] = []

    def unbundle(_repo: object, bundle: Any, *_: object) -> None:
        read.extend(part.type.decode() for part in bundle.iterparts())

    given: Any = exchange.readbundle(UI, file(packed), None)
    parts.check_push(unbundle, None, given, [], b"serve", b"")  # type: ignore[arg-type] # no repository is asked
    return read


class Arriving:
    """A stream that cannot be read again, like that of a push by path."""

    def __init__(self, content: bytes) -> None:
        self.read = util.chunkbuffer(iter([content])).read


@pytest.mark.parametrize("file", [io.BytesIO, Arriving])
def test_push_with_all_parts_that_clients_send_is_read_from_its_beginning(file: type) -> None:
    content = [head(name.encode()) + frame(bytes(40_000)) + frame(b"end") + END for name in SENT]
    assert check(*content, file=file) == SENT


PASSED = {*SENT, "cache:rev-branch-cache", "remote-changegroup"}
HANDLED = sorted({name.decode() for name in bundle2.parthandlermapping} - PASSED)


@pytest.mark.parametrize("name", HANDLED)
@pytest.mark.parametrize("is_mandatory", [True, False])
def test_push_with_another_part_that_is_known_here_is_refused(name: str, is_mandatory: bool) -> None:
    sent = name.upper() if is_mandatory else name
    with pytest.raises(error.Abort, match=f"a push cannot bring this part: '{name}'") as refusal:
        check(head(sent.encode()) + END)
    assert getattr(refusal.value, "duringunbundle2", False)


def test_push_with_an_unknown_part_is_refused_if_the_client_insists_on_it() -> None:
    assert check(head(b"x-new") + END) == ["x-new"]
    with pytest.raises(error.Abort, match="this part: 'x-new'"):
        check(head(b"X-new") + END)


def test_what_a_clients_extension_offers_the_sites_is_passed_over() -> None:
    bundle2.parthandlermapping[b"site:about"] = lambda op, part: None
    with pytest.raises(error.Abort, match="this part: 'site:about'"):
        check(head(b"SITE:ABOUT") + END)
    assert check(head(b"site:about") + END) == ["site:about"]
    assert b"site:about" not in bundle2.parthandlermapping  # so Mercurial reads past it


def test_part_within_another_part_is_refused() -> None:
    inner = head(b"REMOTE-CHANGEGROUP", {b"url": b"http://127.0.0.1:1/", b"size": b"1"}) + END
    for deep in (inner, head(b"error:abort") + interruption(inner) + END):
        with pytest.raises(error.Abort, match="this part: 'remote-changegroup'"):
            check(head(b"CHANGEGROUP") + frame(b"some") + interruption(deep) + END)


def test_client_that_cannot_go_on_says_so_within_a_part() -> None:
    inner = head(b"error:abort", {b"message": b"no more"}) + END
    with pytest.raises(bundle2.AbortFromPart, match="no more"):
        check(head(b"CHANGEGROUP") + frame(b"some") + interruption(inner) + END)


def test_compressed_push_is_refused() -> None:
    with pytest.raises(error.Abort, match="a push cannot be compressed"):
        check(parameters=b"Compression=ZS")


def former(content: bytes) -> bytes:
    """Push this in the form of a client before Mercurial 3.5; return what arrives at Mercurial."""

    def unbundle(_repo: object, bundle: Any, *_: object) -> bytes:
        return bytes(bundle._stream.read())

    given: Any = exchange.readbundle(UI, io.BytesIO(content), None)
    return bytes(parts.check_push(unbundle, None, given, [], b"serve", b""))  # type: ignore[arg-type]


def test_a_former_clients_push_is_unpacked_before_the_lock_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_UNPACKED", 1_000_000)
    assert former(b"HG10BZ" + bz2.compress(b"some")[2:]) == b"some"
    assert former(b"HG10UNsome") == b"some"
    with pytest.raises(error.Abort, match="the push has more than 1000000 bytes"):
        former(b"HG10BZ" + bz2.compress(b"\x7f\xff\xff\xff" + bytes(50_000_000))[2:])


def test_push_of_a_copied_store_is_refused() -> None:
    with pytest.raises(error.Abort, match="a push cannot bring this form"):
        former(b"HGS1UN" + struct.pack(">QQI", 0, 0, 1)[:18] + bytes(64))


@pytest.mark.parametrize(
    "content",
    [
        head(b"CHANGEGROUP") + struct.pack(">i", 10**6) + b"some",
        head(b"CHANGEGROUP") + struct.pack(">i", -2) + END,
        struct.pack(">i", 10**9),
        interruption(b""),
    ],
    ids=["cut off", "negative", "large header", "interruption of nothing"],
)
def test_damaged_push_is_refused(content: bytes) -> None:
    with pytest.raises(error.Abort, match=r"the pushed bundle is (damaged|cut off)"):
        check(content)


@pytest.mark.parametrize("parameters", [b"%", b"\tx", b"%ff=1"])
def test_damaged_parameters_of_a_push_are_refused(parameters: bytes) -> None:
    with pytest.raises(error.Abort, match="the pushed bundle is damaged"):
        check(parameters=parameters)
