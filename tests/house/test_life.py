# SPDX-License-Identifier: GPL-2.0-or-later
"""One file of a mirror's supervision sets the state of a repository; the others ask it for steps."""

import ast
import dataclasses

import pytest

from hgext.vcsreplicator.mirror.supervision.life import Following, Transition
from hgext.vcsreplicator.mirror.supervision.values import AtWork, InLog, InTrouble, OnDisk
from tests.house.sources import files

FOLDER = "hgext/vcsreplicator/mirror/supervision"
OWNER = f"{FOLDER}/life.py"
VALUES = (OnDisk, InLog, InTrouble, AtWork)
STATE = {field.name for kind in (*VALUES, Following) for field in dataclasses.fields(kind)}
MAKERS = {kind.__name__ for kind in (*VALUES, Following, Transition)} | {"setattr", "__setattr__"}


def find_changes(source: str) -> list[str]:
    """What sets a repository's state, or makes a value or a step that would."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr in STATE:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            changes = {each.arg for each in node.keywords} & STATE if name == "replace" else set()
            if name in MAKERS or (changes and any(isinstance(each, ast.Attribute) for each in node.args)):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_one_file_sets_the_state_of_a_repository() -> None:
    assert OWNER in dict(files(FOLDER))
    offending = [
        f"{name}:{found}"
        for name, text in files(FOLDER)
        if name != OWNER and name.endswith(".py")
        for found in find_changes(text)
    ]
    assert not offending, "\n".join(offending)


@pytest.mark.parametrize(
    "line",
    [
        "following.work = other.work",
        "following.trouble.note = None",
        "following.work.drops += 1",
        "del following.log",
        "setattr(following, 'work', None)",
        "object.__setattr__(following, 'work', None)",
        "following.change(Transition(work=None))",
        "following.change(make(work=replace(following.work, phase=phase)))",
        "life.AtWork(phase=phase)",
    ],
)
def test_each_way_to_change_the_state_elsewhere_is_found(line: str) -> None:
    assert len(find_changes(line)) == 1


def test_a_value_of_a_repository_cannot_be_changed_in_place() -> None:
    assert all(kind.__dataclass_params__.frozen for kind in VALUES)  # type: ignore[attr-defined]
