# SPDX-License-Identifier: GPL-2.0-or-later
"""Records made by an attacker: rejected with a reason, or their repository detached; nothing is written outside the root."""

import hashlib
import itertools
import json
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mercurial import bundle2, util

from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, prepare
from hgext.vcsreplicator.hg.replica.work import TaskRunner
from hgext.vcsreplicator.log import ACKS, EVENTS, ROSTER, STATE, NewRecord
from hgext.vcsreplicator.log.blobs import FolderBlobs
from hgext.vcsreplicator.mirror.pool import CONFIGURATION
from hgext.vcsreplicator.mirror.task import ReadEvent, Task, TaskOutcome
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Rejected
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.path import check_path
from hgext.vcsreplicator.words.records import Reason
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import NAME, Bench
from testing.waiting import eventually

pytestmark = pytest.mark.processes

RECORDS = 10_000
MEMORY = 256 * 1024 * 1024
PATHS = [
    "../outside",
    "/etc/absolute",
    "a/../../outside",
    "nul\0byte",
    "a/.hg/store",
    ".hg",
    "a\\b",
    "-rf",
    "~vcsreplicator/staging/x",
    "x" * 10_000_000,
    "a//b",
    "trailing.",
    "line\nfeed",
    "\udcff",
    "link/inside",
]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, partitions=1) as bench:
        yield bench


