# SPDX-License-Identifier: GPL-2.0-or-later
"""A summary is made once, travels as JSON, and is checked where it arrives."""

from collections import Counter
from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import ACKS, ROSTER
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.status.findings import findings
from hgext.vcsreplicator.status.summary import Expectations, Summary, make_summary
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.levels import Lag, ServiceReport, ServiceTrouble
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import from_json, to_json
from tests.status.test_status import ALPHA, Installation


@pytest.fixture
def busy() -> Installation:
    """A mirror that is behind, one that is not in the roster, one that is silent, and a destination that is behind."""
    made = Installation()
    beta = Mirror(name="beta", state=MirrorState.ACTIVE)
    made.write(ROSTER, KEY, Roster(mirrors=(ALPHA, beta)))
    made.ack(2)
    made.write(ACKS, f"gone/{made.chain.repository}", made.chain.ack("gone", 1))
    made.delivered(1)
    return made


def test_a_summary_is_the_same_after_its_way_as_json(busy: Installation) -> None:
    picture = busy.picture(after=100.0)
    made = make_summary(picture, busy.clock.now(), Expectations(destinations=("lines", "pulse"), relay="hg://master"))
    assert len(made.mirrors) == 2
    assert {line.name for line in made.services} == {"relay hg://master", "destination lines"}
    assert len(made.findings) > 2
    assert from_json(Summary, to_json(made)) == made


def test_a_summary_that_is_not_one_is_refused(busy: Installation) -> None:
    whole = to_json(make_summary(busy.picture(), busy.clock.now(), Expectations()))
    for good, bad in ((b'"errors":0', b'"errors":"0"'), (b'"name":"alpha"', b'"name":7'), (b'"now":', b'"then":')):
        assert good in whole
        with pytest.raises(MalformedEvent):
            from_json(Summary, whole.replace(good, bad))


def test_a_summary_finds_what_findings_find_with_the_same_limits(busy: Installation) -> None:
    picture, now = busy.picture(after=100.0), busy.clock.now()
    trouble = ServiceTrouble(text="failing", since=now - 100.0)
    picture.reports["destination lines"] = ServiceReport(time=now, version="1", count=1, troubles=(trouble,))
    seen = set()
    for limits in ({}, {"warn": 1}, {"warn": 1, "critical": 1}, {"patience": 200.0}, {"relay": "x"}):
        for names in (None, ("lines", "pulse")):
            expected = Expectations(destinations=names, **limits)  # type: ignore[arg-type]
            wanted = findings(picture, now, destinations=names, **limits)  # type: ignore[arg-type]
            assert list(make_summary(picture, now, expected).findings) == wanted
            seen.add(tuple(wanted))
    assert len(seen) == 10, "each limit makes a difference"


def test_the_lags_of_a_mirror_are_measured_once(busy: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    picture, measured = busy.picture(after=100.0), Counter[str]()
    measure = Picture.measure_lags

    def count(self: Picture, mirror: str) -> list[tuple[object, Lag]]:
        measured[mirror] += 1
        return measure(self, mirror)  # type: ignore[return-value]

    monkeypatch.setattr(Picture, "measure_lags", count)
    made = make_summary(picture, busy.clock.now(), Expectations())
    assert any("makes no progress" in finding.text for finding in made.findings)
    assert measured == {"alpha": 1, "beta": 1}


def test_a_service_that_never_reported_is_silent_for_long_and_another_since_its_report(busy: Installation) -> None:
    made = make_summary(busy.picture(), busy.clock.now(), Expectations(relay="hg://master"))
    assert made.measure_silence("relay hg://master") > 1e9
    assert made.measure_silence("destination lines") == 0.0
    later = replace(made, now=made.now + 5.0)
    assert later.measure_silence("destination lines") == 5.0
    assert replace(made, now=made.now - 5.0).measure_silence("destination lines") == 5.0
