# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator's request makes of the roster, and which mirrors gate."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.roster import Mirror, MirrorRole, MirrorState, Roster, RosterRequest, Verb
from hgext.vcsreplicator.words.roster.changes import RECENT, decide, remember
from hgext.vcsreplicator.words.roster.keys import with_aggregator_keys, with_sealed_from
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import from_json, to_json

REPOSITORY = "a" * 32
OTHER = "b" * 32


def request(verb: Verb, mirror: str | None = "alpha", **members: object) -> RosterRequest:
    return RosterRequest(id="1", verb=verb, mirror=mirror, who="dana", time=5.0, reason="test", **members)  # type: ignore[arg-type]


def decided(roster: Roster, *requests: RosterRequest, positions: dict[int, int] | None = None) -> Roster:
    for one in requests:
        roster = decide(roster, one, positions=positions or {0: 7, 1: 9}, now=10.0)
    return roster


def refused(roster: Roster, one: RosterRequest) -> str:
    with pytest.raises(Refused) as refusal:
        decide(roster, one, positions={}, now=10.0)
    return str(refusal.value)


def with_alpha(state: MirrorState, **members: object) -> Roster:
    return Roster(version=3, mirrors=(Mirror(name="alpha", state=state, **members),))  # type: ignore[arg-type]


def gating(roster: Roster, repository: str, path: str) -> tuple[str, ...]:
    return tuple(mirror.name for mirror in roster.mirrors if mirror.gates(repository, path))


def test_a_new_mirror_joins_at_the_positions_of_the_moment() -> None:
    roster = decided(Roster(), request(Verb.ADD))
    [mirror] = roster.mirrors
    assert (mirror.state, mirror.joined, mirror.since, roster.version) == (
        MirrorState.JOINING,
        {"0": 7, "1": 9},
        10.0,
        1,
    )
    assert mirror.gates_at(0, 7)
    assert not mirror.gates_at(0, 6)
    assert mirror.gates_at(5, 0), "a partition that was never read gates from its beginning"


def test_a_mirror_added_inactive_gates_nothing_until_it_joins() -> None:
    roster = decided(Roster(), request(Verb.ADD, inactive=True))
    assert gating(roster, REPOSITORY, "x") == ()
    assert gating(decided(roster, request(Verb.JOIN)), REPOSITORY, "x") == ("alpha",)


@pytest.mark.parametrize(
    "members",
    [
        {"reason": "é" * 5000},
        {"who": "d" * 20_000},
        {"rules": Rules(include=tuple(f"path:{n:0100}" for n in range(200)))},
    ],
)
def test_a_request_that_would_fill_the_roster_is_refused(members: dict[str, object]) -> None:
    one = replace(request(Verb.RULES, rules=Rules()), **members)  # type: ignore[arg-type]
    assert refused(with_alpha(MirrorState.ACTIVE), one) == "a request has at most 16 KiB"


MOVES = {
    (Verb.ADD, MirrorState.REMOVED): MirrorState.JOINING,
    (Verb.JOIN, MirrorState.INACTIVE): MirrorState.JOINING,
    (Verb.ACTIVATE, MirrorState.INACTIVE): MirrorState.ACTIVE,
    (Verb.ACTIVATE, MirrorState.JOINING): MirrorState.ACTIVE,
    (Verb.DEACTIVATE, MirrorState.ACTIVE): MirrorState.INACTIVE,
    (Verb.DEACTIVATE, MirrorState.JOINING): MirrorState.INACTIVE,
    (Verb.REMOVE, MirrorState.INACTIVE): MirrorState.REMOVED,
}


@pytest.mark.parametrize("state", list(MirrorState))
@pytest.mark.parametrize("verb", [Verb.ADD, Verb.JOIN, Verb.ACTIVATE, Verb.DEACTIVATE, Verb.REMOVE])
def test_each_verb_moves_a_mirror_or_is_refused_with_its_state(verb: Verb, state: MirrorState) -> None:
    before = with_alpha(state)
    if (verb, state) in MOVES:
        after = decided(before, request(verb))
        assert (after.mirrors[0].state, after.version) == (MOVES[verb, state], 4)
    else:
        assert state.value in refused(before, request(verb))


def test_a_mirror_stays_a_candidate_until_an_operator_says_no() -> None:
    roster = decided(with_alpha(MirrorState.ACTIVE), request(Verb.CANDIDATE, allow=True), request(Verb.DEACTIVATE))
    assert roster.mirrors[0].described_role == "serving, candidate"
    assert decided(roster, request(Verb.CANDIDATE, allow=False)).mirrors[0].candidate is None
    assert "expected yes or no" in refused(roster, request(Verb.CANDIDATE))
    assert "removed" in refused(with_alpha(MirrorState.REMOVED), request(Verb.CANDIDATE, allow=True))


