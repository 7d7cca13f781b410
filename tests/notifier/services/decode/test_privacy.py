# SPDX-License-Identifier: GPL-2.0-or-later
"""What identifies a client is in nothing that a decoder says: outputs, rejects, log lines, metrics, standard streams.

The bodies of these messages are innocent, and the words to be found are in attributes alone. `test_decoding` has any bodies.
"""

import base64
import contextlib
import gzip
import io
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import prometheus_client
import pytest
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hgext.vcsreplicator.log import ERRORS, NewRecord
from hgext.vcsreplicator.words.clock import SystemClock
from notifier.messages.raw import RawMessage, to_line
from notifier.services.decode.decoding import Tools
from notifier.services.decode.documents import DocumentSchemas, load_schemas
from notifier.services.decode.geo import GeoLookup, open_geo
from notifier.services.decode.loop import DecodeLoop
from notifier.services.decode.rejection import ErrorType
from notifier.services.decode.repeats import Repeats
from notifier.services.decode.routing import Outputs
from notifier.services.decode.settings import SHIPPED, DecodeSettings
from notifier.services.decode.sources import RawArrival
from testing.builders.notifier.submissions import HGPUSH, TELEMETRY, a_document, a_raw
from tests.notifier.services.decode.test_decoding import PLANTED, BrokenDatabase, agents, forwarded

# Innocent bodies, each read in another way.
BODIES = (
    json.dumps(a_document()).encode(),
    gzip.compress(json.dumps(a_document()).encode(), mtime=0),
    b'{"version": 4}',
    b'{"changesetID": "no"}',
    b"[]",
    b"no json",
    b"\x1f\x8b\x08",
    b"",
)
# Attributes of a reject that are as the client sent them, to be decoded again: no other may have a word of theirs.
AS_SENT = ("uri", "args")

words = st.sampled_from(PLANTED)
uris = st.one_of(
    st.sampled_from([HGPUSH, TELEMETRY, "/submit/eng-workflow/hgpush/1", HGPUSH.replace("/1/", "/9/")]),
    words.map("/submit/eng-workflow/hgpush/1/{}".format),
    words.map(f"{HGPUSH}/{{}}".format),
    words.map("/{}".format),
)
attributes = st.fixed_dictionaries(
    {
        "submission_timestamp": st.sampled_from(["2026-11-23T14:00:00.123456Z"] * 3 + ["yesterday", ""]),
        "uri": uris,
        "protocol": st.just("HTTP/1.1"),
        "method": st.just("POST"),
    },
    optional={
        "args": st.one_of(words, words.map("v=4&from={}".format), words.map("v={}".format), st.just("v=4")),
        "x_forwarded_for": forwarded,
        "remote_addr": words,
        "user_agent": agents,
        "X-Forwarded-For": words,
        "remote_port": words,
        **dict.fromkeys(PLANTED, words),
    },
)
raw_lines = st.builds(RawMessage, st.sampled_from(BODIES), attributes).map(to_line)
lines = st.one_of(
    raw_lines,
    raw_lines,
    st.builds(lambda line, end: line[:-end], raw_lines, st.integers(1, 300)),
    raw_lines.map(lambda line: line.replace(b'"payload": "', b'"payload": "!')),
    raw_lines.map(lambda line: line.replace(b'"attributeMap"', b'"attributes"')),
    words.map(str.encode),
)


@dataclass
class OneBatch:
    """A source with one batch of lines, which then stops the loop; it keeps what is written to the log."""

    lines: Sequence[bytes]
    stop: threading.Event
    written: list[NewRecord] = field(default_factory=list)

    kept_in: str | None = None

    def keep_whole(self, arrivals: Sequence[RawArrival]) -> None:
        """The topic still has them."""

    def read(self, timeout: float, limit: int) -> list[RawArrival]:
        return [RawArrival(line=line, place="raw", offset=number) for number, line in enumerate(self.lines)]

    def acknowledge(self, records: Sequence[NewRecord], arrivals: Sequence[RawArrival]) -> None:
        self.written += records
        if len(self.written) == len(self.lines):
            self.stop.set()

    def renew(self) -> None:
        """It has no position."""

    def keep_alive(self) -> None:
        """No broker waits for it."""

    def finish(self) -> None:
        """Nothing is left to do."""


