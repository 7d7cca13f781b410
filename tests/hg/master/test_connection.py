# SPDX-License-Identifier: GPL-2.0-or-later
"""What a push carries of its pusher's connection: nothing, unless the master is configured to record it."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.hg.master.pushes import (
    ADDRESS_LIMIT,
    CLIENT_LIMIT,
    FORWARDED_LIMIT,
    pusher_connection,
)
from hgext.vcsreplicator.log import EVENTS, Log, Record
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import PushConnection
from hgext.vcsreplicator.words.wire import CONNECTION, CONNECTION_LIMIT, connection_headers, read_connection
from testing.builders.master.pushing import RECORDED, Master, new_master, running_relay
from testing.warm_hg import shared_python

pytestmark = pytest.mark.processes

ADDRESS, FORWARDED = "203.0.113.7", "198.51.100.99, 192.0.2.4"

# hgweb behind a proxy that adds what the environment says.
SERVE = """
import json, os, sys, wsgiref.simple_server
from mercurial.hgweb import hgweb

application, added = hgweb(os.fsencode(sys.argv[1])), json.loads(os.environ["ADDED"])

def behind_a_proxy(environ, start_response):
    return application({**environ, **added, "REMOTE_USER": "dana"}, start_response)

class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *arguments):
        pass

server = wsgiref.simple_server.make_server("127.0.0.1", 0, behind_a_proxy, handler_class=Quiet)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    with new_master(f"log = sqlite://{tmp_path}/log.db") as master:
        master.create("one")
        master.commit("one", "a")
        yield master


def record_connections(master: Master) -> None:
    master.configure("[vcsreplicator]\nrecord-connection = yes\n")


def newest_event(log: Log) -> Record:
    return max(read_records(log, find_beginnings(log, EVENTS)), key=lambda record: record.headers["ce_sequence"])


@contextmanager
def serving(master: Master, **added: str) -> Iterator[str]:
    """Serve the repository over HTTP; return its URL."""
    environment = {**os.environ, "HGRCPATH": str(master.folder / "master.hgrc"), "ADDED": json.dumps(added)}
    words = [shared_python(environment), "-c", SERVE, str(master.root / "one")]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/"
        finally:
            server.terminate()


def push_over_http(master: Master, url: str) -> str:
    return master.develop("-R", str(master.folder / "clone-one"), "push", url)


def outbox_text(master: Master) -> str:
    files = (master.root / "one/.hg").rglob("*")
    return "".join(file.read_text("latin-1") for file in files if file.is_file())


@pytest.mark.parametrize("relaying", [True, False])
def test_a_push_over_ssh_carries_the_address_alone(
    master: Master, log: Log, relaying: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_connections(master)
    monkeypatch.setenv("SSH_CLIENT", f"{ADDRESS} 50000 22")
    if relaying:
        with running_relay(master.settings(), log):
            assert RECORDED in master.push("one")
    else:
        assert RECORDED in master.push("one")
    record = newest_event(log)
    assert read_connection(record.headers) == PushConnection(address=ADDRESS)
    assert ADDRESS.encode() not in (record.value or b"")


def test_a_push_over_http_carries_address_forwarded_for_and_client(master: Master, log: Log) -> None:
    record_connections(master)
    with serving(master, HTTP_X_FORWARDED_FOR=FORWARDED) as url:
        assert RECORDED in push_over_http(master, url)
    found = read_connection(newest_event(log).headers)
    assert found is not None
    assert (found.address, found.forwarded) == ("127.0.0.1", FORWARDED)
    assert (found.client or "").startswith("mercurial/proto-1.0 (Mercurial ")


def test_a_header_of_any_bytes_and_size_is_no_reason_to_refuse_a_push(master: Master, log: Log) -> None:
    record_connections(master)
    odd = "\xff\x80\x01" * 2000
    with serving(master, HTTP_X_FORWARDED_FOR=odd, HTTP_USER_AGENT=odd, REMOTE_ADDR=odd) as url:
        assert RECORDED in push_over_http(master, url)
    found = read_connection(newest_event(log).headers)
    assert found is not None
    assert "\ufffd" in (found.client or "")


def test_without_the_key_nothing_of_the_connection_is_written_anywhere(
    master: Master, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CLIENT", f"{ADDRESS} 50000 22")
    assert RECORDED in master.push("one")
    master.commit("one", "b")
    with serving(master, HTTP_X_FORWARDED_FOR=FORWARDED, HTTP_USER_AGENT="planted-agent") as url:
        assert RECORDED in push_over_http(master, url)
    for record in read_records(log, find_beginnings(log, EVENTS)):
        assert CONNECTION not in record.headers
    written = outbox_text(master)
    assert ADDRESS not in written
    assert FORWARDED not in written
    assert "planted-agent" not in written


def test_only_pushes_of_clients_carry_a_connection(master: Master, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    record_connections(master)
    monkeypatch.setenv("SSH_CLIENT", f"{ADDRESS} 50000 22")  # an operator's own session
    master.operate("-R", str(master.root / "one"), "pull", str(master.folder / "clone-one"))
    assert newest_event(log).headers["ce_sequence"] == "2"
    assert all(CONNECTION not in record.headers for record in read_records(log, find_beginnings(log, EVENTS)))


def test_the_events_bytes_are_the_same_with_and_without_a_connection(
    master: Master, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older mirror and an older aggregator read the value alone, and know the version that it has."""
    record_connections(master)
    monkeypatch.setenv("SSH_CLIENT", f"{ADDRESS} 50000 22")
    assert RECORDED in master.push("one")
    record = newest_event(log)
    frame = wire.decode(record.value or b"")
    assert wire.encode(frame.event, frame.header.attachment, frame.body) == record.value
    assert frame.event.version == 1
    assert {name for name in record.headers if not name.startswith("ce_")} == {CONNECTION}


def connection_of(*, address: bytes, forwarded: bytes, client: bytes) -> PushConnection | None:
    """What is recorded of a push over HTTP."""
    environment = {b"REMOTE_ADDR": address, b"HTTP_X_FORWARDED_FOR": forwarded, b"HTTP_USER_AGENT": client}
    return pusher_connection(b"remote:http:203.0.113.7:", environment)


def test_what_is_not_known_is_absent() -> None:
    assert connection_of(address=b"", forwarded=b" ", client=b"") is None
    assert connection_of(address=b"::1", forwarded=b"", client=b"") == PushConnection(address="::1")


def test_a_list_of_addresses_keeps_whole_entries_at_its_right() -> None:
    forwarded = b"6.6.6.6, " * 500 + b"198.51.100.1, 10.0.0.7"
    found = connection_of(address=b"", forwarded=forwarded, client=b"")
    assert found is not None
    assert found.forwarded is not None
    assert set(found.forwarded.split(", ")) == {"6.6.6.6", "198.51.100.1", "10.0.0.7"}
    assert found.forwarded.endswith("198.51.100.1, 10.0.0.7")


@given(st.binary(max_size=5000), st.binary(max_size=5000), st.binary(max_size=5000))
def test_any_bytes_make_a_small_header_that_can_be_read(address: bytes, forwarded: bytes, client: bytes) -> None:
    found = connection_of(address=address, forwarded=forwarded, client=client)
    headers = connection_headers(found)
    assert read_connection(headers) == found
    if found is not None:
        assert len(headers[CONNECTION]) < CONNECTION_LIMIT
        assert headers[CONNECTION].isascii()
        assert len(found.address or "") <= ADDRESS_LIMIT
        assert len(found.forwarded or "") <= FORWARDED_LIMIT
        assert len(found.client or "") <= CLIENT_LIMIT
