# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules: which repositories a mirror carries or a notifier may announce.

They decide by wire paths. Operators write the expressions, and they arrive from the log. RE2 matches each in time linear in the
path; Python's `re` may take longer than a service lives. An analysis of expressions was tried, and refused harmless ones. A
push never loads this module.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any

import re2

from .errors import MalformedEvent
from .path import MAX_PATH
from .value import Value

# The most bytes that one compiled expression may take; one of this size takes some 10 ms to match the longest path.
MEMORY = 1024 * 1024


class Rules(Value):
    """The rules that decide which repositories a mirror carries.

    A rule is `path:EXACT` or `re:REGULAR EXPRESSION` (matched at the start of the path). Exact paths come first, include before
    exclude; then exclude expressions over include expressions. Without rules everything is carried; with rules, a path that matches
    none is left out. A rule that `check_rules` refuses, in a roster of an older release, leaves nothing out: better that notices
    wait for one mirror too many.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def carries(self, path: str) -> bool:
        """Return whether the repository at this wire path is carried.

        Mirror and aggregator both decide by this method alone.
        """
        if not self.include and not self.exclude:
            return True
        exact = f"path:{path}"
        if exact in self.include:
            return True
        if exact in self.exclude or _any_matches(self.exclude, path, refused=False):
            return False
        return _any_matches(self.include, path, refused=True)


def check_rules(rules: Rules) -> Rules:
    """Return the rules, or raise MalformedEvent naming the first that is refused."""
    for rule, problem in refused((*rules.include, *rules.exclude)).items():
        raise MalformedEvent(f"rule {rule[:200]!r}: {problem}")
    return rules


def refused(rules: Sequence[str]) -> dict[str, str]:
    """Return the rules that cannot be evaluated, each with the reason."""
    return {rule: problem for rule in rules if (problem := _compile_rule(rule)[1])}


def _any_matches(rules: Sequence[str], path: str, *, refused: bool) -> bool:
    """Return whether one of the expressions matches the path.

    `refused` says whether a rule that cannot be evaluated counts as a match.
    """
    text = path.encode(errors="replace")
    for rule in rules:
        expression, problem = _compile_rule(rule)
        matches = expression is not None and expression.match(text)
        if matches or (refused and problem):
            return True
    return False


@functools.lru_cache(maxsize=1024)
def _compile_rule(rule: str) -> tuple[Any, str]:
    """Return the compiled expression of a rule, and why the rule is refused or "".

    The expression is None for an exact path and for a refused rule.
    """
    kind, _, pattern = rule.partition(":")
    if kind not in ("path", "re") or not pattern:
        return None, "expected path:EXACT or re:EXPRESSION"
    if kind == "path":
        return None, ""
    if len(pattern) > MAX_PATH:
        return None, f"expected an expression of at most {MAX_PATH} characters, got {len(pattern)}"
    if re.search(r"\{,\d+\}", pattern):  # Python's {0,3}; RE2 takes it for text
        return None, "expected {0,N} where the expression has {,N}"
    # RE2's word for the end of the text is `\z`, Python's `\Z`.
    pattern = re.sub(r"\\(.)", lambda escape: r"\z" if escape[1] == "Z" else escape[0], pattern, flags=re.DOTALL)
    try:
        return re2.compile(pattern.encode(), _make_options()), ""
    except UnicodeEncodeError:
        return None, "not a regular expression: it is not text"
    except re2.error as error:
        return None, f"not a regular expression of RE2: {_explain_error(error)}"


def _make_options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MEMORY
    return options


_HINTS = {"invalid perl operator": "; it has neither lookahead nor lookbehind", "too large": "; write several rules"}


def _explain_error(error: Any) -> str:
    """Return RE2's reason to refuse an expression, with a hint if there is one.

    The hint says what RE2 cannot do, where the expression likely needs that.
    """
    said = error.args[0].decode(errors="replace") if error.args else "no reason given"
    return said + next((hint for word, hint in _HINTS.items() if word in said), "")