def test_only_mirrors_that_carry_and_are_no_backup_gate() -> None:
    everything = Roster(
        mirrors=(
            Mirror(name="active", state=MirrorState.ACTIVE),
            Mirror(name="backup", state=MirrorState.ACTIVE, role=MirrorRole.BACKUP),
            Mirror(name="elsewhere", state=MirrorState.ACTIVE, rules=Rules(include=("re:try",))),
            Mirror(name="inactive", state=MirrorState.INACTIVE),
            Mirror(name="joining", state=MirrorState.JOINING, joined={}),
            Mirror(name="removed", state=MirrorState.REMOVED),
            Mirror(name="without-it", state=MirrorState.ACTIVE, deactivated=(REPOSITORY,)),
        )
    )
    assert gating(everything, REPOSITORY, "integration/autoland") == ("active", "joining")
    assert gating(everything, OTHER, "try/x") == ("active", "elsewhere", "joining", "without-it")


def test_deactivating_one_repository_leaves_the_others_gated() -> None:
    roster = decided(with_alpha(MirrorState.ACTIVE), request(Verb.DEACTIVATE, repository=REPOSITORY))
    assert gating(roster, REPOSITORY, "x") == ()
    assert gating(roster, OTHER, "y") == ("alpha",)
    assert "not gating" in refused(roster, request(Verb.DEACTIVATE, repository=REPOSITORY))
    again = decided(roster, request(Verb.ACTIVATE, repository=REPOSITORY))
    assert gating(again, REPOSITORY, "x") == ("alpha",)
    assert "already" in refused(again, request(Verb.ACTIVATE, repository=REPOSITORY))


def test_a_mirror_that_is_in_the_roster_is_not_added_again() -> None:
    reason = refused(with_alpha(MirrorState.ACTIVE), request(Verb.ADD))
    assert reason == "add: mirror alpha is in the roster already, and is active"


@pytest.mark.parametrize("verb", [Verb.DEACTIVATE, Verb.ACTIVATE])
def test_a_removed_mirror_has_no_decisions_for_one_repository(verb: Verb) -> None:
    removed = with_alpha(MirrorState.REMOVED, deactivated=(REPOSITORY,) if verb is Verb.ACTIVATE else ())
    assert "is removed" in refused(removed, request(verb, repository=REPOSITORY))


@pytest.mark.parametrize("state", [MirrorState.ACTIVE, MirrorState.JOINING, MirrorState.REMOVED])
def test_refused_removal_has_the_command_that_comes_first(state: MirrorState) -> None:
    hint = "; deactivate it first: vcsreplicator roster deactivate alpha --yes"
    reason = refused(with_alpha(state), request(Verb.REMOVE))
    expected = "" if state is MirrorState.REMOVED else hint
    assert reason == f"remove: mirror alpha is {state.value}, expected inactive{expected}"


