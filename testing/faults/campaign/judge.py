# SPDX-License-Identifier: GPL-2.0-or-later
"""Did the installation keep its promises? Decides by a history alone; pure.

`judge` returns a line for each violation, which begins with its kind:

- lost, twice: a destination never got an accepted push, or got it in two messages;
- phantom: a destination got what no pusher was told is in;
- misordered: messages of a repository skip one, go back, or come before those of what was accepted earlier;
- repeated: a message came again though no fault had struck for a while;
- early: a message came before a mirror served the change that no fault took away, and that an operator had not deactivated;
- silent: `check` said OK while an accepted push was undelivered for over a minute, and had named nothing just before;
- alarm: `check` reported something though all was healed and delivered for over a minute;
- late: after a fault was healed, a destination got no push that began then within the fault's bound;
- stuck: a push waited for a destination for over 45 seconds in which no fault lasted, though other pushes may have passed it;
- trouble: what an observer writes down because it must not be.

An observation that took time counts only if no moment in it would excuse what was seen. The campaign `ended` when all was healed
and had settled; in a history that was cut short, what was pushed in its last minutes is not lost yet.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from testing.builders.load import Accepted
from testing.checks.lines import announced, told_in_order
from testing.faults.campaign.history import Seen, of_kind

# Seconds for which a trouble may last before `check` must name it, and after all is well before it must say so.
UNNAMED = 60.0
# Seconds after a finding for which `check` may say OK: one cause has ended, and the next one is not due to be named yet.
RENAMED = 10.0
# Seconds after a fault in which what was unconfirmed may come again: `takeover-after`, and the longest delay of a retry.
REPEATED = 30.0
# Seconds after which a wait is no part of a push's ordinary way.
LATE = UNNAMED / 6
# Seconds for which a push may wait while no fault lasts: the longest recovery that the table allows, and half of it again, since
# one fault may follow another.
STUCK = 45.0
# Seconds that a push may wait at the end of a history that was cut short: the longest fault, and the longest recovery.
CUT = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One strike: the seconds from its end to the first message of a push that began after it, of each destination.

    None: another fault struck before. `repeats` are the messages that came again until the next strike.
    """

    fault: Seen
    seconds: dict[str, float | None] = field(default_factory=dict)
    repeats: int = 0

    @property
    def worst(self) -> float | None:
        """Of the slowest destination."""
        known = [each for each in self.seconds.values() if each is not None]
        return max(known) if known and len(known) == len(self.seconds) else None


def judge(seen: Sequence[Seen]) -> list[str]:
    """Return a line for each violation of a history."""
    found = [*_judge_messages(seen), *_judge_acts(seen), *_judge_repeats(seen), *_judge_looks(seen)]
    found += [*_judge_checks(seen), *_judge_waits(seen)]
    found += [
        f"late: {each.fault.who}, healed at {each.fault.end:.1f}: {name} took {_tell(seconds)}, not {_within(each):.0f} s"
        for each in find_recoveries(seen)
        for name, seconds in each.seconds.items()
        if seconds is not None and seconds > _within(each)
    ]
    return found + [f"trouble: {each.who} at {each.end:.1f}: {each.what['text']}" for each in of_kind(seen, "trouble")]


def is_late(violation: str) -> bool:
    """Return whether it concerns how long something took, which depends on what else the machine does."""
    return violation.startswith(("late: ", "stuck: "))


def find_recoveries(seen: Sequence[Seen]) -> list[Recovery]:
    """Return what each strike cost, in the order of the strikes."""
    strikes = sorted(of_kind(seen, "struck"), key=lambda each: each.begin)
    repeats = list_repeats(seen)
    found = []
    measured = dict[tuple[float, float], dict[str, float | None]]()  # of those that struck together
    for strike in strikes:
        until = min((each.begin for each in strikes if each.begin > strike.end), default=float("inf"))
        again = sum(strike.begin <= each.end < until for each in repeats)
        if (strike.begin, strike.end) not in measured:
            measured[strike.begin, strike.end] = measure_recovery(seen, strike, until)
        found.append(Recovery(fault=strike, seconds=measured[strike.begin, strike.end], repeats=again))
    return found


