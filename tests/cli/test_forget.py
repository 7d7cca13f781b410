# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator forget` deletes on all mirrors, so it is sure that the repository is not there."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli import forget
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.words.errors import Refused
from testing.builders.aggregator.states import some_state


def denied(path: str) -> PermissionError:
    return PermissionError(errno.EACCES, "Permission denied", path)


def refuse(tmp_path: Path) -> None:
    settings = RelaySettings(socket="/s", source="hg://master", roots={str(tmp_path): ""})
    state = some_state(path="group/one")
    forget._refuse_present(settings, state)


def test_a_repository_that_may_be_in_a_folder_that_cannot_be_read_is_not_forgotten(
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

    monkeypatch.setattr(forget, "find_repositories", find)
    with pytest.raises(Refused, match=r"/other cannot be read \(Permission denied\), and the repository may be there"):
        refuse(tmp_path)


def test_a_repository_that_may_be_deleted_is_not_forgotten_while_the_disk_does_not_show_it(tmp_path: Path) -> None:
    (deleted := tmp_path / ".vcsreplicator" / "deleted").mkdir(parents=True)
    name = some_state().repository
    (deleted / name).symlink_to(name)  # who looks gets ELOOP
    with pytest.raises(Refused, match=rf"/deleted/{name} cannot be read \(Too many levels of symbolic links\)"):
        refuse(tmp_path)


def test_a_repository_of_an_empty_root_is_not_forgotten_unless_the_operator_says_that_it_is_mounted(
    tmp_path: Path,
) -> None:
    settings = RelaySettings(socket="/s", source="hg://master", roots={str(tmp_path): ""})
    names = ["a" * 32, "b" * 32]
    states = {name: some_state(repository=name, path=f"group/{name[0]}", source="hg://master") for name in names}
    with pytest.raises(Refused, match=rf"{tmp_path}: is empty, 2 repositories were there: .*; if it is, .* --mounted"):
        forget._refuse_unmounted(settings, states, states[names[0]])
    control = tmp_path / "other" / ".hg"
    (control / "store").mkdir(parents=True)
    (control / "requires").write_text("store\n")
    forget._refuse_unmounted(settings, states, states[names[0]])
    (tmp_path / "group").mkdir()
    with pytest.raises(Refused, match=rf"{tmp_path}/group: is empty, 2 repositories were there: "):
        forget._refuse_unmounted(settings, states, states[names[0]])
