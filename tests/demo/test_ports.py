# SPDX-License-Identifier: GPL-2.0-or-later
"""Ports that a search found stay free until their servers listen."""

import random
import socket

import pytest

from hgext.vcsreplicator.demo.ports import RANGE, free_port


def test_no_port_is_found_twice() -> None:
    found = [free_port() for _ in range(1500)]
    assert len(set(found)) == len(found)


def test_a_server_can_listen_where_a_port_was_found() -> None:
    for _ in range(50):
        port = free_port()
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port


def test_ports_are_below_those_that_linux_gives_by_itself() -> None:
    assert {free_port() for _ in range(50)} <= set(RANGE)
    assert RANGE.stop <= 32_768


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        used, draw = server.getsockname()[1], random.choice
        draws = iter([used])
        monkeypatch.setattr(random, "choice", lambda ports: next(draws, None) or draw(ports))
        assert free_port() != used
        assert next(draws, None) is None