def private(body: bytes, **more: str) -> bytes:
    """A raw message with such words."""
    return to_line(a_raw(body, x_forwarded_for=PLANTED[0], remote_addr=PLANTED[3], user_agent=PLANTED[4], **more))


# A message for every kind of reject but one, and twice one that is decoded.
EVERY_KIND = [
    *(private(body) for body in (*BODIES, BODIES[0])),
    private(BODIES[0], submission_timestamp="yesterday"),
    private(BODIES[0], uri=f"{HGPUSH}/{PLANTED[0]}"),
    private(BODIES[0], uri=TELEMETRY, args=f"v={PLANTED[0]}"),
    private(b" " * 30_000),
    private(BODIES[0]).replace(b'"payload": "', b'"payload": "!'),
    private(BODIES[0])[:-9],
]


def said(batch: Sequence[bytes], tools: Tools) -> Iterator[tuple[str, str]]:
    """All that a decoder says of a batch, each with what it is."""
    source: Any = OneBatch(batch, threading.Event())
    clock = SystemClock()
    loop = DecodeLoop(source, Outputs(DecodeSettings(), None), Repeats(None, clock), tools, clock)
    with structlog.testing.capture_logs() as logged:
        loop.work(source.stop)
    assert len(source.written) == len(batch)
    yield "log lines", repr(logged)
    for record in source.written:
        value = json.loads(record.value)
        if record.topic == ERRORS:
            for name in AS_SENT:
                value["attributes"].pop(name, None)
            yield "payload of a reject", repr(base64.b64decode(value["value"]))
        yield record.topic, json.dumps([value, record.key, dict(record.headers)])


@pytest.fixture(scope="module")
def all_tools(places: Path) -> tuple[Tools, Tools]:
    """Those of the decoder, and the same with places whose lookup fails by exceptions that quote the address."""
    anything = {("telemetry", "main", "4"): jsonschema.Draft202012Validator({})}
    schemas = DocumentSchemas({**load_schemas(SHIPPED).validators, **anything})
    geo = open_geo(str(places / "geo.mmdb"), str(places / "cities.txt"), 0, 1)
    broken: Any = BrokenDatabase(KeyError, LookupError, RuntimeError)
    return Tools(schemas=schemas, geo=geo, largest=20_000), Tools(schemas=schemas, geo=GeoLookup(database=broken))


@contextlib.contextmanager
def recording_logs(stream: io.StringIO) -> Iterator[None]:
    """Write what the standard library's loggers say, from debug on, to a stream."""
    root, handler = logging.getLogger(), logging.StreamHandler(stream)
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


MANY = pytest.param(500, marks=[pytest.mark.slow, pytest.mark.hunt, pytest.mark.timeout(3600)], id="many")


@pytest.mark.parametrize("times", [2, MANY])
def test_what_identifies_a_client_is_in_nothing_that_a_decoder_says(
    times: int,
    all_tools: tuple[Tools, Tools],
    capfd: pytest.CaptureFixture[str],
    told: Callable[[object], None],
) -> None:
    kinds, sizes = set(), Counter[int]()

    @settings(max_examples=times * settings.default.max_examples)
    @example(EVERY_KIND, all_tools[0])
    @example(EVERY_KIND, all_tools[1])
    @given(st.lists(lines, min_size=1, max_size=5), st.sampled_from(all_tools))
    def check(batch: Sequence[bytes], tools: Tools) -> None:
        sizes[len(batch)] += 1
        for what, text in said(batch, tools):
            kinds.update(re.findall('"error_type": "([a-z0-9]+)"', text))
            assert not [word for word in PLANTED if word in text], what

    lines_of_libraries = io.StringIO()
    with recording_logs(lines_of_libraries):
        check()
    assert kinds == set(ErrorType)
    streams = "".join(capfd.readouterr())
    metrics = prometheus_client.generate_latest().decode()
    assert "vcsreplicator_decode_rejects_total" in metrics
    for what, text in (
        ("streams", streams),
        ("log lines of libraries", lines_of_libraries.getvalue()),
        ("metrics", metrics),
    ):
        assert not [word for word in PLANTED if word in text], what
    told(f"decoder, private words: {sum(size * count for size, count in sizes.items())} messages, found in none")
