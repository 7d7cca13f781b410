# SPDX-License-Identifier: GPL-2.0-or-later
"""A deletion reaches all mirrors, so it is sure that the repository is not there."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.relay.gone import deletion
from hgext.vcsreplicator.words.errors import Refused
from testing.builders.aggregator.states import some_state


def denied(path: str) -> PermissionError:
    return PermissionError(errno.EACCES, "Permission denied", path)


def refuse(tmp_path: Path) -> None:
    deletion.refuse_present({str(tmp_path): ""}, some_state(path="group/one"))


def test_a_repository_perhaps_in_an_unreadable_folder_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(tmp_path)
    with monkeypatch.context() as hidden:
        hidden.setattr(os, "lstat", lambda path: (_ for _ in ()).throw(denied(path)))
        with pytest.raises(Refused, match=r"/group/one cannot be read \(Permission denied\)"):
            refuse(tmp_path)

    def find(root: str, on_unreadable: Callable[[OSError], object]) -> Iterator[str]:
        on_unreadable(denied(f"{root}/.snapshot"))
        on_unreadable(denied(f"{root}/other"))
        yield from ()

    monkeypatch.setattr(deletion, "find_repositories", find)
    with pytest.raises(Refused, match=r"/other cannot be read \(Permission denied\), and the repository may be there"):
        refuse(tmp_path)


def test_a_deleted_repository_stays_while_the_disk_does_not_show_it(tmp_path: Path) -> None:
    (deleted := tmp_path / ".vcsreplicator" / "deleted").mkdir(parents=True)
    name = some_state().repository
    (deleted / name).symlink_to(name)  # who looks gets ELOOP
    with pytest.raises(Refused, match=rf"/deleted/{name} cannot be read \(Too many levels of symbolic links\)"):
        refuse(tmp_path)