def test_removing_a_mirror_forgets_what_it_was_deactivated_for() -> None:
    roster = decided(
        with_alpha(MirrorState.INACTIVE, deactivated=(REPOSITORY,)), request(Verb.REMOVE), request(Verb.ADD)
    )
    assert gating(roster, REPOSITORY, "x") == ("alpha",)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (request(Verb.ADD, "Alpha"), "lower-case letters"),
        (request(Verb.ADD, "a/b"), "lower-case letters"),
        (request(Verb.ADD, "aggregator"), "lower-case letters"),
        (request(Verb.ADD, None), "lower-case letters"),
        (request(Verb.JOIN, "unknown"), "add it first"),
        (request(Verb.RULES), "expected rules"),
        (request(Verb.RULES, rules=Rules(include=("re:(",))), "not a regular expression"),
        (request(Verb.REMOVE, repository=REPOSITORY), "whole mirror"),
        (request(Verb.DEACTIVATE, repository="x/y"), "32 hexadecimal digits"),
        (request(Verb.ALLOW_EMPTY, None), "yes or no"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_words(asked: RosterRequest, complaint: str) -> None:
    assert complaint in refused(with_alpha(MirrorState.ACTIVE), asked)


def test_a_decision_is_remembered_with_who_and_why_for_a_time() -> None:
    roster = Roster(version=2)
    for number in range(RECENT + 5):
        one = RosterRequest(id=str(number), verb=Verb.JOIN, mirror="x", who="dana", time=1.0, reason="because")
        roster = remember(roster, one, now=2.0, refusal="no")
    assert len(roster.recent) == RECENT
    assert roster.decision("0") is None
    newest = roster.decision(str(RECENT + 4))
    assert newest is not None
    assert (newest.request.who, newest.request.reason, newest.refusal, newest.version) == ("dana", "because", "no", 2)


def test_a_roster_survives_the_way_through_the_log() -> None:
    roster = decided(
        Roster(), request(Verb.ADD, rules=Rules(exclude=("path:x",))), request(Verb.ALLOW_EMPTY, None, allow=True)
    )
    roster = remember(roster, request(Verb.ADD), now=3.0)
    assert from_json(Roster, to_json(roster)) == roster


def test_removal_of_an_unknown_mirror_does_not_say_to_add_it() -> None:
    assert refused(with_alpha(MirrorState.ACTIVE), request(Verb.REMOVE, "unknown")) == "there is no mirror unknown"


KEY, SECOND, THIRD = (f"x25519:{letter * 43}=" for letter in "ABC")
KEYED = Roster(version=3, aggregator_keys=("x25519:" + "D" * 43 + "=",))


def test_a_mirror_has_an_epoch_from_its_first_key_to_its_last() -> None:
    [first] = decided(KEYED, request(Verb.ADD, key=KEY)).mirrors
    assert (first.keys, first.epoch) == ((KEY,), 4)
    roster = with_sealed_from(decided(KEYED, request(Verb.ADD), request(Verb.ADD_KEY, key=KEY)), "alpha", 7)
    roster = decided(roster, request(Verb.ADD_KEY, key=SECOND))
    [mirror] = roster.mirrors
    assert (mirror.keys, mirror.epoch, mirror.sealed_from) == ((SECOND, KEY), 5, 7)
    roster = decided(roster, request(Verb.REMOVE_KEY, key=KEY))
    [mirror] = roster.mirrors
    assert (mirror.keys, mirror.epoch, mirror.sealed_from) == ((SECOND,), 5, None)
    [mirror] = decided(roster, request(Verb.ADD_KEY, key=KEY)).mirrors
    assert (mirror.keys, mirror.epoch) == ((KEY, SECOND), 9), "what the key sealed before it was removed is of the past"
    roster = decided(roster, request(Verb.REMOVE_KEY, key=SECOND))
    assert (roster.mirrors[0].keys, roster.mirrors[0].epoch) == (None, None)


def test_a_mirror_that_returns_has_another_epoch() -> None:
    gone = Mirror(name="alpha", state=MirrorState.REMOVED, keys=(KEY,), epoch=1)
    [mirror] = decided(replace(KEYED, mirrors=(gone,)), request(Verb.ADD, key=KEY)).mirrors
    assert (mirror.keys, mirror.epoch) == ((KEY,), 4)


@pytest.mark.parametrize(
    ("roster", "one", "reason"),
    [
        (Roster(), request(Verb.ADD, key=KEY), "the aggregator has no key"),
        (KEYED, request(Verb.ADD, key="x25519:short"), "is no public key; make it on the mirror's machine"),
        (KEYED, request(Verb.ADD, key="x25519-private:" + "A" * 43 + "="), "is no public key"),
        (replace(KEYED, requires_keys=True), request(Verb.ADD), "mirrors need a key"),
        (Roster(), request(Verb.REQUIRE_KEYS, None, allow=True), "the aggregator has no key"),
        (Roster(), request(Verb.REQUIRE_KEYS, None), "expected yes or no"),
        (decided(KEYED, request(Verb.ADD)), request(Verb.REMOVE_KEY, key=KEY), "does not have this key"),
        (decided(KEYED, request(Verb.ADD, key=KEY)), request(Verb.ADD_KEY, key=KEY), "has this key already"),
        (decided(KEYED, request(Verb.ADD, key=KEY)), request(Verb.ADD, "beta", key=KEY), "alpha has this key already"),
        (
            decided(KEYED, request(Verb.ADD, key=KEY), request(Verb.ADD_KEY, key=SECOND)),
            request(Verb.ADD_KEY, key=THIRD),
            f"has 2 keys; remove the key that it no longer uses: {KEY}",
        ),
    ],
)
def test_a_request_about_keys_that_does_not_fit_is_refused(roster: Roster, one: RosterRequest, reason: str) -> None:
    assert reason in refused(roster, one)


def test_the_roster_keeps_the_newest_keys_of_aggregators() -> None:
    roster = Roster()
    for number in range(6):
        roster = with_aggregator_keys(roster, (str(number),))
    assert (roster.aggregator_keys, roster.version) == (("5", "4", "3", "2"), 6)
    assert with_aggregator_keys(roster, ("3",)) is roster


def test_a_roster_without_keys_is_what_a_former_release_reads() -> None:
    members = to_json(decided(Roster(), request(Verb.ADD), request(Verb.ALLOW_EMPTY, None, allow=True)))
    assert not [name for name in (b"key", b"epoch") if name in members]
