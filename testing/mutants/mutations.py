# SPDX-License-Identifier: GPL-2.0-or-later
"""The small faults that a programmer could make in a module, each as the whole text of the module with that fault."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

# What stands for each comparison: its neighbour and its opposite.
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
EXTREMES = {"min": "max", "max": "min"}
# Calls that only a developer reads the result of.
UNOBSERVED = ("log.debug", "_log.debug")


@dataclass(frozen=True, slots=True)
class Mutant:
    """Other code in the place of one node of a module."""

    path: str
    function: str
    node: ast.expr | ast.stmt
    changed: ast.expr | ast.stmt

    @property
    def name(self) -> str:
        """What the change is, whatever stands above it in the file."""
        before, after = (" ".join(ast.unparse(node).split()) for node in (self.node, self.changed))
        return f"{self.path} {self.function}: {before} → {after}"

    def change(self, source: str) -> str:
        """Return the module's text with the change; all else stays on its line."""
        end_line, end_column = self.node.end_lineno, self.node.end_col_offset
        assert end_line is not None
        lines = source.encode().splitlines(keepends=True)
        before = b"".join(lines[: self.node.lineno - 1]) + lines[self.node.lineno - 1][: self.node.col_offset]
        after = lines[end_line - 1][end_column:] + b"".join(lines[end_line:])
        lines_lost = "\n" * (end_line - self.node.lineno)
        text = ast.unparse(self.changed) + lines_lost
        return (before + (f"({text})" if isinstance(self.changed, ast.expr) else text).encode() + after).decode()


def mutate(path: str, source: str) -> list[Mutant]:
    """Return every mutant of the functions of a module, in a fixed order."""
    return [
        Mutant(path, function, node, changed)
        for function, node, is_condition in _walk(ast.parse(source), "")
        for changed in _change(node, is_condition)
    ]


def _walk(parent: ast.AST, function: str) -> Iterator[tuple[str, ast.expr | ast.stmt, bool]]:
    """Yield each expression and statement of functions, and whether it is a condition.

    What is evaluated once, as defaults and decorators, and messages are left out. The name of a class ends with a dot.
    """
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _walk(node, f"{function}{node.name}")
            elif isinstance(node, ast.ClassDef):
                yield from _walk(node, f"{function}{node.name}.")
            elif isinstance(node, ast.AST):
                if function and not function.endswith(".") and isinstance(node, ast.expr | ast.stmt):
                    yield function, node, field in ("test", "ifs")
                if not isinstance(node, ast.JoinedStr | ast.Raise | ast.arguments):
                    yield from _walk(node, function)


def _change(node: ast.expr | ast.stmt, is_condition: bool) -> Iterator[ast.expr | ast.stmt]:
    """Yield what may stand in place of a node."""
    match node:
        case ast.Name() | ast.Attribute() | ast.Call() if is_condition:
            yield ast.UnaryOp(ast.Not(), node)
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                for other in COMPARISONS[type(operator)]:
                    operators = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                    yield ast.Compare(node.left, operators, node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() as number):
            for near in (number + 1, number - 1):
                yield ast.Constant(near)
        case ast.Call(func=ast.Name(id=name)) if name in EXTREMES:
            yield ast.Call(ast.Name(EXTREMES[name]), node.args, node.keywords)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and not value.value):
            yield ast.Return(ast.Constant(None))
        case _ if _acts(node):
            yield ast.Pass()


def _acts(node: ast.expr | ast.stmt) -> TypeGuard[ast.stmt]:
    """Tell whether the function can go on without this statement: it binds no name."""
    match node:
        case ast.Expr(value=ast.Call(func=function)):
            return ast.unparse(function) not in UNOBSERVED
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            return True
        case _:
            return isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break)
