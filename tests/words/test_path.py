# SPDX-License-Identifier: GPL-2.0-or-later
"""Wire paths and rules."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.errors import MalformedEvent
from hgext.vcsreplicator.path import Rules, check_path, check_rules, twin, wire_path


@pytest.mark.parametrize("path", ["try", "integration/autoland", "users/größe/a.b-c_d+e", "R&D 2/x", "a" * 200])
def test_ordinary_paths_are_taken(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path",
    ["", "/etc", "../x", "a/../b", "a//b", "a/", ".", "a/.hg/store", "a/.HG", "-R", "a/-x", "~root", "a\\b", "a\0b", "a\nb", "a/b.",
     "a/b ", " a", "x" * 2000, "x" * 241, "a/\u202eb", "a/\udc80"],
)  # fmt: skip
def test_paths_that_could_leave_the_root_or_confuse_a_program_are_refused(path: str) -> None:
    with pytest.raises(MalformedEvent, match="repository path"):
        check_path(path)


@given(st.text(max_size=60))
def test_a_path_that_is_taken_stays_below_its_root(path: str) -> None:
    try:
        check_path(path)
    except MalformedEvent:
        return
    assert os.path.normpath("/root/" + path) == "/root/" + path
    assert not {".hg", ".."} & set(path.lower().split("/"))


def test_twins_are_paths_that_some_file_system_takes_for_one() -> None:
    assert twin("Stra\u00dfe") == twin("STRASSE")
    assert twin("e\u0301") == twin("\u00e9")
    assert twin("a") != twin("b")


def test_the_longest_root_names_the_repository_on_the_wire() -> None:
    roots = {"/repos": "", "/repos/users/": "people", "/other": "moz"}
    assert wire_path("/repos/a/b", roots) == "a/b"
    assert wire_path("/repos/users/x", roots) == "people/x"
    assert wire_path("/other/x", roots) == "moz/x"
    assert wire_path("/repos", roots) is None
    assert wire_path("/reposx/a", roots) is None


@pytest.mark.parametrize(
    ("include", "exclude", "path", "carried"),
    [
        ((), (), "any", True),
        (("path:a",), (), "a", True),
        (("path:a",), (), "a/b", False),
        (("path:a",), ("path:a",), "a", True),
        (("re:a",), ("path:ab",), "ab", False),
        (("re:a",), ("re:ab",), "abc", False),
        (("path:abc",), ("re:ab",), "abc", True),
        (("re:a",), ("re:ab",), "ac", True),
        ((), ("re:a",), "b", False),
        (("re:.*",), ("re:a",), "b", True),
    ],
)
def test_rules_decide_what_a_mirror_carries(
    include: tuple[str, ...], exclude: tuple[str, ...], path: str, carried: bool
) -> None:
    assert Rules(include=include, exclude=exclude).carries(path) is carried


@pytest.mark.parametrize("rule", ["a", "path:", "glob:x", "re:(", "re:"])
def test_rules_that_cannot_be_evaluated_are_refused(rule: str) -> None:
    with pytest.raises(MalformedEvent, match="rule"):
        check_rules(Rules(include=(rule,)))


EXPLODING = ["(.+)+!", "(a|a)*!", "(a?){30}", ".*.*.*!", "a?" * 30 + "a" * 30, r"(a+)\1", "(?=.*a)b", "x" * 2000]


@pytest.mark.parametrize("expression", EXPLODING, ids=lambda text: text[:12])
def test_an_expression_that_could_be_tried_for_ever_is_refused_and_in_an_old_roster_leaves_nothing_out(
    expression: str,
) -> None:
    path = "a" * 1000
    with pytest.raises(MalformedEvent, match=r"^rule "):
        check_rules(Rules(include=(f"re:{expression}",)))
    assert Rules(include=(f"re:{expression}",)).carries(path)
    assert Rules(include=("re:a",), exclude=(f"re:{expression}",)).carries(path)


@pytest.mark.parametrize("expression", ["group/", "(a|b)/.*", "[^/]+/[^/]+$", "m-(beta|esr[0-9]{2,3})(/.*)?$", "(?i)x"])
def test_usual_expressions_are_taken(expression: str) -> None:
    rules = Rules(include=(f"re:{expression}",))
    assert check_rules(rules) is rules


def test_the_worst_expression_that_is_taken_ends() -> None:
    assert not check_rules(Rules(include=("re:.*.*(a|b)?!",))).carries("a" * 1024)
