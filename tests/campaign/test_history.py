# SPDX-License-Identifier: GPL-2.0-or-later
"""The checker of campaigns: it reports a history that breaks a rule, for each rule."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.aggregator.decisions.succession import DEPARTURE_PATIENCE
from testing.campaign.history import PROOF, Kind, Seen, check

GATING = [Seen(step=0, kind=Kind.GATING, who=mirror, names=("r",)) for mirror in ("alpha", "beta")]


def push(seq: int, **members: object) -> Seen:
    given = {"step": seq, "kind": Kind.ACCEPTED, "repository": "r", "seq": seq, "digest": f"d{seq}", "path": "r"}
    return Seen(**{**given, "generation": 1, **members})  # type: ignore[arg-type]


def served(*seqs: int, repository: str = "r") -> list[Seen]:
    return [
        Seen(step=50, kind=Kind.SERVED, who=mirror, repository=repository, seq=seq)
        for seq in seqs
        for mirror in ("alpha", "beta")
    ]


def got(seq: int, **members: object) -> Seen:
    return replace(push(seq, step=60, kind=Kind.DELIVERED, who="lines", offset=seq - 1, life=1), **members)


def found(*history: Seen, is_settled: bool = True) -> list[str]:
    return [line.rpartition(" - ")[2] for line in check([*GATING, *history], ["lines"], is_settled=is_settled)]


def test_a_history_that_keeps_every_promise_has_no_violation() -> None:
    ends = [Seen(step=90, kind=Kind.ENDED, who="alpha", repository="r", seq=2, digest="d2")]
    assert found(push(1), push(2), *served(1, 2), got(1), got(2), *ends) == []


def test_a_push_that_is_never_announced_is_lost() -> None:
    history = push(1), push(2), *served(1, 2), got(1)
    assert found(*history) == ["lost: lines never got it"]
    assert found(*history, is_settled=False) == []


def test_a_message_before_a_gating_mirror_serves_is_early() -> None:
    assert found(push(1), served(1)[0], got(1)) == ["early: beta has served 0"]


def test_a_mirror_that_gates_since_the_push_is_not_awaited() -> None:
    assert found(replace(GATING[1], names=()), push(1), replace(GATING[1], step=5), served(1)[0], got(1)) == []


def test_a_mirror_is_awaited_for_the_paths_that_it_carries() -> None:
    other = replace(GATING[1], names=("q",))
    assert found(other, push(1), served(1)[0], got(1)) == []
    assert found(other, push(1, path="q"), served(1)[0], got(1, path="q")) == ["early: beta has served 0"]
    assert found(other, push(1, path="q"), push(2), served(1)[0], got(1, path="q")) == ["lost: lines never got it"]


def test_a_mirror_is_awaited_again_once_a_repository_is_not_spared() -> None:
    spared = replace(GATING[1], spared=("r",))
    assert found(spared, push(1), replace(GATING[1], step=5), served(1)[0], got(1)) == []
    back = replace(GATING[1], step=1)
    assert found(spared, back, push(1), served(1)[0], got(1)) == ["early: beta has served 0"]
    assert found(replace(spared, spared=("s",)), push(1), served(1)[0], got(1)) == ["early: beta has served 0"]


def test_a_message_of_what_was_never_accepted_is_early() -> None:
    assert found(got(1)) == ["early: it was never accepted"]


def test_a_skipped_message_is_misordered() -> None:
    assert found(push(1), push(2), *served(2), got(2)) == ["misordered: the last was 0"]


def test_a_message_behind_those_of_a_successor_is_misordered() -> None:
    successor = {"repository": "s", "generation": 2}
    history = [push(1), push(1, **successor), *served(1), *served(1, repository="s"), got(1, **successor), got(1)]
    assert found(*history) == ["misordered: r was another repository's before"]


def find_behind_a_successor(*gaps: float) -> list[str]:
    """What is found of a repository whose events the log gets so long after each other, the second behind its successor's."""
    successor = {"repository": "s", "generation": 2}
    times = [sum(gaps[:count]) for count in range(1, len(gaps) + 1)]
    seqs = range(2, len(gaps) + 2)
    logged = [push(1, kind=Kind.LOGGED, own=-10.0), push(1, kind=Kind.LOGGED, **successor)]
    logged += [push(seq, kind=Kind.LOGGED, own=at) for seq, at in zip(seqs, times, strict=True)]
    ours = [*map(push, range(1, len(gaps) + 2))]
    history = [*ours, push(1, **successor), *logged, *served(1, *seqs), *served(1, repository="s")]
    return found(*history, got(1), got(1, **successor), *map(got, seqs))


