# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules: which repositories are carried, by expressions that always end."""

import re

import pytest

from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.rules import Rules, check_rules


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
        (("re:x", "re:a"), (), "ab", True),
        (("re:.*",), ("re:x", "re:a"), "ab", False),
    ],
)
def test_rules_decide_what_a_mirror_carries(
    include: tuple[str, ...], exclude: tuple[str, ...], path: str, carried: bool
) -> None:
    assert Rules(include=include, exclude=exclude).carries(path) is carried


# What operators write, with a path that each matches.
REAL_LIFE = {
    "mozilla-central": "mozilla-central",
    "integration/": "integration/autoland",
    "[^/]+/[^/]+/[^/]+": "users/ann@example.org/tools",
    "[^/]+/[^/]+/[^/]+$": "users/ann@example.org/tools",
    "(a|b|c)*": "abc",
    "(a+)+b": "aaab",
    "(users|incubator)/.*": "users/größe/a.b-c_d+e",
    "releases/mozilla-(beta|release|esr[0-9]{2,3})(/.*)?$": "releases/mozilla-esr115",
    r"releases/[\w-]+": "releases/l10n-central",
    r"l10n-central/[a-z]{2,3}(-[A-Z]{2})?\Z": "l10n-central/pt-BR",
    r"^projects/\w+-\d+$": "projects/maple-7",
    "(?i)R&D": "r&d 2/x",
    "(?:build|ci)/(?P<name>[a-z]+)/.+?": "build/tools/x",
    ".*-secret$": "users/keys-secret",
    ".*/(private|secret)(/|$)": "users/ann/private/x",
    r".*\.(bak|old|orig)$": "releases/x.old",
    r"(?s)try\b": "try",
    "[^.].*[^/]$": "webtools/bmo",
    r"\A.{1,3}\Z": "try",
    r"users/[^/@]+@[^/@]+\.(com|org)/": "users/ann@example.org/tools",
    "größe|users/größe": "users/größe/a.b-c_d+e",
}
PATHS = sorted({*REAL_LIFE.values(), "try-comm-central", "a/integration/x", "releases", "users/x", "pt-BR", "private"})


@pytest.mark.parametrize("expression", REAL_LIFE)
def test_usual_expressions_are_taken_and_mean_what_python_makes_of_them(expression: str) -> None:
    rules = Rules(include=(f"re:{expression}",))
    assert check_rules(rules) is rules
    assert rules.carries(REAL_LIFE[expression])
    carried = {path for path in PATHS if rules.carries(path)}
    assert carried == {path for path in PATHS if re.match(expression, path)}
    assert {path for path in PATHS if not Rules(include=("re:.*",), exclude=rules.include).carries(path)} == carried


EXPLODING = ["(.+)+!", "(a|a)*!", "(a?){1000}a{1000}!", ".*.*.*.*!", "a?" * 30 + "a" * 30 + "!", ".*a.{0,900}!"]


@pytest.mark.parametrize("expression", EXPLODING, ids=lambda text: text[:12])
def test_an_expression_that_could_backtrack_for_ever_ends(expression: str) -> None:
    rules = check_rules(Rules(include=(f"re:{expression}",)))
    assert not rules.carries("a" * 1024)


REFUSED = {
    "(": "not a regular expression",
    "*": "not a regular expression",
    r"(a+)\1": "invalid escape sequence",
    "(?=.*a)b": "neither lookahead nor lookbehind",
    "(?!private/)": "neither lookahead nor lookbehind",
    "(?<=a)b": "neither lookahead nor lookbehind",
    "a{,3}": "expected {0,N}",
    "x" * 2000: "at most 1024 characters, got 2000",
    "|".join(["(.?){1000}"] * 20): "too large.*write several rules",
    "\udc80": "not text",
}


@pytest.mark.parametrize("expression", REFUSED, ids=ascii)
def test_what_cannot_be_evaluated_is_refused_with_why(expression: str, capfd: pytest.CaptureFixture[str]) -> None:
    rule = f"re:{expression}"
    with pytest.raises(MalformedEvent, match=f"^rule .*{REFUSED[expression]}"):
        check_rules(Rules(include=(rule,)))
    assert Rules(include=(rule,)).carries("a/b")
    assert Rules(include=("re:a",), exclude=(rule,)).carries("a/b")
    assert capfd.readouterr() == ("", "")  # the library would print to stderr by itself


@pytest.mark.parametrize("rule", ["a", "path:", "glob:x", "re:"])
def test_a_rule_of_no_known_kind_is_refused_and_leaves_nothing_out(rule: str) -> None:
    with pytest.raises(MalformedEvent, match=r"rule .*expected path:EXACT or re:EXPRESSION"):
        check_rules(Rules(exclude=(rule,)))
    assert Rules(include=(rule,)).carries("a/b")
    assert Rules(include=("re:a",), exclude=(rule,)).carries("a/b")


def test_a_path_that_is_no_text_is_decided_like_any_other() -> None:
    assert Rules(include=("re:a/.*",)).carries("a/\udc80")
    assert not Rules(include=("re:b",)).carries("a/\udc80")
