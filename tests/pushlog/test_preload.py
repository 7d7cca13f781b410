# SPDX-License-Identifier: GPL-2.0-or-later
"""The input of a server over SSH, which imports modules while no request is there."""

import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pushlog import preload

MODULES = ("awaited_first", "awaited_second")


class Client:
    """A pipe to a server's input, whose server awaits MODULES."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        reads, self.writes = os.pipe()
        self._raw = io.FileIO(reads, "rb")
        self.warned: list[bytes] = []
        self.input = io.BufferedReader(preload._Requests(self._raw, SimpleNamespace(warn=self.warned.append)))

    def send(self, request: bytes) -> None:
        os.write(self.writes, request)

    def write_module(self, name: str, content: str) -> None:
        (self._folder / f"{name}.py").write_text(content)

    def sends_in(self, name: str, request: bytes) -> None:
        """Let the client send a request while the server imports this module."""
        self.write_module(name, f"import os\nos.write({self.writes}, {request!r})\n")

    def close(self) -> None:
        self._raw.close()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(preload, "_awaited", list(MODULES))
    made = Client(tmp_path)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
        made.write_module(name, "")
    yield made
    made.close()


def loaded() -> list[str]:
    return [name for name in MODULES if name in sys.modules]


def test_a_request_that_is_there_is_read_before_any_import(client: Client) -> None:
    client.send(b"hello\n")
    assert client.input.readline() == b"hello\n"
    assert loaded() == []


def test_modules_are_imported_until_a_request_is_there(client: Client) -> None:
    client.sends_in("awaited_second", b"hello\n")
    assert client.input.readline() == b"hello\n"
    assert loaded() == list(MODULES)


def test_a_request_waits_for_one_module_at_most(client: Client) -> None:
    client.sends_in("awaited_first", b"hello\n")
    assert client.input.readline() == b"hello\n"
    assert loaded() == ["awaited_first"]


def test_requests_in_the_buffer_are_read_before_any_import(client: Client) -> None:
    client.send(b"hello\nbetween\n")
    assert [client.input.readline(), client.input.readline()] == [b"hello\n", b"between\n"]
    assert loaded() == []


def test_a_client_that_left_ends_the_input_without_an_import(client: Client) -> None:
    os.close(client.writes)
    assert client.input.readline() == b""
    assert loaded() == []


@pytest.mark.parametrize("content", ["raise ImportError", "raise RuntimeError", "not python"])
def test_a_module_that_cannot_be_imported_keeps_no_request_waiting(client: Client, content: str) -> None:
    client.write_module("awaited_first", content)
    threading.Timer(0.2, client.send, [b"hello\n"]).start()
    assert client.input.readline() == b"hello\n"
    assert loaded() == []
    assert client.warned[0].startswith(b"cannot load awaited_first: ")


def test_a_signal_in_an_import_ends_the_server(client: Client) -> None:
    client.write_module("awaited_first", "from mercurial import error\nraise error.SignalInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        client.input.readline()


def test_a_bundle_larger_than_the_buffer_arrives_whole(client: Client) -> None:
    bundle = bytes(range(256)) * 200
    client.send(bundle)
    assert client.input.read(len(bundle)) == bundle


def test_an_input_that_is_no_file_is_served_as_it_is() -> None:
    served = []
    given = io.BytesIO(b"hello\n")
    preload.serve(lambda *arguments: served.append(arguments[2]), SimpleNamespace(fin=None), None, given, None, None)
    assert served == [given]
