# SPDX-License-Identifier: GPL-2.0-or-later
"""User agents: what is read of them, and that a name which may hold an address is left out."""

import pytest

from notifier.services.decode import agent
from notifier.services.decode.agent import read_agent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mercurial/proto-1.0 (Mercurial 7.2)", ["Mercurial", "7.2"]),
        ("mercurial/proto-1.0 (Mercurial 7.2.1+20261123)", ["Mercurial", "7.2.1"]),
        ("mercurial/proto-1.0 (Mercurial 7.2rc0)", ["Mercurial", "7.2rc0"]),
        ("mercurial/proto-1.0 (Mercurial 203.0.113.7)", ["Mercurial"]),
        ("mercurial/proto-1.0 (Mercurial unknown)", ["Mercurial"]),
        ("Mozilla/5.0 (X11; Linux x86_64) Chrome/120.0.6099.109 Safari/537.36", ["Chrome", "120.0.6099", "Linux"]),
        ("Mozilla/5.0 (X11; Linux x86_64) Chrome/203.0.113.7 Safari/537.36", ["Chrome", "Linux"]),
        ("", []),
    ],
)
def test_a_user_agent_becomes_names_and_versions(text: str, expected: list[str]) -> None:
    assert [value for _, value in read_agent(text)] == expected


@pytest.mark.parametrize("separator", "-_ ")
def test_a_bot_whose_name_holds_an_address_has_no_name(separator: str) -> None:
    name = separator.join(["203", "0", "113", "7"])
    assert read_agent(f"Mozilla/5.0 (compatible; {name}Bot/1.0)") == (("user_agent_browser_version", "1.0"),)


def test_a_bot_has_its_own_name() -> None:
    assert dict(read_agent("Mozilla/5.0 (compatible; 203-0-113Bot/1.0)"))["user_agent_browser"] == "203-0-113Bot"


def test_what_is_remembered_of_a_long_user_agent_is_bounded() -> None:
    agent._read_bounded.cache_clear()
    for end in "ab":
        read_agent("Mozilla/5.0 " + " " * 10_000 + end)
    assert agent._read_bounded.cache_info().currsize == 1
