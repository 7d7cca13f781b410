# SPDX-License-Identifier: GPL-2.0-or-later
"""The parsers of untrusted bytes: valid inputs of each, and the errors that it documents."""

import functools
import hashlib
import http.client
import io
import json
import os
import struct
import tempfile
import types
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import urllib3
import waitress.adjustments
from mercurial import error, exchange, revsetlang
from mercurial import ui as uimod
from mercurial.utils import cborutil

from hgext.vcsreplicator.cli import backup_copy, verify_notice
from hgext.vcsreplicator.hg import parts
from hgext.vcsreplicator.hg.frames import StreamAnswer, answer
from hgext.vcsreplicator.hg.master import intents
from hgext.vcsreplicator.hg.replica import snapshot
from hgext.vcsreplicator.hg.serving import watermark
from hgext.vcsreplicator.hg.serving.paths import Pushes, could_push
from hgext.vcsreplicator.keys import pairs, seal, signed
from hgext.vcsreplicator.log.requests import OperatorRequest
from hgext.vcsreplicator.mirror.supervision import boot
from hgext.vcsreplicator.outbox import file as outbox_file
from hgext.vcsreplicator.outbox.entry import Entry, MirrorNeeds
from hgext.vcsreplicator.outbox.folder import Store
from hgext.vcsreplicator.service import listening
from hgext.vcsreplicator.words import records, roster, rules, wire
from hgext.vcsreplicator.words.errors import BadConfig, Diverged, MalformedEvent, Refused, Rejected, Unavailable
from hgext.vcsreplicator.words.retry import read_retry_after
from hgext.vcsreplicator.words.roster import changes as roster_changes
from hgext.vcsreplicator.words.shape import from_json, parse, to_json
from notifier.clients.database import NOWHERE, read_storable
from notifier.clients.http import connection
from notifier.destinations.webhook import changes
from notifier.destinations.webhook.deliveries import Deliveries, OwedDelivery
from notifier.destinations.webhook.settings import DeliverySettings
from notifier.destinations.webhook.subscriptions import SubscriptionRecord
from notifier.messages import pushes
from notifier.messages.raw import WrongUri, from_line, parse_uri, to_line
from notifier.services.decode import decoding, payload
from notifier.services.decode.documents import load_schemas
from notifier.services.decode.rejection import DecodeReject, DecodingError, ErrorType
from notifier.services.decode.settings import SHIPPED
from notifier.services.guardian import state as guardian_state
from notifier.services.poll import asking
from notifier.services.poll.following import Followed
from pushlog import limit, versions
from pushlog import wire as pushlog_wire
from pushlog.store import entry, frames
from pushlog.store.appendfile import AppendFile, TornRecord
from pushlog.store.rollback import journalled
from pushlog.web import dates, query, search
from testing.builders.aggregator.chains import Chain
from testing.builders.notifier.notices import a_notice
from testing.fuzzing import Parser
from tests.dashboard.conftest import AS_OPERATOR, AS_READER
from tests.fuzz.applications import Refused as RefusedRequest
from tests.fuzz.applications import ask_dashboard, ask_edge, open_page, send_form

T = TypeVar("T")

TESTS = Path(__file__).parents[1]
NOW = 1_500_000_000
NODE = "0123456789" * 4
DEEP = b"[" * 3000
MANIFEST = (
    b'{"files":1,"format":1,"left_out":["x"],"parts":[{"key":"log","kind":"database","path":"/a/log.db"}],"sha256":"",'
    b'"size":1,"time":1.0,"versions":{"python":"3.11.2"}}'
)
COPIED = (
    b'{"group":"hg","mode":384,"name":"log/a","sha256":"00","size":1,"user":"hg"}\n'
    b'{"group":"0","mode":511,"name":"log/b","target":"/c","user":"0"}\n'
)
HUGE = b"9" * 5000
EVENTS = [path.read_bytes() for path in sorted((TESTS / "words/golden").glob("event.*.bin"))]
HEADERS = [event[8 : 8 + int.from_bytes(event[4:8], "big")] for event in EVENTS]
ENTRIES = [
    to_json(Entry(event=wire.decode(event).event, needs=needs))
    for event, needs in zip(EVENTS, MirrorNeeds, strict=False)
]
versions.initialize()


def record(kind: type[T], *values: bytes) -> Parser:
    """A record of JSON, with the parser that all records have."""
    return Parser(
        read=lambda content: from_json(kind, content),
        corpus=[*values, DEEP, b"[" + HUGE + b"]"],
        errors=(MalformedEvent,),
        write=to_json,
    )


def text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """A parser of text, for bytes as HTTP and Mercurial decode them."""
    return lambda content: read(content.decode("utf-8", "surrogateescape"))