@pytest.fixture
def runner(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> TaskRunner:
    hgrc = bench.folder / "worker.hgrc"
    hgrc.write_text(CONFIGURATION)
    monkeypatch.setenv("HGRCPATH", str(hgrc))
    monkeypatch.setenv("HGRCSKIPREPO", "1")
    return TaskRunner(bench.settings(), OpenRepositories(prepare(), 4), SystemClock())


def framed(header: Any, body: bytes) -> bytes:
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    return struct.pack(">4sI", b"VCR1", len(text)) + text + body


def opened(frame: bytes) -> tuple[Any, bytes]:
    (length,) = struct.unpack(">I", frame[4:8])
    return json.loads(frame[8 : 8 + length]), frame[8 + length :]


def perform(runner: TaskRunner, frame: bytes) -> TaskOutcome | None:
    """What a mirror makes of one record: None if it is refused before any work."""
    try:
        decoded = wire.decode(frame)
    except Rejected:
        return None
    if decoded.header.event is None:
        return None
    item = ReadEvent(frame=decoded, partition=0, offset=1, size=len(frame))
    event = decoded.event
    folder = runner.settings.local(event.path)
    task = Task(repository=event.repository, path=event.path, folder=folder, items=(item,))
    return runner.perform(task)


def outside(bench: Bench) -> dict[str, str]:
    """Everything beside the mirror's root, with its content."""
    content = {}
    for folder, folders, names in os.walk(bench.folder):
        if folder == str(bench.root):
            folders.clear()
            continue
        for name in names:
            path = Path(folder, name)
            if path.is_symlink():
                content[str(path)] = os.readlink(path)
            elif path.is_file():
                content[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        content[folder] = ",".join(sorted(folders))
    return content


def mutated(chance: random.Random, frame: bytes) -> bytes:
    """The frame, changed as chance will have it: bytes, members, values, the body with a hash that fits."""
    if chance.random() < 0.3:
        data = bytearray(frame)
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data)
    header, body = opened(frame)
    for _ in range(chance.randrange(1, 4)):
        change(chance, header["event"])
    if chance.random() < 0.5 and body:
        data = bytearray(body)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        body = bytes(data)
        header["attachment"]["sha256"] = hashlib.sha256(body).hexdigest()
    return framed(header, body)


def change(chance: random.Random, value: Any) -> None:
    """One member somewhere inside is another value, or gone, or new."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = chance.choice(keys)
    if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.8:
        change(chance, value[key])
    elif isinstance(value, dict) and chance.random() < 0.15:
        del value[key]
    elif isinstance(value, dict) and chance.random() < 0.1:
        value["more"] = "x"
    else:
        value[key] = chance.choice(
            [None, -1, 0, 2, 2**63, 1.5, "", "f" * 40, "-" + "a" * 39, "g" * 40, "f" * 64, "f" * 32, [], {}, True, "created",
             "deleted", "stripped", "renamed", "censored", "sync", "hgrc", chance.choice(PATHS[:9]), "file0", [["x"]] * 5]
        )  # fmt: skip


# Mercurial leaves the names of branches open where it writes them anew (`branching/rev_cache.py`, 7.2).
@pytest.mark.filterwarnings("ignore:.*rbc-names:pytest.PytestUnraisableExceptionWarning")
def test_ten_thousand_mutated_records_change_nothing_outside_the_root(bench: Bench, runner: TaskRunner) -> None:
    author = bench.author("repo")
    author.push(count=2)
    author.push(phase=1)
    author.bookmark("main", author.tip)
    author.obsolete(author.tip)
    author.strip(author.push(phase=1).after.node)
    frames = [frame for _, frame in author.frames]
    perform(runner, frames[0])
    perform(runner, frames[1])
    before = outside(bench)
    chance = random.Random(RECORDS)
    worked = 0
    for number in range(RECORDS):
        frame = frames[number % len(frames)] if number % 50 else frames[2]
        outcome = perform(runner, mutated(chance, frame))
        worked += outcome is not None
    assert worked > 100  # not all of them fail at the first check
    assert outside(bench) == before
    for path in bench.root.iterdir():
        assert path.is_dir()
        assert not path.is_symlink()
        assert path.name == "~vcsreplicator" or check_path(path.name)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: repr(path)[:24])
def test_a_path_that_leads_elsewhere_is_never_followed(bench: Bench, runner: TaskRunner, path: str) -> None:
    elsewhere = bench.root.with_name(bench.root.name + "-elsewhere")  # whose name begins as the root's does
    elsewhere.mkdir()
    (bench.root / "link").symlink_to(elsewhere)
    header, body = opened(bench.author("good").frames[0][1])
    header["event"]["path"] = path
    before = outside(bench)
    outcome = perform(runner, framed(header, body))
    assert outcome is None or outcome.trouble is not None
    assert outside(bench) == before


def bundle(parts: list[tuple[bytes, bytes]], compressed: bool = True) -> bytes:
    """A bundle with these parts."""
    from mercurial import ui

    bundler = bundle2.bundle20(ui.ui())
    if compressed:
        bundler.setcompression(b"ZS")
    for kind, data in parts:
        bundler.newpart(kind, data=data)
    return b"".join(bundler.getchunks())


def hostile(author: Author, body: bytes) -> bytes:
    """The author's newest event with another bundle, whose hash fits."""
    event, _ = author.frames[-1]
    return wire.encode(event, wire.inline(body), body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (bundle([(b"pushkey", b"")]), "pushkey"),
        (bundle([(b"remote-changegroup", b"")]), "remote-changegroup"),
        (bundle([(b"stream2", b"")]), "stream2"),
        (bundle([(b"bookmarks", b"")]), "bookmarks"),
        (b"HG10UN" + b"\0" * 100, "version 2"),
        (b"#!/bin/sh\n" * 10, "bundle"),
        (b"", "bundle"),
    ],
)
def test_a_bundle_that_is_more_than_changesets_and_markers_is_refused(
    bench: Bench, runner: TaskRunner, body: bytes, why: str
) -> None:
    author = bench.author("repo")
    perform(runner, author.frames[0][1])
    author.push()
    outcome = perform(runner, hostile(author, body))
    assert outcome is not None
    assert outcome.trouble is not None
    assert why in outcome.trouble.note
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.seq == 1


@pytest.mark.parametrize("kind", [Type.CHANGED, Type.HGRC])
def test_an_event_with_another_digest_is_not_applied(bench: Bench, runner: TaskRunner, kind: Type) -> None:
    author = bench.author("repo")
    perform(runner, author.frames[0][1])
    event = author.push() if kind is Type.CHANGED else author.event(kind, hgrc={"web": {"description": "text"}})
    frame = wire.decode(author.frames[-1][1])
    forged = wire.encode(replace(event, digest="f" * 64), frame.header.attachment, frame.body)
    outcome = perform(runner, forged)
    assert outcome is not None
    assert outcome.trouble is not None
    assert outcome.trouble.reason is Reason.DIVERGED
    [found] = bench.found().values()
    assert found.checkpoint is not None
    assert found.checkpoint.seq == 1
    assert (found.checkpoint.length, bench.hg(author, "log", "-T", "x")) == (0, "")
    outcome = perform(runner, author.frames[-1][1])
    assert outcome is not None
    assert outcome.trouble is None