def measure_recovery(seen: Sequence[Seen], strike: Seen, until: float) -> dict[str, float | None]:
    """Return the seconds for each destination; infinite if it got nothing although nothing struck any more."""
    later = {each.what["head"] for each in of_kind(seen, "pushed") if strike.end <= each.begin < until}
    first: dict[str, float | None] = dict.fromkeys(_destinations(seen))
    if not later:
        return first
    for each in of_kind(seen, "delivered"):
        if first[each.who] is None and each.end >= strike.end and later.intersection(each.what["heads"]):
            first[each.who] = each.end - strike.end
    waited = min(until, seen[-1].end) - strike.end
    overdue = float("inf") if waited > strike.what["within"] else None
    return {
        name: seconds if seconds is not None and strike.end + seconds < until else overdue
        for name, seconds in first.items()
    }


def list_repeats(seen: Iterable[Seen]) -> list[Seen]:
    """Return the deliveries of messages that their destination had got before."""
    known: set[tuple[str, str]] = set()
    found = []
    for each in of_kind(seen, "delivered"):
        if (message := (each.who, each.what["id"])) in known:
            found.append(each)
        known.add(message)
    return found


def tell_seconds(recoveries: Iterable[Recovery]) -> tuple[str, str]:
    """Return median and worst of strikes as texts, a dash if none could be measured."""
    known = [each.worst for each in recoveries if each.worst is not None]
    return (_tell(statistics.median(known)), _tell(max(known))) if known else ("–", "–")


def _judge_messages(seen: Sequence[Seen]) -> list[str]:
    until = _owed_until(seen)
    accepted = [
        Accepted(repository=each.who, head=each.what["head"], attempts=each.what["attempts"], is_recorded=True)
        for each in sorted(of_kind(seen, "pushed"), key=lambda each: each.end)
        if each.end < until
    ]
    lines = defaultdict[str, list[dict[str, object]]](list)
    for each in of_kind(seen, "delivered"):
        lines[each.who].append({**each.what, "data": {"heads": each.what["heads"]}})
    found = []
    for name in _destinations(seen):
        got = lines[name]
        misordered, _ = told_in_order(got)
        found += [f"misordered: {name}: {text}" for text in misordered]
        for text in announced(got, accepted):
            kind = "misordered" if "accepted earlier" in text else "lost" if "in 0 messages" in text else "twice"
            found.append(f"{kind}: {name}: {text}")
    return found + _judge_phantoms(seen, until)


def _judge_phantoms(seen: Sequence[Seen], until: float) -> list[str]:
    """Pushers ask until they know how a push stands; a repository to which none pushed is an operator's."""
    pushed = of_kind(seen, "pushed")
    heads, repositories = {each.what["head"] for each in pushed}, {each.who for each in pushed}
    return [
        f"phantom: {each.who} at {each.end:.1f}: {each.what['path']}: {head}"
        for each in of_kind(seen, "delivered")
        if each.what["path"] in repositories and each.end < until
        for head in each.what["heads"]
        if head not in heads
    ]


def _judge_acts(seen: Sequence[Seen]) -> list[str]:
    """Each act of the operator has a message of its own wherever its type goes."""
    until = _owed_until(seen)
    acted = Counter((each.who, each.what["path"]) for each in of_kind(seen, "acted") if each.end < until)
    got = defaultdict[str, set[tuple[str, str, str]]](set)
    for each in of_kind(seen, "delivered"):
        got[each.who].add((each.what["type"], each.what["path"], each.what["id"]))
    found = []
    for name, messages in sorted(got.items()):
        counted = Counter(message[:2] for message in messages)
        types = {kind for kind, _ in counted}
        found += [
            f"lost: {name}: {times} of {kind} at {path}, it got {counted[kind, path]}"
            for (kind, path), times in acted.items()
            if kind in types and counted[kind, path] < times
        ]
    return found