@functools.cache
def folder() -> Store:
    """A store in memory, if the machine has some for files."""
    place = tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    os.makedirs(os.path.join(place, "store"))
    return Store(os.path.join(place, "store"))


def put(name: bytes, content: bytes) -> None:
    with open(folder().join(name), "wb") as file:
        file.write(content)


# Files of the store


def frame_file(content: bytes, name: bytes = b"x.log", magic: bytes = b"OBX1") -> AppendFile:
    put(name, content)
    return AppendFile(folder(), name, magic, limit=1024 * 1024)


def read_append_file(content: bytes) -> object:
    file = frame_file(content)
    assert all(len(each.payload) < len(content) for each in file.sound_records())
    file.last()
    return [(each.start, each.end) for each in file.records()]


def read_journalled(content: bytes) -> object:
    put(b"x.log", frames.encode(b"OBX1", b"payload") * 2)
    put(b"journal", content)
    try:
        file = AppendFile(folder(), b"x.log", b"OBX1")
        return file.tail(), [*file.records()], file.last()
    finally:
        os.unlink(folder().join(b"journal"))


def read_outbox(content: bytes) -> object:
    """Read an outbox whose newest record has this payload."""
    put(b"outbox.0001.log", frames.encode(b"OBX1", content))
    outbox = outbox_file.Outbox(folder())
    assert isinstance(outbox.names(), dict)
    assert isinstance(outbox.replaced(), tuple)
    newest = outbox.newest()
    assert newest is None or (isinstance(newest.path, str) and type(newest.seq) is int)
    return [*outbox.kept()]


def read_marks(content: bytes) -> object:
    put(b"outbox.sent", content)
    put(b"outbox.fork", content)
    outbox = outbox_file.Outbox(folder())
    return outbox.sent(), outbox.fork()


def read_watermark(content: bytes) -> object:
    put(watermark.WATERMARK, content)
    put(watermark.SETTINGS, content)
    found = watermark.read_watermark(folder())
    return found, watermark.read_settings(folder(), found)


def read_served(content: bytes) -> object:
    """Read the last push that a mirror serves, from the file that other tools read."""
    put(b"replicated-data", content)
    found = limit.web_limit(types.SimpleNamespace(unfiltered=lambda: types.SimpleNamespace(vfs=folder())))  # type: ignore[arg-type]
    assert found is None or type(found) is int
    return found


def read_subscription(content: bytes) -> SubscriptionRecord:
    """Read a subscription as the notifier fills its database from the log."""
    found = read_storable(SubscriptionRecord, content)
    found.names_foreign_secret()
    return found


def read_manifest(content: bytes) -> backup_copy.Manifest:
    put(b"manifest.json", content)
    return backup_copy.read_manifest(os.fsdecode(folder().join(b"")))


def read_copied_names(content: bytes) -> object:
    """Read the list of files of a copy, whose manifest is right about it."""
    put(b"files.jsonl", content)
    manifest = from_json(backup_copy.Manifest, MANIFEST)
    right = hashlib.sha256(content + to_json(manifest)).hexdigest()
    found = list(backup_copy.read_entries(os.fsdecode(folder().join(b"")), replace(manifest, sha256=right)))
    assert not any(os.path.normpath(f"/x/{each.name}") != f"/x/{each.name}" for each in found)
    return found


@functools.cache
def no_deliveries() -> Deliveries:
    return Deliveries(NOWHERE)


def change_webhooks(content: bytes) -> str:
    """Carry out what an operator asks of webhooks, as the log has it."""
    argument = parse(content, "request")
    if not isinstance(argument, dict):
        raise MalformedEvent("expected an object")
    request = OperatorRequest(1, "hooks", str(argument.pop("kind", "")), argument, "dana", 1.0, None, None)
    return changes.carry_out(request, no_deliveries(), DeliverySettings(database="/unused"), now=1.0)


def read_boot_file(content: bytes) -> boot.BootMark | None:
    (Path(os.fsdecode(folder().join(b""))) / boot.FILE).write_bytes(content)
    return boot.read(os.fsdecode(folder().join(b"")))


def read_cuts(content: bytes) -> object:
    cuts = journalled.parse_cuts(content)
    journalled.check(cuts, ())
    return cuts


def read_saved(content: bytes) -> object:
    saved = journalled.parse_saved(content)
    journalled.check((), saved)
    return saved


def read_intent(content: bytes) -> object:
    intent = from_json(intents.Intent, content, limit=intents.LIMIT)
    intents.confine(intent, "/repos", {"/repos": "", "/more": "more"})
    return intents.act_of(intent)


# What Mercurial's clients and masters send


def read_bundle(content: bytes) -> object:
    bundle: Any = exchange.readbundle(uimod.ui(), io.BytesIO(content), None)
    return parts.check_push(lambda *_: None, None, bundle, [], b"serve", b"")  # type: ignore[arg-type]