@pytest.mark.parametrize("what", ["a bit", "a byte more"])
def test_a_blob_that_is_not_the_one_of_the_event_is_not_applied(bench: Bench, runner: TaskRunner, what: str) -> None:
    blobs = FolderBlobs(str(bench.folder / "blobs"))
    runner.settings = replace(runner.settings, blobs=f"file://{bench.folder}/blobs")
    author = bench.author("repo")
    perform(runner, author.frames[0][1])
    event = author.push()
    body = wire.decode(author.frames[-1][1]).body
    attachment = blobs.put([body])
    [file] = (bench.folder / "blobs").rglob("*.hg")
    file.chmod(0o600)
    bad = bytearray(body)
    bad[len(bad) // 2] ^= 1
    file.write_bytes(bytes(bad) if what == "a bit" else body + b"\0")
    outcome = perform(runner, wire.encode(event, attachment))
    assert outcome is not None
    assert outcome.trouble is not None
    assert outcome.trouble.reason is Reason.BLOB_MISSING
    assert "another hash" in outcome.trouble.note
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.seq == 1
    file.write_bytes(body)
    outcome = perform(runner, wire.encode(event, attachment))
    assert outcome is not None
    assert outcome.trouble is None


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"previous": "e" * 32}, Reason.FORK),
        ({"incarnation": "e" * 32}, Reason.DIVERGED),
        ({"seq": 5}, Reason.GAP),
    ],
    ids=["previous", "incarnation", "seq"],
)
def test_an_event_in_a_batch_that_does_not_follow_is_not_applied(
    bench: Bench, runner: TaskRunner, members: dict[str, Any], reason: Reason
) -> None:
    author = bench.author("repo")
    for _ in range(3):
        author.push()
    event, frame = author.frames[3]
    decoded = wire.decode(frame)
    forged = wire.encode(replace(event, **members), decoded.header.attachment, decoded.body)
    frames = [*(frame for _, frame in author.frames[:3]), forged]
    items = tuple(
        ReadEvent(frame=wire.decode(one), partition=0, offset=n, size=len(one)) for n, one in enumerate(frames)
    )
    outcome = runner.perform(Task(repository=author.repository, path="repo", folder=None, items=items))
    assert outcome.done == 3
    assert outcome.trouble is not None
    assert outcome.trouble.reason is reason
    assert outcome.checkpoint is not None
    assert (outcome.checkpoint.seq, outcome.checkpoint.id) == (3, author.frames[2][0].id)


def push_with(author: Author, body: bytes) -> None:
    """A push whose event has this bundle instead of its own."""
    event = author.push()
    author.frames[-1] = (event, hostile(author, body))


def bomb(size: int, chunks: int) -> bytes:
    """A small bundle whose one part unpacks to that many chunks of so many bytes."""
    head = bundle([(b"changegroup", b"")], compressed=False)[8:-8]  # its part without content: neither end is there
    block = struct.pack(">i", size)
    zeros = bytes(1 << 20)
    pieces = itertools.chain([head], *([block, *([zeros] * (size >> 20))] for _ in range(chunks)))
    packed = b"".join(util.compengines.forbundletype(b"ZS").compressstream(pieces))
    parameters = b"Compression=ZS"
    body = b"HG20" + struct.pack(">i", len(parameters)) + parameters + packed
    assert len(body) < wire.INLINE_LIMIT
    return body


@pytest.mark.parametrize(("size", "chunks"), [(1 << 24, 40), (700 << 20, 1)], ids=["many chunks", "one chunk"])
def test_a_bundle_that_unpacks_without_end_is_refused_in_time(bench: Bench, size: int, chunks: int) -> None:
    author, neighbour = bench.author("repo"), bench.author("neighbour")
    bench.send(author, neighbour)
    body = bomb(size, chunks)
    with bench.process(workers=1, worker_memory_bytes=3 * MEMORY):
        bench.wait_applied(author, neighbour)
        push_with(author, body)
        neighbour.push()
        bench.send(author, neighbour)
        ack = bench.wait_detached(author, "blob-missing")
        # A worker that had taken all its memory would name `worker-memory-bytes`, or have died.
        assert ack.note == "bundle: more bytes than it may unpack to"
        bench.wait_applied(neighbour)
    assert "worker died" not in (bench.folder / "mirror.log").read_text()


