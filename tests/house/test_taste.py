# SPDX-License-Identifier: GPL-2.0-or-later
"""Each check of taste finds what it is for."""

import ast

from tests.house import taste
from tests.house.sources import nodes


def test_the_checks_of_functions_can_fail() -> None:
    source = "def _over(): pass\ndef _write(): pass\ndef _write_over(): pass\n@property\ndef _size(): pass"
    found = [node for node in ast.parse(source).body if isinstance(node, taste.Function) and taste.is_riddle(node)]
    assert [node.name for node in found] == ["_over"]
    assert taste.length(found[0]) == 1
    for nested in ("a if b else c if d else e", "a if (b if c else d) else e", "f(a if b else c) if d else e"):
        assert list(taste.nested_choices(nodes(nested))) == [1]
    assert not list(taste.nested_choices(nodes("[a if b else c, d if e else f]")))


def test_the_checks_of_texts_and_names_can_fail() -> None:
    assert taste.BESIDE.search("LIMIT = 5  # of something\n")
    assert taste.FIRST_LINE.findall('    """One line."""') == ["One line."]
    assert "util" in taste.VAGUE
    assert taste.LONG_TEST.findall(f"def test_{64 * 'a'}():\ndef test_{65 * 'a'}():") == [f"test_{65 * 'a'}"]
    assert taste.hidden_actors("Somebody asks") == ["Somebody"]
    assert list(taste.list_long_lines("a\n" + "b" * 121)) == ["2: " + "b" * 121]
    assert not list(taste.list_long_lines("b" * 120))