def part(name: bytes, *pieces: bytes) -> bytes:
    head = bytes([len(name)]) + name + struct.pack(">IBB", 0, 0, 0)
    return b"".join(struct.pack(">i", len(each)) + each for each in (head, *pieces)) + bytes(4)


def read_answer(content: bytes) -> object:
    found = StreamAnswer(io.BytesIO(content))
    body = b"".join(found.frames())
    return snapshot.read_state(found), body


def read_master_header(content: bytes) -> object:
    """Read an answer that is whole, with any header."""
    whole = struct.pack(">I", len(content)) + content + bytes(4)
    return read_answer(whole + hashlib.sha256(content).digest())


STATE = {
    "level": {"repository": "a" * 32, "incarnation": "b" * 32, "path": "p", "generation": 1, "seq": 1,
              "id": "c" * 32, "digest": "d" * 64},
    "after": {"length": 1, "node": NODE}, "phases": {"1": [NODE]}, "bookmarks": {"x": NODE}, "last_push": 1, "markers": 0,
    "hgrc": {"ui": {"a": "b"}},
}  # fmt: skip


# HTTP


def read_request(content: bytes) -> object:
    adjustments = waitress.adjustments.Adjustments(max_request_body_size=1000)
    adjustments.find_largest = lambda method, path, query: (
        2000 if could_push(b"/", Pushes.EVERYWHERE, method, path, query) else 999
    )
    parser = listening._Parser(adjustments)
    while content and not parser.completed:
        taken = parser.received(content)
        assert taken > 0
        content = content[taken:]
    parser.close()
    return None