def test_a_bundle_too_large_for_a_workers_memory_is_fetched_elsewhere(bench: Bench) -> None:
    bench.serve_master()
    author, neighbour = bench.author("repo"), bench.author("neighbour")
    bench.send(author, neighbour)
    body = bomb(wire.UNPACKED_LIMIT - (1 << 20), 1)
    with bench.process(workers=1, worker_memory_bytes=MEMORY) as mirror:
        bench.wait_applied(author, neighbour)
        workers = mirror.workers
        store = (bench.where(author) / ".hg/store").stat().st_ino
        push_with(author, body)
        neighbour.push()
        bench.send(author, neighbour)
        ack = bench.wait_detached(author, "blob-missing")
        assert "worker-memory-bytes" in (ack.note or "")
        bench.wait_applied(author, neighbour)
        assert not set(workers) <= set(mirror.workers)
        author.push()
        bench.send(author)
        bench.wait_applied(author)
    assert (bench.where(author) / ".hg/store").stat().st_ino == store
    assert "worker died" not in (bench.folder / "mirror.log").read_text()


def test_what_needs_more_memory_than_a_worker_may_take_waits_apart(bench: Bench) -> None:
    bench.serve_master()
    author, neighbour = bench.author("repo"), bench.author("neighbour")
    bench.send(author, neighbour)
    with bench.process(worker_memory_bytes=MEMORY):
        bench.wait_applied(author, neighbour)
        author.push({"large": bytes(MEMORY // 2)})
        bench.send(author)
        bench.wait_detached(author, "blob-missing")
        eventually(lambda: bench.notes()[0].attempts >= 2, "its repair is retried")
        neighbour.push()
        bench.send(neighbour)
        bench.wait_applied(neighbour)
        assert "worker-memory-bytes" in bench.wait_detached(author, "blob-missing").note
    with bench.process():
        bench.wait_applied(author)
    assert "worker died" not in (bench.folder / "mirror.log").read_text()


def test_hostile_records_stop_no_mirror_and_no_start_of_one(bench: Bench) -> None:
    neighbour = bench.author("neighbour")
    state = {"incarnation": "a" * 32, "path": "r", "generation": 1, "seq": 1, "event": "b" * 32, "digest": "c" * 64}
    state |= {"released": 1, "noticed": 0, "roster": 1}
    (bench.root / "victim").mkdir()
    (bench.root / "victim" / "file").write_text("kept")
    records = [
        NewRecord(topic=STATE, key="aggregator", value=b'{"time":1e300,"roster":1,"held":0}'),
        NewRecord(topic=STATE, key="aggregator", value=b'{"time":1e999,"roster":1,"held":0}'),
        NewRecord(topic=STATE, key="../../victim", value=json.dumps({**state, "repository": "../../victim"}).encode()),
        NewRecord(
            topic=STATE, key="d" * 32, value=json.dumps({**state, "repository": "d" * 32, "path": "\udcff"}).encode()
        ),
        NewRecord(topic=ROSTER, key="roster", value=b'{"version":' + b"9" * 400 + b"}"),
        NewRecord(topic=ACKS, key=NAME, value=b'{"mirror":"alpha","time":1e999}'),
        NewRecord(topic=EVENTS, key="d" * 32, value=framed({"event": {"seq": 1e308, "time": 1e308}}, b"")),
    ]
    for _ in range(2):
        with bench.mirror():
            bench.log.append(records)
            neighbour.push()
            bench.send(neighbour)
            bench.wait_applied(neighbour)
            eventually(bench.everything_passed, "the positions pass")
    eventually(lambda: {record.topic for record in bench.errors()} == {STATE, ROSTER, EVENTS}, "the records in errors")
    assert (bench.root / "victim" / "file").read_text() == "kept"
    assert bench.notes() == []


def test_a_hostile_records_repository_is_set_apart_from_its_neighbour(bench: Bench) -> None:
    author, neighbour = bench.author("repo"), bench.author("neighbour")
    author.push()
    neighbour.push()
    bench.send(author, neighbour)
    deep = b"[" * 100_000
    values = [b"", b"VCR1", struct.pack(">4sI", b"VCR1", len(deep)) + deep, os.urandom(1000), b"VCR1" + b"\xff" * 4]
    with bench.mirror():
        bench.wait_applied(author, neighbour)
        bench.log.append([NewRecord(topic=EVENTS, key=author.repository, value=value) for value in values])
        bench.log.append([NewRecord(topic=EVENTS, key="f" * 32, value=os.urandom(50), partition=0)])
        bench.wait_detached(author)
        neighbour.push()
        bench.send(neighbour)
        bench.wait_applied(neighbour)
        eventually(lambda: len(bench.errors()) >= 2, "the records in errors")
        author.push()
        bench.send(author)
        bench.wait(lambda acks: acks[author.repository].applied >= 2, "not lost")
        eventually(bench.everything_passed, "the positions pass")
    assert {record.repository for record in bench.errors()} == {author.repository, None}