def _judge_repeats(seen: Sequence[Seen]) -> list[str]:
    strikes = of_kind(seen, "struck")
    return [
        f"repeated: {each.who} got {each.what['id']} again at {each.end:.1f}"
        for each in list_repeats(seen)
        if not _struck_during(strikes, each.end - REPEATED, each.end)
    ]


def _judge_looks(seen: Sequence[Seen]) -> list[str]:
    return [
        f"early: {each.who} at {each.begin:.1f}: {'; '.join(each.what['missing'])}"
        for each in of_kind(seen, "looked")
        if each.what["missing"] and each.who not in _spared_during(seen, each.begin, each.end)
    ]


def _judge_waits(seen: Sequence[Seen]) -> list[str]:
    strikes = sorted((each.begin, each.end) for each in of_kind(seen, "struck"))
    found = []
    for since, until, name, head in list_waits(seen):
        if until - since <= STUCK:
            continue
        lasted, covered = 0.0, since
        for begin, end in strikes:
            lasted += max(0.0, min(until, end) - max(covered, begin))
            covered = max(covered, end)
        if STUCK < until - since - lasted < float("inf"):
            found.append(f"stuck: {head}, pushed at {since:.1f}, reached {name} at {until:.1f}")
    return found


def list_waits(seen: Sequence[Seen]) -> list[tuple[float, float, str, str]]:
    """From when to when each push waited for each destination, infinite if it never came, and its head."""
    names = _destinations(seen)
    delivered = {
        (each.who, head): each.end for each in reversed(of_kind(seen, "delivered")) for head in each.what["heads"]
    }
    return [
        (each.end, delivered.get((name, each.what["head"]), float("inf")), name, each.what["head"])
        for each in of_kind(seen, "pushed")
        for name in names
    ]


def _judge_checks(seen: Sequence[Seen]) -> list[str]:
    waits = list_waits(seen)
    late, strikes = [wait for wait in waits if wait[1] - wait[0] > LATE], of_kind(seen, "struck")
    found = []
    named = float("-inf")
    for check in of_kind(seen, "checked"):
        owed = [wait for wait in late if wait[0] < check.begin - UNNAMED and wait[1] > check.end]
        if check.what["findings"]:
            named = check.end
        elif owed and check.begin - named > RENAMED:
            found.append(f"silent: check says OK at {check.begin:.1f}, {owed[0][2]} has waited since {owed[0][0]:.1f}")
        was_well = all(not (since < check.end and until > check.begin - UNNAMED) for since, until, *_ in late)
        if check.what["findings"] and was_well and not _struck_during(strikes, check.begin - UNNAMED, check.end):
            found.append(f"alarm: check says at {check.end:.1f}: {'; '.join(check.what['findings'])}")
    return found


def _struck_during(strikes: Iterable[Seen], begin: float, end: float) -> bool:
    return any(each.begin <= end and each.end >= begin for each in strikes)


def _spared_during(seen: Iterable[Seen], begin: float, end: float) -> set[str]:
    """Mirrors of which nothing is promised in this time, because a fault took them away and its bound is not over."""
    strikes = of_kind(seen, "struck")
    return {
        mirror
        for each in strikes
        if each.begin <= end and each.end + each.what["within"] >= begin
        for mirror in each.what["spares"]
    }


def _owed_until(seen: Sequence[Seen]) -> float:
    """Return the time before which all that was pushed must be delivered in the end."""
    return float("inf") if of_kind(seen, "ended") else max(each.end for each in seen) - CUT


def _destinations(seen: Iterable[Seen]) -> list[str]:
    """All that should get messages, also if none came."""
    return sorted({name for each in of_kind(seen, "began") for name in each.what["destinations"]})


def _within(recovery: Recovery) -> float:
    return float(recovery.fault.what["within"])


def _tell(seconds: float) -> str:
    return "more" if seconds == float("inf") else f"{seconds:.1f} s"