class FakeSocket:
    """A socket from which an answer can be read."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._content)


def read_final_answer(content: bytes) -> object:
    found = connection.FinalAnswer(FakeSocket(content), method="POST")  # type: ignore[arg-type]
    found.begin()
    response = urllib3.HTTPResponse(found, headers=found.headers.items(), status=found.status, preload_content=False)
    read_retry_after(response.headers.get("retry-after"), NOW)
    return response.read(connection.ANSWER_BYTES)


def read_links(content: bytes) -> object:
    response = httpx.Response(200, headers=[(b"link", content), (b"etag", content)])
    url = "https://hg.example/repo/json-pushes?version=2"
    found = asking.find_link(url, response)
    assert found is None or found.startswith("https://hg.example/repo/json-pushes")
    return asking.find_etag(response)


# The decoder


@functools.cache
def tools() -> decoding.Tools:
    return decoding.Tools(schemas=load_schemas(SHIPPED), largest=10_000)


def decode_line(content: bytes) -> object:
    found = decoding.decode(content, tools())
    if isinstance(found, DecodeReject):
        assert found.kind != ErrorType.UNEXPECTED, found.errors["stack_trace"]
    else:
        json.loads(found.body)
    return found


def decode_body(content: bytes) -> object:
    raw = from_line(RAW)
    return decode_line(to_line(type(raw)(content, raw.attributes)))


def read_raw(content: bytes) -> object:
    return from_line(content)


RAW = json.dumps(
    {
        "attributeMap": {
            "submission_timestamp": "2026-11-23T14:00:00.000000Z",
            "uri": "/submit/eng-workflow/hgpush/1/2c3a0767-d84a-4d02-8a92-fa54a3376049",
            "protocol": "HTTP/1.1",
            "method": "POST",
            "user_agent": "Mozilla/5.0 (X11; Linux x86_64; rv:120.0) Gecko/20100101 Firefox/120.0",
            "args": "v=4",
        },
        "payload": "eyJ2ZXJzaW9uIjogMX0=",
    }
).encode()
DOCUMENT = json.dumps({"changesetID": NODE, "reviewSystemUsed": "phabricator", "version": 1, "clientInfo": {}}).encode()

PUSHES = json.dumps(
    {
        "lastpushid": 2,
        "pushes": {"1": {"changesets": [NODE], "date": NOW, "user": "dana", "obsoletechangesets": ["a" * 40]}},
    }
).encode()


def decide(content: bytes) -> object:
    request = from_json(roster.RosterRequest, content)
    before = from_json(roster.Roster, ROSTER)
    after = roster_changes.decide(before, request, positions={0: 7}, now=NOW)
    return from_json(roster.Roster, to_json(roster_changes.remember(after, request, now=NOW)))


REQUESTS = [
    b'{"id":"r1","mirror":"m2","reason":"","time":1,"verb":"add","who":"op","role":"serving","rules":{"include":["re:a.*"],"exclude":["path:b"]}}',
    b'{"id":"r1","mirror":"m1","reason":"","time":1,"verb":"deactivate","who":"op","repository":"' + b"a" * 32 + b'"}',
    b'{"id":"r1","mirror":"m1","reason":"","time":1,"verb":"rules","who":"op","rules":{"include":["re:a.*"]}}',
    b'{"allow":true,"id":"r1","reason":"","time":1,"verb":"allow-empty","who":"op"}',
    b'{"id":"r1","key":"x25519:' + b"A" * 43 + b'=","mirror":"m1","reason":"","time":1,"verb":"add-key","who":"op"}',
]
ROSTER = (
    b'{"aggregator_keys":["x25519:' + b"A" * 43 + b'="],"mirrors":[{"name":"m1","since":1,"state":"active",'
    b'"joined":{"0":3},"rules":{"include":["path:x"]}}],"recent":[],"version":3}'
)
ACK = json.dumps(
    {"mirror": "m", "repository": "a" * 32, "incarnation": "b" * 32, "applied": 3, "serving": 2, "event": "c" * 32,
     "digest": "d" * 64,
     "applied_at": 1.5, "served_at": 1.5, "detached": "disk", "floor": 1}
).encode()  # fmt: skip
HEARTBEAT = b'{"mirror":"m","time":1.5,"positions":{"0":5},"version":"1","instance":"x@y","format":2}'
QUEUE_REPORT = b'{"id":1,"messages":9,"owner":"a@b.example","queue":"q","time":1.5,"what":"near its limit"}'
REPORT = (
    b'{"count":2,"instance":"a","is_standby":true,"partitions":16,"time":1.5,"troubles":[{"is_urgent":true,"since":1,'
    b'"text":"x"}],"version":"1","works":["x"]}'
)
SUBSCRIPTION = json.dumps(
    {"content": '{"secrets":[{"command":["x"]}],"url":"https://a/"}', "created_at": 1.0, "origin": "command"}
).encode()
OWED = (
    b'{"attempt":0,"body":"{}","created_at":1e6,"mature_at":1,"message":"m","number":2,"replay":"","repo_url":"u",'
    b'"repository":"r","sequence":1,"state":"queued","subscription":"ci","type":"t"}'
)
WEBHOOK_REQUESTS = [
    b'{"kind":"subscribe","name":"ci","subscription":{"filter":"data.x","headers":{"a":"b"},"url":"https://a/"}}',
    b'{"kind":"pause-subscription","name":"ci"}',
    b'{"kind":"unsubscribe","name":"\\ud800"}',
    b'{"deliveries":[["ci","m","\\ud800"]],"exhausted":"ci","kind":"redeliver"}',
]
BOOT = json.dumps({"boot": "a", "machine": "m", "lacking": {"a" * 32: ["project/x", "b" * 32, 5]}}).encode()
STATE_RECORD = json.dumps(
    {"repository": "a" * 32, "incarnation": "b" * 32, "path": "p", "generation": 1, "seq": 2, "event": "c" * 32, "digest": "d" * 64,
     "released": 1, "noticed": 1, "roster": 1, "stays": [{"path": "q", "generation": 1, "until": 1}], "serials": {"m": 4}}
).encode()  # fmt: skip


def pack_event(header: bytes) -> object:
    """Read an event whose frame is sound, with any header."""
    return wire.decode(struct.pack(">4sI", wire.MAGIC, len(header)) + header)


def write_event(frame: Any) -> bytes:
    return wire.pack_frame(frame.header, frame.body)


def write_header(frame: Any) -> bytes:
    return to_json(frame.header)


def read_seal(content: bytes) -> object:
    found = seal.read_seal(content.decode("utf-8", "surrogateescape"))
    return found if found is None else seal.is_sealed(found, {KEY.pair: KEY}, key="m/r", value=content)


KEY = seal.SealKey(pair="0123456789abcdef", secret=b"k" * 32)


# Signed notices

AGGREGATOR, MIRROR = (pairs.make_pair(letter * 32) for letter in (b"a", b"m"))


def make_signed(count: int) -> tuple[str, bytes]:
    """A notice that this number of mirrors signed, and another one did not; and its line of JSON."""
    chain = Chain("x")
    chain.take(3)
    notice = a_notice(chain.events[2], {"changegroup.1": "5" * 32})
    acks = [signed.sign_ack(MIRROR, chain.ack(f"m{number}", 3, time=1e9)) for number in range(count)]
    line = signed.sign_notice(AGGREGATOR, notice, (*acks, chain.ack("beta", 3, time=1e9)))
    message = {
        "type": "changegroup.1",
        "data": {"heads": [*notice.event.changes.heads_added], "pushlog_pushes": [{"pushid": 3}]},
        "id": f"{notice.event.id}.changegroup.1",
        "previous": f"{'5' * 32}.changegroup.1",
        "repository": notice.event.repository,
        "sequence": 3,
        "signed": line,
    }
    return line, json.dumps(message).encode()


def verify_line(content: bytes) -> signed.CheckedNotice:
    """Verify and describe a line as `vcsreplicator verify-notice` does."""
    line = content.decode("utf-8", "replace").strip()
    found = verify_notice.check_line(line, [AGGREGATOR.signing], {})
    assert [*verify_notice.describe(found)]
    return found


def verify_text(content: bytes) -> signed.CheckedNotice:
    """Verify a notice whose signature fits, with any text."""
    text = content.decode("ascii", "backslashreplace")
    return verify_line(f"{AGGREGATOR.sign(text)} {text}".encode())


SIGNED = [make_signed(count) for count in (0, 2)]


def write_notice(found: Any) -> bytes:
    return to_json(found.notice)


def read_push_row(content: bytes) -> object:
    return pushlog_wire.parse_row(content)


def write_push_row(push: Any) -> bytes:
    words = [b"%d" % push.id, push.user.encode(), b"%d" % push.date, *map(str.encode, push.nodes)]
    return b" ".join(words)


def parse_search(content: bytes) -> object:
    return search.is_bounded(revsetlang.parse(content[: search.LONGEST]))


def read_date(words: str) -> object:
    found = dates.parse(words, NOW)
    assert abs(found) < 2**63
    return found


def read_query(content: bytes) -> object:
    parameters = dict[str, list[str]]()
    for item in content.decode("utf-8", "surrogateescape").split("&"):
        name, _, value = item.partition("=")
        parameters.setdefault(name, []).append(value)
    found = query.parse(parameters, NOW)
    where, values = query.select_ids(query.window(found, lambda _name, _node: 1, 7))
    assert all(abs(value) < 2**63 for value in values if isinstance(value, int))
    return where


def carry(rule: str) -> object:
    found = rules.Rules(include=(rule,))
    found.carries("integration/autoland")
    return rules.check_rules(found)


FRAMED = frames.encode(b"OBX1", b'{"a":1}') + frames.encode(b"OBX1", b"")
BUNDLE = b"HG20" + bytes(4)
DATES = [
    *(
        b"2015-01-05 10:20:30 +0100",
        b"2015/1/5",
        b"20150105",
        b"1420452000",
        b"yesterday",
        b"3 days ago",
        b"an hour ago",
    ),
    *(
        b"Mon, 05 Jan 2015 10:20:30 GMT",
        b"Jan 5, 2015 10:20",
        b"5 January 2015",
        b"twelve months ago",
        b"now",
        b"999999999 years ago",
    ),
    b"Mon, 05 Jan 2015 10:20:30 +" + HUGE[:30],
]

SUBMIT = b"/submit/eng-workflow/hgpush/1/2c3a0767-d84a-4d02-8a92-fa54a3376049"
OLGA, DANA = (each["authorization"].encode() for each in (AS_OPERATOR, AS_READER))
# A repository that the installation has.
KNOWN = Chain("public/firefox").repository.encode()
FORM = b"kind=deactivate&target=beta&reason=its+disk+is+full&confirm=yes&token=TOKEN"


def page(path: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"Host: localhost", *headers, b"", b""])


PARSERS = {
    "frames": Parser(
        read=lambda content: frames.decode(b"x.log", b"OBX1", content, 0, 0).payload,
        corpus=[FRAMED],
        errors=(TornRecord,),
        write=lambda found: frames.encode(b"OBX1", found),  # type: ignore[arg-type]
    ),
    "append-only file": Parser(read=read_append_file, corpus=[FRAMED, FRAMED * 3], errors=(TornRecord,)),
    "journal of an append-only file": Parser(
        read=read_journalled,
        corpus=[b"x.log\x0023\n", b"00changelog.i\x0064\nx.log\x000\n", b"x.log\0\n", b"x.log\0-5\n"],
        errors=(TornRecord,),
    ),
    "outbox": Parser(read=read_outbox, corpus=[*ENTRIES, DEEP], errors=(MalformedEvent,)),
    "sent mark and fork": Parser(
        read=read_marks,
        corpus=[b'{"end":5,"id":"x","segment":1,"seq":3}', b'{"reason":"r"}', b"the log has incarnation ab of it"],
    ),
    "pushlog fact": Parser(
        read=entry.decode,
        corpus=[entry.encode(entry.Push(id=1, user="dana", date=NOW, nodes=(NODE,))), b'{"deleted":3}', DEEP],
        errors=(ValueError,),
        write=lambda fact: entry.encode(fact),  # type: ignore[arg-type]
    ),
    "pushlog row": Parser(
        read=read_push_row,
        corpus=[f"7 dana smith {NOW} {NODE} {'a' * 40}".encode(), b"7 dana 0", b"1 a b -5 " + NODE.encode()],
        errors=(ValueError,),
        write=write_push_row,
    ),
    "event": Parser(read=wire.decode, corpus=EVENTS, errors=(Rejected,), write=write_event),
    "event's header": Parser(read=pack_event, corpus=[*HEADERS, DEEP], errors=(Rejected,)),
    "outbox entry": record(Entry, *ENTRIES),
    "connection": Parser(
        read=lambda content: wire.read_connection({wire.CONNECTION: content.decode("utf-8", "surrogateescape")}),
        corpus=[(TESTS / "words/golden/connection.1.json").read_bytes().strip(), DEEP],
    ),
    "ack": record(records.Ack, ACK),
    "mirror's heartbeat": record(records.MirrorHeartbeat, HEARTBEAT),
    "state": record(records.RepositoryState, STATE_RECORD),
    "roster": record(roster.Roster, ROSTER),
    "promotion": record(records.MasterRecord, b'{"mirror":"a","replaces":["hg://b"],"source":"hg://a","time":1.0}'),
    "report of a service": record(records.ServiceReport, REPORT),
    "position of the poller": record(Followed, b'{"last":7,"number":1,"tip":"ab","url":"https://h.example/x"}'),
    "report of the guardian": Parser(
        read=functools.partial(guardian_state.read_record, "report/1"),
        corpus=[QUEUE_REPORT, DEEP],
        errors=(MalformedEvent,),
        write=to_json,
    ),
    "subscription in the log": Parser(
        read=read_subscription, corpus=[SUBSCRIPTION, DEEP], errors=(MalformedEvent,), write=to_json
    ),
    "request about webhooks": Parser(
        read=change_webhooks, corpus=[*WEBHOOK_REQUESTS, DEEP], errors=(MalformedEvent, Rejected)
    ),
    "owed delivery": record(OwedDelivery, OWED),
    "manifest of a copy": Parser(read=read_manifest, corpus=[MANIFEST, DEEP], errors=(BadConfig,), write=to_json),
    "files of a copy": Parser(read=read_copied_names, corpus=[COPIED, COPIED * 3, DEEP], errors=(BadConfig,)),
    "file of a power cut": Parser(read=read_boot_file, corpus=[BOOT, b'{"boot":"","machine":"","lacking":{}}', DEEP]),
    "roster request": Parser(read=decide, corpus=REQUESTS, errors=(MalformedEvent, Refused)),
    "seal": Parser(
        read=read_seal,
        corpus=[
            seal.make_seal((KEY,), key="m/r", value=b"", epoch=1, serial=7).encode(),
            b"1 " + HUGE[:19] + b" 1 " + b"a" * 16 + b":" + b"b" * 64,
        ],
    ),
    "signed notice": Parser(
        read=verify_line,
        corpus=[*(line.encode() for line, _ in SIGNED), *(message for _, message in SIGNED), DEEP],
        errors=(MalformedEvent, Refused),
        words=[AGGREGATOR.signing.encode(), MIRROR.signing.encode()],
    ),
    "text of a signed notice": Parser(
        read=verify_text,
        corpus=[line.split(" ", 2)[2].encode() for line, _ in SIGNED],
        errors=(MalformedEvent, Refused),
        write=write_notice,
        words=[b"changegroup.1", b'"phase.1"'],
    ),
    "public key": Parser(read=text(seal.decode_public_key), corpus=[seal.encode_public_key(b"k" * 32).encode()]),
    "rule": Parser(
        read=text(carry),
        corpus=[b"re:a.*b{1,3}", b"path:x/y", b"re:(?i)[[:alpha:]]+\\Z", b"re:(a|b)*"],
        errors=(MalformedEvent,),
    ),
    "journal's cuts": Parser(
        read=read_cuts,
        corpus=[b"00changelog.i\x0064\ndata/x.i\x000\n", b"phaseroots\0" + HUGE + b"\n"],
        errors=(error.Abort,),
    ),
    "journal's backups": Parser(
        read=read_saved,
        corpus=[
            b"2\n\0phaseroots\0journal.backup.phaseroots\x000\nplain\0bookmarks\0journal.backup.bookmarks.bck\x000\n"
        ],
        errors=(error.Abort,),
    ),
    "intent": Parser(
        read=read_intent,
        corpus=[
            b'{"folder":"/repos/a","kind":"renamed","path":"a","repository":"x","seq":1,"to":"/repos/b","to_path":"b","to_root":"/repos"}',
            b'{"folder":"/repos/a","kind":"stripped","path":"a","repository":"x","roots":["'
            + NODE.encode()
            + b'"],"seq":1}',
        ],
        errors=(MalformedEvent,),
    ),
    "watermark": Parser(
        read=read_watermark, corpus=[f"1 3 5 {NODE} 7\n".encode(), b"1 3 yes -\n", b"1 3 5 " + NODE.encode() + b" -\n"]
    ),
    "pushed bundle": Parser(
        read=read_bundle,
        corpus=[
            BUNDLE + bytes(4),
            BUNDLE + part(b"REPLYCAPS", b"x") + part(b"changegroup", b"abc", b"d") + bytes(4),
            BUNDLE + part(b"x", b"abc"),
        ],
        errors=(error.Abort, error.BundleValueError),
    ),
    "master's answer": Parser(
        read=read_answer,
        corpus=[b"".join(answer(STATE, [b"markers", b"[1]"])), b"".join(answer({"error": "Diverged", "message": "x"}))],
        errors=(Unavailable, Diverged),
    ),
    "header of a master's answer": Parser(
        read=read_master_header,
        corpus=[json.dumps(STATE).encode(), b'{"error":"Diverged","message":"x"}', DEEP],
        errors=(Unavailable, Diverged),
    ),
    "push in a master's answer": Parser(
        read=snapshot.read_push,
        corpus=[json.dumps([7, "dana \udcff", NOW, [NODE, "a" * 40]]).encode(), b'[1,"",-5,[]]', DEEP],
        errors=(Unavailable,),
    ),
    "served push id": Parser(
        read=read_served,
        corpus=[
            b"".join(cborutil.streamencode({b"heads": [b"a" * 20] * 2, b"last_push_id": 7})),
            *(b"".join(cborutil.streamencode(value)) for value in (-(2**63), [[b"x"], {b"a": True}], {1, 2}, None)),
            b"\xa1\x81\x01\x02",
            b"\x9f" * 3000,
        ],
    ),
    "search": Parser(
        read=parse_search,
        corpus=[
            b"reverse(user('dana') and not draft())",
            b"tip~3::. or (a - b)",
            b"keyword('x') + date('>2015-01-01')",
            b"a##b",
            b"(" * 2000,
        ],
        errors=(error.ParseError, RecursionError),
    ),
    "date": Parser(read=text(read_date), corpus=DATES, errors=(ValueError,)),
    "query of a page": Parser(
        read=read_query,
        corpus=[
            b"startdate=2015-01-01&enddate=now&user=dana&full=1",
            b"startID=3&endID=7&version=2",
            b"fromchange=a&tochange=b&tipsonly=1",
            b"startdate=" + DATES[-1],
        ],
        errors=(query.BadRequest,),
    ),
    "HTTP request": Parser(
        read=read_request,
        corpus=[
            b"GET /health HTTP/1.1\r\nHost: a.example:80\r\nAccept: */*\r\n\r\n",
            b"POST /x?y=%20 HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 3\r\n\r\nabc",
            b"POST http://a/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ],
        words=[b"chunked", b"Content-Length", b"Transfer-Encoding", b"HTTP/1.0", b"//", b"http://["],
    ),
    "webhook's answer": Parser(
        read=read_final_answer,
        corpus=[
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.1 103 X\r\nLink: a\r\n\r\nHTTP/1.1 503 Y\r\nRetry-After: 120\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nok",
            b"HTTP/1.1 429 Y\r\nRetry-After: Mon, 05 Jan 2015 10:20:30 GMT\r\nContent-Encoding: gzip\r\n\r\n"
            + zlib.compress(b"x", wbits=31),
        ],
        errors=(http.client.HTTPException, urllib3.exceptions.HTTPError, OSError),
    ),
    "Retry-After": Parser(
        read=text(lambda value: read_retry_after(value, NOW)),
        corpus=[b"120", b"Mon, 05 Jan 2015 10:20:30 GMT", DATES[-1], b"Mon, 05 Jan 0000 1:2:3 -0000"],
    ),
    "links of json-pushes": Parser(
        read=read_links,
        corpus=[
            b'<https://hg.example/repo/json-pushes?x=1>; rel="next"',
            b'<?a=b>; rel=next, <c>; rel="x"',
            b'W/"abc"',
        ],
    ),
    "json-pushes": Parser(
        read=lambda content: pushes.read_answer(content, "hg.example"), corpus=[PUSHES, DEEP], errors=(MalformedEvent,)
    ),
    "queue hg": Parser(
        read=pushes.from_body,
        corpus=[pushes.to_body(3, pushes.read_answer(PUSHES, "x").pushes).encode()],
        errors=(MalformedEvent,),
    ),
    "raw message": Parser(read=read_raw, corpus=[RAW, DEEP], errors=(MalformedEvent,), write=to_line),  # type: ignore[arg-type]
    "URI of a submission": Parser(
        read=lambda content: parse_uri(*content.decode("latin-1").partition("?")[::2]),
        corpus=[
            b"/submit/eng-workflow/hgpush/1/2c3a0767-d84a-4d02-8a92-fa54a3376049",
            b"/submit/telemetry/2c3a0767-d84a-4d02-8a92-fa54a3376049/main/Firefox/120.0/release/2023?v=4",
        ],
        errors=(WrongUri,),
    ),
    "message to decode": Parser(read=decode_line, corpus=[RAW, DEEP]),
    "document to decode": Parser(read=decode_body, corpus=[DOCUMENT, zlib.compress(DOCUMENT, wbits=31), DEEP]),
    "request to the edge": Parser(
        read=ask_edge,
        corpus=[
            b"POST " + SUBMIT + b"?v=4&a=%20b HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nUser-Agent: hg\r\n\r\n{}~{}",
            b"PUT "
            + SUBMIT
            + b" HTTP/1.1\r\nContent-Length: 002\r\nX-Forwarded-For: a\r\nX-Forwarded-For: b\r\n\r\n{}",
            b"POST /submit/eng-workflow/build/1 HTTP/1.1\r\nContent-Length: 2\r\nX-Debug-ID: \xff\r\n\r\n{}~gone~",
            b"POST /submit/telemetry/2c3a0767-d84a-4d02-8a92-fa54a3376049/main/Firefox/120.0/release/2023 HTTP/1.1\r\n"
            b"Content-Length: 1000\r\nDNT: 1\r\n\r\n",
            *(b"GET /__%s__ HTTP/1.1\r\n\r\n" % each for each in (b"heartbeat", b"lbheartbeat", b"version")),
        ],
        errors=(RefusedRequest,),
        words=[b"HEAD", b"vcsreplicator", b"notifier", b"origin", b"~", b"~gone~", b"Content-Length", b"1001"],
    ),
    "request to the dashboard": Parser(
        read=ask_dashboard,
        corpus=[
            page(b"/"),
            page(b"/repositories?q=fire&state=late&page=2", b"Cookie: a=b"),
            page(b"/api/repositories.json?q=%2F&page=1", b"Authorization: " + DANA),
            page(b"/api/overview.json"),
            page(b"/pushes/live", b"Last-Event-ID: 3"),
            page(b"/deliveries?state=queued", b"Authorization: " + DANA),
            page(b"/acts", b"X-User: proxied"),
            page(b"/sign-in", b"Authorization: Basic ZGFuYTpj"),
            page(b"/static/style.css", b"Range: bytes=0-9", b"If-None-Match: a"),
            *(page(b"/repository/" + name + more) for name in (b"a" * 32, b"%ff") for more in (b"", b"/event/3")),
            b"POST /acts HTTP/1.1\r\nHost: localhost:80\r\nOrigin: http://localhost:80\r\nContent-Type: "
            b"application/x-www-form-urlencoded\r\nAuthorization: " + OLGA + b"\r\n\r\n" + FORM,
        ],
        errors=(RefusedRequest,),
        words=[
            b"HEAD",
            b"OPTIONS",
            b"127.0.0.1",
            b"[::1]",
            b"evil.example",
            b"same-origin",
            b"Sec-Fetch-Site",
            OLGA,
            DANA,
        ],
    ),
    "address of the dashboard": Parser(
        read=open_page,
        corpus=[
            *(
                b"/repositories?q=fire&state=late&page=2",
                b"/api/repositories.json?page=1&q=%2F",
                b"/deliveries?state=queued",
            ),
            *(
                b"/api/overview.json",
                b"/pushes",
                b"/acts#act-1",
                b"/roster",
                b"/static/style.css",
                b"//localhost/../acts",
            ),
            *(b"/repository/%s/event/3" % name for name in (b"a" * 32, b"%ff", b"%00", KNOWN)),
        ],
        errors=(RefusedRequest,),
        words=[b"?", b"&", b"=", b"%2e%2e", b"%00", b"%ED%A0%80", KNOWN, b"behind", b"live"],
    ),
    "operator's form": Parser(
        read=send_form,
        corpus=[
            FORM,
            b"kind=replay&target=hooks&reason=r&repository=a&since=2026-11-23&token=TOKEN",
            b"kind=redeliver&target=hooks&reason=r&delivery=7&token=TOKEN",
            b"kind=skip&target=pulse-v2&reason=%C3%A4&message=m1&confirm=yes&token=TOKEN",
        ],
        errors=(RefusedRequest,),
        words=[b"pause", b"resume", b"activate", b"%00", b"%ED%A0%80", b"~gone~", b"=", b"&"],
    ),
    "payload": Parser(
        read=lambda content: payload.read_object(payload.unpack(content, 10_000), 10_000),
        corpus=[DOCUMENT, zlib.compress(DOCUMENT, wbits=31), zlib.compress(bytes(50_000), wbits=31)],
        errors=(DecodingError,),
    ),
}
