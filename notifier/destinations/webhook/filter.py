# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters of subscriptions: JMESPath expressions with a limit on their work.

Subscribers write them; their work must be in proportion to the message. An expression may build lists that double with every step,
and functions may raise unexpected exceptions. Every visited or built part counts. Past the limit, or after any other error, the
filter failed on this message.
"""

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, ClassVar

import jmespath
from jmespath.visitor import TreeInterpreter

from ...messages.message import Json

# Characters of an expression.
LONGEST = 4096

# Steps that every expression may take.
STEPS = 10_000
# Further steps for each part (member, item, 64 characters) of the message.
STEPS_PER_PART = 20
# Most steps of a condition whose value is kept for further filters: the value is no larger.
KEPT_STEPS = 100

TOO_LONG = "takes too many steps"

_BUILDERS = {
    *("multi_select_list", "multi_select_dict", "flatten", "function_expression"),
    *("projection", "filter_projection", "value_projection"),
}
_VISITS = {
    name.removeprefix("visit_"): visit for name, visit in vars(TreeInterpreter).items() if name.startswith("visit_")
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


class FilteredMessage:
    """A message that any number of filters look at.

    For all filters together its parts are counted once, and filters and conditions of the same text are evaluated once. A condition
    takes its steps from each filter that has it, so that no filter passes or fails because of another one.
    """

    def __init__(self, envelope: Json) -> None:
        self._envelope = envelope
        self._interpreter = _CountingInterpreter(envelope)
        self._found: dict[str, bool] = {}

    def matches(self, expression: str) -> bool:
        """Return whether the expression finds something true; raise FilterFailed."""
        if expression not in self._found:
            self._found[expression] = self._evaluate(expression)
        return self._found[expression]

    @cached_property
    def _steps(self) -> int:
        """The steps that each filter may take."""
        return STEPS + STEPS_PER_PART * self._interpreter.count_parts(self._envelope)

    def _evaluate(self, expression: str) -> bool:
        try:
            return bool(self._interpreter.evaluate(_compile_filter(expression), self._steps))
        except FilterFailed:
            raise
        except Exception as error:
            raise FilterFailed(f"{type(error).__name__}: {error}"[:300]) from error


_compare_any = TreeInterpreter.COMPARATOR_FUNC["eq"]


def _compare(left: Any, right: Any) -> Any:
    """Return whether two values are equal; for texts without jmespath's look for numbers, which takes longer."""
    return left == right if isinstance(left, str) else _compare_any(left, right)


class _CountingInterpreter(TreeInterpreter):  # type: ignore[misc]  # jmespath has no types
    """Evaluates expressions on a message, each in at most a given number of steps."""

    COMPARATOR_FUNC: ClassVar[dict[str, Callable[[Any, Any], Any]]] = {
        **TreeInterpreter.COMPARATOR_FUNC,
        "eq": _compare,
        "ne": lambda left, right: not _compare(left, right),
    }

    def __init__(self, envelope: Json) -> None:
        super().__init__()
        self._envelope, self._left = envelope, 0
        # By the `id` of a node that filters share, its value for the whole message, and the steps that it took.
        self._known: dict[int, tuple[Any, int]] = {}

    def evaluate(self, expression: Any, steps: int) -> Any:
        self._left = steps
        return self.visit(expression, self._envelope)

    def count_parts(self, value: Json) -> int:
        self._left = before = 2**63
        self._check_cost(value)
        return before - self._left

    def visit(self, node: Any, value: Any) -> Any:
        self._left -= 1  # a call for this, or jmespath's own `visit`, would be half of what a filter costs
        if self._left < 0:
            raise FilterFailed(TOO_LONG)
        kind = node["type"]
        if kind == "literal":
            return node["value"]
        is_shared = _SHARED in node and value is self._envelope
        if is_shared and (known := self._known.get(id(node))) is not None:
            self._left -= known[1]
            if self._left < 0:
                raise FilterFailed(TOO_LONG)
            return known[0]
        before = self._left
        found = _VISITS[kind](self, node, value)
        if kind in _BUILDERS:
            self._check_cost(found)
        if is_shared and (steps := before - self._left) <= KEPT_STEPS:
            self._known[id(node)] = found, steps
        return found

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
            raise FilterFailed(TOO_LONG)


@cache
def _compile_filter(expression: str) -> Any:
    return _share_nodes(jmespath.compile(expression).parsed)


# A member of nodes that stand in several places, and the nodes of all filters by what they say.
_SHARED = "is_shared"
_nodes: dict[object, Any] = {}


def _share_nodes(node: Any) -> Any:
    """Return an equal node of any filter so far, or else this one; leaves stay as they are."""
    if not isinstance(node, dict) or not node["children"]:
        return node
    parts = list[object]()
    for index, child in enumerate(
        node["children"]
    ):  # not a comprehension, which would halve the depth that Python takes
        node["children"][index] = each = _share_nodes(child)
        parts.append(id(each) if isinstance(each, dict) and each["children"] else repr(each))
    known = _nodes.setdefault((node["type"], repr(node.get("value")), *parts), node)
    if known is not node:
        known[_SHARED] = True
    return known