def test_a_successor_waits_a_minute_for_a_repository_without_events() -> None:
    late, misordered = DEPARTURE_PATIENCE, "misordered: r was another repository's before"
    assert find_behind_a_successor(late, 1.0) == []
    assert find_behind_a_successor(late - 1.0, 1.0) == [misordered] * 2
    assert find_behind_a_successor(late - 1.0, late) == [misordered]


def test_a_message_behind_the_stored_position_is_repeated() -> None:
    stored = Seen(step=70, kind=Kind.STORED, who="lines", offset=1)
    assert found(push(1), *served(1), got(1), got(1, life=2)) == []
    assert found(push(1), *served(1), got(1), stored, got(1, life=2)) == ["repeated: the position was 1 before"]


def test_a_message_that_its_sender_knew_to_be_confirmed_is_repeated() -> None:
    confirmed = got(1, kind=Kind.CONFIRMED)
    text = "repeated: the process knew that it was confirmed"
    assert found(push(1), *served(1), got(1), confirmed, got(1)) == [text]


def test_a_notifier_that_has_its_turn_again_begins_at_the_stored_position() -> None:
    wrote = Seen(step=60, kind=Kind.WROTE, who="lines", life=1, turn=1)
    before = push(1), *served(1), wrote, got(1), got(1, kind=Kind.CONFIRMED)
    again = replace(wrote, life=2, turn=2), replace(wrote, turn=3)
    assert found(*before, *again, got(1)) == []
    assert found(*before, wrote, got(1)) == ["repeated: the process knew that it was confirmed"]


def test_an_overtaken_notifier_repeats_for_a_short_time_only() -> None:
    wrote = Seen(step=60, kind=Kind.WROTE, who="lines", life=1, turn=1)
    overtaken = [
        push(1),
        *served(1),
        wrote,
        got(1),
        replace(wrote, life=2, turn=2),
        replace(wrote, kind=Kind.STORED, offset=1),
    ]
    assert found(*overtaken, *[got(1, own=PROOF)] * 9) == []
    assert len(found(*overtaken, *[got(1, own=PROOF + 1)] * 9)) == 5


def test_a_mirror_that_differs_at_the_end_is_divergent() -> None:
    end = Seen(step=90, kind=Kind.ENDED, who="beta", repository="r", seq=1, digest="another")
    assert found(push(1), *served(1), got(1), end) == ["divergent: the master is at 1"]


def logged(seq: int, **members: object) -> Seen:
    return push(seq, kind=Kind.LOGGED, **members)


def promoted(*names: str, source: str = "new") -> Seen:
    return Seen(step=20, kind=Kind.PROMOTED, who=source, names=names)


def test_what_a_lost_master_had_not_sent_is_not_awaited() -> None:
    history = push(1), logged(1), push(2), promoted(), push(2, who="new", digest="other"), push(2, who="old")
    assert found(*history, *served(1, 2), got(1), got(2)) == []
    assert found(*history[:4], *served(1)) == ["lost: lines never got it"]


def test_what_the_log_lacks_of_a_master_that_handed_over_is_lost() -> None:
    assert found(push(1), promoted("handed over")) == ["lost: its master was handed over without it"]


@pytest.mark.parametrize("names", [(), ("handed over",)])
def test_what_a_master_that_stays_the_master_has_not_sent_is_not_lost(names: tuple[str, ...]) -> None:
    """Its handover was undone before another one was promoted."""
    history = push(1, who="old"), promoted(*names, source="old"), logged(1, who="old"), *served(1), got(1)
    assert found(*history) == []


def test_events_of_a_replaced_master_are_those_of_two_masters() -> None:
    text = "two masters: a former one sent it"
    assert found(push(1), promoted(), logged(1)) == [text]
    assert found(promoted(), push(1, who="new", digest="other"), logged(1), is_settled=False) == [text]
    again = push(1), logged(1), promoted(), logged(1, digest="other")
    assert found(*again, is_settled=False) == ["two masters: the log had another event there"]


def test_two_promotions_that_both_say_to_have_won_are_two_masters() -> None:
    declared = Seen(step=30, kind=Kind.DECLARED, who="new")
    assert found(promoted(), declared) == []
    assert found(promoted(), promoted(source="newer"), declared) == ["two masters: newer was promoted"]


def test_a_write_after_that_of_a_newer_process_is_one_of_two_writers() -> None:
    wrote = Seen(step=9, kind=Kind.WROTE, who="aggregator", turn=2)
    assert found(wrote, replace(wrote, turn=1)) == ["two writers: a newer process wrote before"]
