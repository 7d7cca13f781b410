# SPDX-License-Identifier: GPL-2.0-or-later
"""Wire paths: how a repository is named in the log, the same on every machine, whatever its folder is called.

A wire path is relative, uses `/`, and stays inside its root on any mirror: no `..`, no empty or dot-only part, no part that
Mercurial or a file system treats specially. Checked before any I/O, because it arrives from the log.
"""

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from .errors import MalformedEvent
from .value import Value

MAX_PATH = 1024
MAX_PART = 240

_FORBIDDEN_PARTS = frozenset({".", "..", ".hg", ".hglf", ".hgsub", ".hgsubstate"})


def check_path(path: str) -> str:
    """The wire path itself if a mirror may create it; raises MalformedEvent saying what is wrong with it."""
    problem = _problem(path)
    if problem:
        raise MalformedEvent(f"repository path {path[:80]!r}: {problem}")
    return path


def _problem(path: str) -> str | None:
    if not path or len(path) > MAX_PATH:
        return f"expected 1 to {MAX_PATH} characters, got {len(path)}"
    if path.startswith("/") or "\\" in path:
        return "expected a relative path with / between its parts"
    if any(unicodedata.category(character) in ("Cc", "Cs", "Cf") for character in path):
        return "control characters are not allowed"
    for part in path.split("/"):
        if not part or part.lower() in _FORBIDDEN_PARTS:
            return f"the part {part!r} is not allowed"
        if len(part.encode()) > MAX_PART:
            return f"a part is longer than {MAX_PART} bytes"
        if part[0] in "-~" or part[-1] in ". " or part[0] == " ":
            return f"the part {part[:40]!r} begins or ends with a character that is not allowed"
    return None


def check_prefix(prefix: str, where: str) -> None:
    """Raises ValueError naming `where` unless wire paths below this prefix may be created; an empty one is none."""
    try:
        if prefix.strip("/"):
            check_path(prefix.strip("/"))
    except MalformedEvent as error:
        raise ValueError(f"{where}: {error}") from error


def twin(path: str) -> str:
    """What two paths share that a file system without case or with Unicode normalisation would take for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", path).casefold())


def wire_path(local: str, roots: Mapping[str, str]) -> str | None:
    """The wire path of the local folder, by the longest matching root `{folder: wire prefix}`; None outside all roots.

    A prefix of "" puts the repository's path relative to the root on the wire as it is.
    """
    for root in sorted(roots, key=len, reverse=True):
        folder = root.rstrip("/")
        if local == folder:
            return roots[root].strip("/") or None
        if local.startswith(folder + "/"):
            return "/".join(part for part in (roots[root].strip("/"), local[len(folder) + 1 :]) if part)
    return None


class Rules(Value):
    """Which repositories a mirror carries: `path:EXACT` or `re:REGULAR EXPRESSION` (matched at the start of the path).

    Exact paths come first, include before exclude; then exclude expressions over include expressions. With no rules at all
    everything is carried; with rules, what matches none is left out. An expression that `check_rules` refuses, in a roster of an
    older release, leaves nothing out: notices rather wait for a mirror too many.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def carries(self, path: str) -> bool:
        """Whether the repository at this wire path is carried; the one evaluator for mirror and aggregator."""
        if not self.include and not self.exclude:
            return True
        exact = f"path:{path}"
        if exact in self.include:
            return True
        if exact in self.exclude or _any_expression(self.exclude, path, refused=False):
            return False
        return _any_expression(self.include, path, refused=True)


def check_rules(rules: Rules) -> Rules:
    """The rules themselves if each can be evaluated; raises MalformedEvent naming the first that cannot."""
    for rule in (*rules.include, *rules.exclude):
        kind, _, pattern = rule.partition(":")
        if kind not in ("path", "re") or not pattern:
            raise MalformedEvent(f"rule {rule!r}: expected path:EXACT or re:EXPRESSION")
        if kind == "re":
            _, problem = _expression(pattern)
            if problem:
                raise MalformedEvent(f"rule {rule[:200]!r}: {problem}")
    return rules


def _any_expression(rules: Sequence[str], path: str, *, refused: bool) -> bool:
    """Whether one of the expressions matches; `refused` is what one counts as that is not evaluated."""
    for rule in rules:
        if rule.startswith("re:"):
            expression, _ = _expression(rule[3:])
            if refused if expression is None else expression.match(path):
                return True
    return False


WAYS = 4 * 1024 * 1024
"""In how many ways an expression may be tried against a path; one that has more could stop a service for ever."""


@functools.lru_cache(maxsize=1024)
def _expression(pattern: str) -> tuple[re.Pattern[str] | None, str]:
    """The compiled expression, or None and why it is refused."""
    if len(pattern) > MAX_PATH:
        return None, f"expected an expression of at most {MAX_PATH} characters, got {len(pattern)}"
    try:
        found = re.compile(pattern)
        ways = _ways(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        return None, f"not a regular expression: {error}"
    except _Unbounded as error:
        return None, f"{error} is not allowed, because matching it may never end"
    if ways > WAYS:
        return None, "too many ways to match: at most two of *, + and the like are allowed, and few alternatives"
    return found, ""


class _Unbounded(Exception):
    """What an expression must not have."""


_ONE = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "RANGE", "CATEGORY"})


def _ways(parsed: Any) -> int:
    """In how many ways at most the parts of an expression can be tried against a path. Raises _Unbounded."""
    ways = 1
    for kind, argument in parsed:
        ways *= _ways_of(str(kind), argument)
        if ways > WAYS:
            break
    return ways


def _ways_of(kind: str, argument: Any) -> int:
    if kind in _ONE or kind == "AT":
        return 1
    if kind == "SUBPATTERN":
        return _ways(argument[-1])
    if kind == "BRANCH":
        return sum(_ways(each) for each in argument[1])
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, inner = argument
        least, most = min(least, MAX_PATH), min(most, MAX_PATH)
        if len(inner) == 1 and str(inner[0][0]) in _ONE:
            return int(most - least + 1)
        if most > 1:
            raise _Unbounded("a repeated group")
        return 1 + _ways(inner)
    raise _Unbounded({"GROUPREF": "a reference to a group"}.get(kind, f"{kind.lower().replace('_', ' ')}"))
