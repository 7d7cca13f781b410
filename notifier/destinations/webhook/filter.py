# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters of subscriptions: JMESPath expressions with a limit on their work.

Subscribers write them; their work must be in proportion to the message. An expression may build lists that double with every step,
and functions may raise unexpected exceptions. Every visited or built part counts. Past the limit, or after any other error, the
filter failed on this message.
"""

from functools import cache
from typing import Any

import jmespath
from jmespath.visitor import TreeInterpreter

from ...messages.message import Json

# Characters of an expression.
LONGEST = 4096

# Steps that every expression may take.
STEPS = 10_000
# Further steps for each part (member, item, 64 characters) of the message.
STEPS_PER_PART = 20

_BUILDERS = {
    *("multi_select_list", "multi_select_dict", "flatten", "function_expression"),
    *("projection", "filter_projection", "value_projection"),
}


class FilterFailed(Exception):
    """The expression cannot be applied to this message, or takes too long."""


def check_filter(expression: str) -> None:
    """Raise ValueError if it is no JMESPath expression, or too long."""
    if len(expression) > LONGEST:
        raise ValueError(f"filter: expected at most {LONGEST} characters")
    try:
        _compile_filter(expression)
    except Exception as error:  # jmespath has errors of its own, and lets others through: RecursionError, TypeError
        raise ValueError(f"filter: not a JMESPath expression: {(str(error).splitlines() or [''])[0]}") from error


def matches(expression: str, envelope: Json) -> bool:
    """Return whether the expression finds something true; raise FilterFailed."""
    try:
        return bool(_CountingInterpreter(envelope).visit(_compile_filter(expression).parsed, envelope))
    except FilterFailed:
        raise
    except Exception as error:
        raise FilterFailed(f"{type(error).__name__}: {error}"[:300]) from error


class _CountingInterpreter(TreeInterpreter):  # type: ignore[misc]  # jmespath has no types
    """Evaluates one expression on one message, and counts."""

    def __init__(self, envelope: Json) -> None:
        super().__init__()
        self._left = 2**63
        before = self._left
        self._check_cost(envelope)
        self._left = STEPS + STEPS_PER_PART * (before - self._left)

    def visit(self, node: Any, *arguments: Any, **more: Any) -> Any:
        self._spend_step(1)
        value = super().visit(node, *arguments, **more)
        if node["type"] in _BUILDERS:
            self._check_cost(value)
        return value

    def _check_cost(self, value: Any) -> None:
        """Count the parts of a value, as often as they stand in it."""
        rest = [value]
        while rest:
            each = rest.pop()
            self._spend_step(1 + (len(each) >> 6 if isinstance(each, str) else 0))
            if isinstance(each, list | tuple):
                rest.extend(each)
            elif isinstance(each, dict):
                rest.extend(each.values())

    def _spend_step(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise FilterFailed("takes too many steps")


@cache
def _compile_filter(expression: str) -> Any:
    return jmespath.compile(expression)
