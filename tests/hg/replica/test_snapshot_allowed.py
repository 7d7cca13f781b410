# SPDX-License-Identifier: GPL-2.0-or-later
"""Which clients may copy a repository with its hidden changesets, by the address that the web server saw."""

from types import SimpleNamespace
from typing import Any

import pytest
from mercurial import ui as uimod

from hgext.vcsreplicator.hg.master import offer
from hgext.vcsreplicator.words.errors import Unavailable
from pushlog.versions import initialize

initialize()


def asked(allowed: bytes, environment: dict[bytes, bytes], headers: dict[bytes, bytes] | None = None) -> None:
    """A request as a WSGI server hands it over."""
    ui: Any = uimod.ui()
    ui.setconfig(b"vcsreplicator", b"snapshot-allow", allowed)
    request = SimpleNamespace(
        rawenv=environment, headers=headers or {}, remoteuser=None, remotehost=environment.get(b"REMOTE_HOST")
    )
    offer.check_allowed(ui, SimpleNamespace(name=b"http-v1", _req=request))


def test_a_network_counts_behind_a_server_that_gives_the_address_alone():
    asked(b"10.1.0.0/16", {b"REMOTE_ADDR": b"10.1.2.3"})


def test_a_host_name_is_not_an_address():
    with pytest.raises(Unavailable, match=r"this client may not copy"):
        asked(b"10.1.0.0/16", {b"REMOTE_HOST": b"10.1.2.3"})
    with pytest.raises(Unavailable, match=r"a client at 192\.0\.2\.7"):
        asked(b"10.1.0.0/16", {b"REMOTE_ADDR": b"192.0.2.7", b"REMOTE_HOST": b"10.1.2.3"})


@pytest.mark.parametrize("environment", [{}, {b"REMOTE_ADDR": b""}, {b"REMOTE_ADDR": b"unix:"}])
def test_a_server_that_gives_no_address_lets_no_client_in_by_network(environment: dict[bytes, bytes]) -> None:
    with pytest.raises(Unavailable):
        asked(b"0.0.0.0/0, ::/0", environment)


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_a_client_behind_a_proxy_has_no_address(header: str) -> None:
    with pytest.raises(Unavailable):
        asked(b"10.1.0.0/16", {b"REMOTE_ADDR": b"10.1.2.3"}, {header.encode(): b"192.0.2.7"})
