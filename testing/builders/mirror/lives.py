# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories of a mirror in any state, without the events that lead there."""

from dataclasses import fields, replace
from typing import Any

from hgext.vcsreplicator.mirror.supervision.life import Following, Transition
from hgext.vcsreplicator.mirror.supervision.values import AtWork, InLog, InTrouble, OnDisk

VALUES = {"disk": OnDisk, "log": InLog, "trouble": InTrouble, "work": AtWork}


def following_of(repository: str, path: str, **members: Any) -> Following:
    """A repository whose values have these members."""
    following = Following(id=repository, disk=OnDisk(path=path))
    put(following, **members)
    return following


def put(following: Following, **members: Any) -> None:
    """Give a repository these members, each in the value that has it."""
    for name, kind in VALUES.items():
        own = {each.name: members.pop(each.name) for each in fields(kind) if each.name in members}
        following.change(Transition(**{name: replace(getattr(following, name), **own)}))
    assert not members, members
