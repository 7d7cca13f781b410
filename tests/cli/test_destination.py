# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator destination`: what its tables say."""

import pytest

from hgext.vcsreplicator.cli.destination import _list_troubles, _row_of, print_requests
from hgext.vcsreplicator.log.requests import OperatorRequest

NOW = 1_700_000_000.0
CONDITION = {"paused": False, "position": None, "waiting": 3, "oldest": "m1", "oldest_age": 7200.0, "trouble": None}


def test_a_destination_that_read_nothing_yet_has_no_position() -> None:
    row = _row_of("lines", {**CONDITION, "time": NOW}, NOW)
    assert row == ("lines", "delivering", "", "3", "2 h", "2023-11-14 22:13:20")


def test_a_destination_with_troubles_keeps_its_row_short() -> None:
    part = {"trouble": "subscription ci of hooks is failing, last: status 503", "since": NOW}
    failing = {**CONDITION, "trouble": "no route", "since": NOW, "parts": [part], "time": NOW}
    assert _row_of("hooks", failing, NOW)[1] == "failing"
    assert list(_list_troubles(failing)) == [
        "failing since 2023-11-14 22:13:20 UTC: no route",
        "subscription ci of hooks is failing, last: status 503 (since 2023-11-14 22:13:20 UTC)",
    ]


def test_a_listing_of_requests_names_the_zone_of_their_times(capsys: pytest.CaptureFixture[str]) -> None:
    asked = OperatorRequest(1, "lines", "pause", {}, "dana@host", NOW, None, None)
    print_requests([asked], "destination", as_json=False)
    assert capsys.readouterr().out.split("  ")[0].strip() == "asked (UTC)"
