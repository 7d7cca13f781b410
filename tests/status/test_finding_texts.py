# SPDX-License-Identifier: GPL-2.0-or-later
"""Each finding says who is in trouble, since when, and what an operator types or reads."""

import re
from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import ACKS, ROSTER, SERVICES, STATE
from hgext.vcsreplicator.status.findings import findings
from hgext.vcsreplicator.status.mirrors import find_detached
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.status.summary import make_summary
from hgext.vcsreplicator.status.wording import Finding, Severity, describe_round
from hgext.vcsreplicator.words.records import (
    AggregatorHeartbeat,
    MirrorHeartbeat,
    Reason,
    RoundProgress,
    ServiceReport,
    ServiceTrouble,
)
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.services.cache import CHECKOUT
from tests.status.test_status import ALPHA, Installation

# A time, or why there is none.
SINCE = re.compile(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|since it was added|\bnever\b")
COMMAND = re.compile(r"(vcsreplicator|systemctl|journalctl|hg) [-a-z]|docs/[a-z]+\.md")

# What stays as it is until an operator changes the configuration has no beginning that matters; what a report leaves out follows
# what it names.
TIMELESS = (
    "leaves nothing out",
    "has no topic",
    "is not in the roster",
    "was removed from the roster",
    "more troubles",
)


def detach(installation: Installation, reason: str = "locked", **members: object) -> None:
    """Report the repository as detached on alpha, whose clock is ten minutes ahead."""
    now = installation.clock.now() + 600
    ack = replace(installation.chain.ack("alpha", 2), detached=reason, **{"note": "locked by vm/1:2", **members})  # type: ignore[arg-type]
    installation.write(ACKS, f"alpha/{ack.repository}", ack)
    installation.write(ACKS, "alpha", MirrorHeartbeat(mirror="alpha", time=now, positions={}, version="1"))


def texts(
    installation: Installation, *, beat: MirrorHeartbeat | None = None, after: float = 0.0, **limits: int
) -> list[str]:
    seen = installation.picture(after=after)
    if beat is not None:
        seen.heartbeats["alpha"] = replace(beat, time=beat.time + after)
    found = findings(seen, installation.clock.now(), Expectations(destinations=("lines",), **limits))  # type: ignore[arg-type]
    return [finding.text for finding in found]


def ahead(installation: Installation, **members: object) -> MirrorHeartbeat:
    """Alpha's heartbeat of now, by a clock that is ten minutes ahead."""
    return MirrorHeartbeat(mirror="alpha", time=installation.clock.now() + 600, positions={}, version="1", **members)  # type: ignore[arg-type]


def test_a_detached_repository_is_named_with_reason_time_and_command() -> None:
    installation = Installation()
    detach(installation, detached_since=installation.clock.now() + 600)
    [text] = texts(installation, beat=ahead(installation), after=180.0)
    assert text == (
        "group/one is detached on alpha: locked (for 3 min, since 2023-11-14 22:13:20 UTC): locked by vm/1:2; "
        "end the process that has the lock, then: vcsreplicator heal alpha group/one"
    )


def test_many_repositories_detached_for_one_reason_are_one_finding() -> None:
    installation = Installation()
    now = installation.clock.now()
    for number in range(400):
        chain = Chain(f"group/{number:03}")
        chain.next(time=now)
        ack = replace(chain.ack("alpha", 1), detached="disk", note="no room", detached_since=now + 600 - number)
        installation.write(STATE, chain.repository, state_of(chain.events[-1], released=1, noticed=1))
        installation.write(ACKS, f"alpha/{ack.repository}", ack)
    detach(installation, detached_since=now + 600)
    alone, many = sorted(texts(installation, beat=ahead(installation), after=60.0))[::-1]
    assert alone.startswith("group/one is detached on alpha: locked (for 60 s, since ")
    assert re.fullmatch(
        r"(group/\d{3}, ){2}group/\d{3} and 397 more are detached on alpha: disk \(the first for 8 min, since "
        r"2023-11-14 22:06:41 UTC\): no room; make room on the disk of that mirror, then: vcsreplicator heal alpha",
        many,
    )
    about = {each.repository for each in find_detached(installation.picture(after=60.0), installation.clock.now())}
    assert about == {installation.chain.repository, None}, "only the page of a repository detached alone shows it"


def test_a_detached_repository_without_a_note_has_no_empty_place_for_it() -> None:
    installation = Installation()
    detach(installation, "gap", detached_since=installation.clock.now(), note=None)
    [text] = texts(installation, after=60.0)
    assert "gap (for 60 s, since 2023-11-14 22:13:20 UTC); the mirror tries again by itself, or at once: vcs" in text


def test_an_older_mirror_does_not_say_since_when_one_is_detached() -> None:
    installation = Installation()
    detach(installation)
    [text] = texts(installation)
    assert "locked (its mirror's release does not say since when): locked by vm/1:2; " in text


def test_a_path_with_a_blank_is_quoted_in_the_command_that_heals_it() -> None:
    installation = Installation()
    installation.write(STATE, installation.chain.repository, replace(installation.state, path="group/my own"))
    detach(installation)
    assert texts(installation)[0].endswith(": vcsreplicator heal alpha 'group/my own'")


def test_no_name_that_a_stranger_wrote_adds_a_command_to_ours() -> None:
    installation, odd = Installation(), "x;reboot"
    stranger = replace(installation.chain.ack("alpha", 2), mirror=odd, detached="locked")
    installation.write(ACKS, f"{odd}/{stranger.repository}", stranger)
    report = ServiceReport(time=installation.clock.now(), version="1", count=7)
    installation.write(SERVICES, f"verify {odd}", report)
    heal = f"vcsreplicator heal 'x;reboot' {installation.state.path}"
    commands = [
        [
            finding.command
            for finding in findings(installation.picture(after=after), installation.clock.now(), Expectations())
            if odd in (finding.command or "")
        ]
        for after in (0.0, 2 * 3600.0)
    ]
    assert commands == [
        ["journalctl -u 'vcsreplicator-verify@x;reboot'", heal],
        ["systemctl start 'vcsreplicator-verify@x;reboot'", heal],
    ]


def test_no_name_that_a_stranger_wrote_is_an_option_of_our_command() -> None:
    installation, odd = Installation(), "--config=/tmp/services.toml"
    for key in (odd, "beta"):
        stranger = replace(installation.chain.ack("beta", 2), mirror=odd, detached="locked")
        installation.write(ACKS, f"{key}/{stranger.repository}", stranger)
    found = findings(installation.picture(), installation.clock.now(), Expectations())
    assert not [finding for finding in found if odd in finding.text]


def test_a_repository_unknown_to_the_aggregator_is_healed_by_its_id() -> None:
    installation = Installation()
    installation.log.append([])
    detach(installation, detached_since=installation.clock.now())
    seen = installation.picture()
    seen.states.clear()
    [found] = findings(seen, installation.clock.now(), Expectations(destinations=("lines",)))
    assert found.text.startswith(f"{installation.chain.repository} is detached on alpha: ")
    assert found.text.endswith(f"vcsreplicator heal alpha {installation.chain.repository}")


@pytest.mark.parametrize("reason", [*Reason, "of-a-newer-release"])
def test_each_reason_has_its_step_and_the_command(reason: str) -> None:
    installation = Installation()
    detach(installation, reason, detached_since=installation.clock.now())
    [text] = texts(installation)
    assert re.search(r"; [a-z][^;]*: vcsreplicator heal alpha group/one$", text)


@pytest.mark.parametrize(
    ("note", "step"),
    [
        ("[Errno 28] No space left on device", "make room"),
        ("[Errno 13] Permission denied: '/repos/a/.hg'", "let the user"),
    ],
)
def test_a_file_that_a_mirror_may_not_use_is_not_a_disk_without_room(note: str, step: str) -> None:
    installation = Installation()
    detach(installation, "disk", detached_since=installation.clock.now(), note=note)
    [text] = texts(installation)
    assert f"; {step} " in text


def test_an_older_releases_ack_is_read_and_ours_says_since_when() -> None:
    installation = Installation()
    ack = installation.chain.ack("alpha", 1)
    assert ack.detached_since is None
    older = to_json(ack).replace(b'"detached_since":null,', b"")
    assert b"since" not in older
    assert from_json(type(ack), older) == ack
    beat = b'{"mirror":"alpha","time":1.0,"positions":{},"version":"0.0.9"}'
    assert from_json(MirrorHeartbeat, beat) == MirrorHeartbeat(mirror="alpha", time=1.0, positions={}, version="0.0.9")


def test_a_mirror_that_is_behind_is_named_with_time_and_command() -> None:
    installation = Installation()
    installation.ack(1)
    beat = ahead(installation, oldest=installation.clock.now())  # by the log's clock, which stamped the event
    [text] = texts(installation, beat=beat, after=50.0, warn=2)
    assert text == (
        "mirror alpha is 2 events behind (the oldest for 50 s, since 2023-11-14 22:13:20 UTC); "
        "see: vcsreplicator trace group/one"
    )


def test_a_fresh_event_does_not_hide_how_long_a_repository_is_detached() -> None:
    installation = Installation()
    installation.ack(1)
    beat = ahead(installation, oldest=installation.clock.now() + 49.0)
    [text] = texts(installation, beat=beat, after=50.0, warn=2)
    assert "2 events behind (at least for 50 s, since 2023-11-14 22:13:20 UTC); see: vcsreplicator trace" in text


def test_a_mirror_that_hides_its_backlogs_age_is_behind_since_its_ack() -> None:
    installation = Installation()
    installation.ack(1)
    [text] = texts(installation, after=50.0, warn=2)
    assert "2 events behind (at least for 50 s, since 2023-11-14 22:13:20 UTC); see: vcsreplicator trace" in text


def test_a_destination_that_is_behind_is_named_with_time_and_command() -> None:
    installation = Installation()
    installation.ack(3)
    installation.delivered(1)
    [text] = texts(installation, after=50.0, warn=2)
    assert text == (
        "destination lines is 2 notices behind (the oldest for 50 s, since 2023-11-14 22:13:20 UTC); "
        "see: vcsreplicator destination list"
    )


def break_everything(installation: Installation) -> None:
    """Bring about nearly every finding at once."""
    now = installation.clock.now()
    rules = Rules(exclude=("re:(?!private/)",))
    beta = Mirror(name="beta", state=MirrorState.ACTIVE)
    installation.write(ROSTER, KEY, Roster(mirrors=(replace(ALPHA, rules=rules), beta)))
    forked = replace(installation.state, repository="f" * 32, path="forked", fork="f" * 32, forked_at=now)
    installation.write(STATE, "f" * 32, forked)
    installation.ack(1)
    other = replace(installation.chain.ack("gamma", 1), detached="locked", note="x", detached_since=now)
    installation.write(ACKS, f"gamma/{other.repository}", other)
    installation.delivered(0)


def test_every_finding_says_who_since_when_and_what_to_type() -> None:
    installation = Installation()
    break_everything(installation)
    seen = installation.picture(after=100.0)
    now = installation.clock.now()
    seen.aggregator = AggregatorHeartbeat(time=now, roster=1, held=0)
    seen.heard["aggregator"] = (1, now - 60)
    seen.heartbeats["alpha"] = replace(seen.heartbeats["alpha"], trouble="full", trouble_since=now - 9, oldest=now - 99)
    trouble = ServiceTrouble(text="/r: events wait in its outbox: refused; see: vcsreplicator topics list", since=now)
    report = ServiceReport(time=now, version="1", count=3, troubles=(replace(trouble, is_urgent=True),))
    seen.reports["relay other"], seen.heard["relay other"] = report, (1, now)
    names = ("lines", "pulse")
    seen.heartbeats["delta"], seen.heard["delta"] = replace(seen.heartbeats["alpha"], mirror="delta"), (1, now)
    found = findings(seen, now, Expectations(warn=1, critical=2, destinations=names, relay="hg", mirrors=("delta",)))
    seen.has_services = False
    found += findings(seen, now, Expectations(warn=1, destinations=names))
    seen.heard["destination lines"], seen.has_services = (1, now), True
    found += findings(replace(seen, lacking={}, reports={}), now, Expectations(destinations=names))
    check_words(texts := [finding.text for finding in found])
    check_members(found)
    kinds = (
        "the aggregator", "makes no progress", "events behind", "cannot write", "is silent", "leaves nothing out", "delta runs and",
        "the relay hg", "events wait in its", "more troubles", "notices behind", "is stalled", "never been served",
        "forked is forked: ", "is detached on gamma", "has no topic",
    )  # fmt: skip
    assert [kind for kind in kinds if not any(kind in text for text in texts)] == []


def check_words(texts: list[str]) -> None:
    for text in texts:
        assert re.match(r"(the |mirror |destination |relay )?\S+", text), text
        assert SINCE.search(text) or any(word in text for word in TIMELESS), text
        assert COMMAND.search(text), text


def check_members(found: list[Finding]) -> None:
    """What stands beside a text says the same, and leads to an entry that the runbook has."""
    runbook = (CHECKOUT / "docs/runbook.md").read_text()
    for finding in found:
        assert finding.text.endswith(f": {finding.command}" if finding.command else ""), "pages show it below, once"
        assert (
            finding.command
            or "hg replicateadopt" in finding.text
            or "trouble" in finding.text
            or "refused" in finding.text
        )
        assert finding.entry is None or f"# {finding.entry}\n" in runbook, finding
        assert finding.mirror is None or finding.mirror in finding.text


def verified(installation: Installation, *troubles: ServiceTrouble) -> None:
    """Let the `verify` of alpha report."""
    progress = RoundProgress(done=1, total=2, oldest=installation.clock.now(), differing=len(troubles))
    report = ServiceReport(
        time=installation.clock.now(), version="1", count=len(troubles), troubles=troubles, progress=progress
    )
    installation.write(SERVICES, "verify alpha", report)


def test_a_repository_that_differs_is_critical_with_the_command_that_heals_it() -> None:
    installation = Installation()
    text = "mirror alpha: one: differs at event 3: phases; to copy it again: vcsreplicator heal alpha one --yes"
    verified(installation, ServiceTrouble(text=text, since=installation.clock.now(), is_urgent=True))
    [found] = findings(installation.picture(), installation.clock.now(), Expectations(destinations=("lines",)))
    assert found.text.startswith(f"{text} (for 0 s, since ")
    assert (found.level, found.mirror) == (Severity.CRITICAL, "alpha")
    assert found.entry == "VcsreplicatorMirrorDiffers"


def test_what_could_not_be_compared_twice_is_a_warning() -> None:
    installation = Installation()
    for is_permanent in (False, True):
        trouble = ServiceTrouble(text="one (404)", since=installation.clock.now(), is_permanent=is_permanent)
        verified(installation, trouble)
        found = findings(installation.picture(), installation.clock.now(), Expectations(destinations=("lines",)))
        expected = [(Severity.WARNING, "VcsreplicatorMirrorNotCompared")] if is_permanent else []
        assert [(each.level, each.entry) for each in found] == expected


@pytest.mark.parametrize(
    ("seconds", "is_removed", "count"), [(600, False, 0), (4000, False, 1), (4000, True, 0), (8 * 86400, False, 0)]
)
def test_a_verify_that_was_silent_for_long_is_named_for_a_week(seconds: int, is_removed: bool, count: int) -> None:
    installation = Installation()
    verified(installation)
    if is_removed:
        removed = replace(ALPHA, state=MirrorState.REMOVED)
        installation.write(ROSTER, KEY, Roster(mirrors=(removed,)))
    picture = installation.picture(after=seconds)
    found = findings(picture, installation.clock.now(), Expectations(destinations=("lines",)))
    named = [each for each in found if each.command == "systemctl start vcsreplicator-verify@alpha"]
    assert [each.level for each in named] == [Severity.WARNING] * count


def test_a_mirror_without_a_verify_has_no_finding_and_shows_nothing() -> None:
    installation = Installation()
    summary = make_summary(installation.picture(), installation.clock.now(), Expectations(destinations=("lines",)))
    assert (summary.findings, [line.verified for line in summary.mirrors]) == ((), [None])
    verified(installation)
    summary = make_summary(installation.picture(), installation.clock.now(), Expectations(destinations=("lines",)))
    [line] = summary.mirrors
    assert line.verified is not None
    assert describe_round(line.verified, "3 h ago") == "3 h ago, 1 of 2 in this round"
    some = replace(line.verified, oldest=None, differing=1, failing=2)
    assert describe_round(some, "never") == "not all yet, 1 of 2 in this round, 1 differ, 2 not compared"
