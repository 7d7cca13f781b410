# SPDX-License-Identifier: GPL-2.0-or-later
"""What a receiver of messages sees: nothing missing, doubled or out of order, and each change served by the mirrors."""

from collections.abc import Iterable
from typing import Any

from testing.builders.load import Accepted
from testing.checks import agreement


def told_in_order(lines: Iterable[dict[str, Any]]) -> tuple[list[str], int]:
    """(gaps and misorder in what a receiver got who drops repeats, how many repeats it dropped)."""
    found: list[str] = []
    seen: set[str] = set()
    last: dict[tuple[str, str], dict[str, Any]] = {}
    repeats = 0
    for line in lines:
        if line["id"] in seen:
            repeats += 1
            continue
        seen.add(line["id"])
        stream = line["repository"], line["type"]
        before = last.get(stream)
        if line["previous"] != (before["id"] if before else None):
            found.append(f"{stream}: {line['id']} follows {line['previous']}, the last was {before and before['id']}")
        if before and before["sequence"] >= line["sequence"]:
            found.append(f"{stream}: {line['sequence']} was told after {before['sequence']}")
        last[stream] = line
    return found, repeats


def announced(lines: Iterable[dict[str, Any]], accepted: list[Accepted]) -> list[str]:
    """Accepted pushes that are in no message, or in more than one, or in one before that of an earlier push to the repository."""
    lines = list(lines)
    messages: dict[str, set[str]] = {}
    places: dict[str, int] = {}
    for place, line in enumerate(lines):
        for head in line["data"].get("heads", ()):
            messages.setdefault(head, set()).add(line["id"])
            places.setdefault(head, place)
    found = [
        f"{each.repository}: {each.head} is in {len(messages.get(each.head, ()))} messages"
        for each in accepted
        if len(messages.get(each.head, ())) != 1
    ]
    last: dict[str, int] = {}
    for each in accepted:
        place = places.get(each.head, len(lines))
        if place < last.get(each.repository, 0):
            found.append(f"{each.repository}: {each.head} is told before what was accepted earlier")
        last[each.repository] = place
    return found


def try_line(mirrors: Iterable[dict[str, Any]], line: dict[str, Any], amended: set[str]) -> list[str]:
    """What a receiver who asks these mirrors at once would miss. An amended changeset may be hidden by now."""
    if line["type"] != "changegroup.1":
        return []
    found = []
    data = line["data"]
    path = data["repo_url"].rsplit("/", 1)[-1]
    heads = [head for head in data["heads"] if head not in amended]
    for mirror in mirrors:
        pushes = [push["push_json_url"].rpartition("/")[2] for push in data["pushlog_pushes"]]
        for page in [*pushes, *(f"json-rev/{head}" for head in heads)]:
            status, body = agreement.page(f"{mirror['url']}{path}/{page}")
            if status != 200 or any(head not in body for head in heads if page in pushes):
                found.append(f"{line['id']}: {mirror['name']} answers {page} with {status} {body[:200]!r}")
    return found
