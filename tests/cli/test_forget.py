# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator forget` deletes on all mirrors, so it is sure that the repository is not there."""

from pathlib import Path

import pytest

from hgext.vcsreplicator.cli import forget
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.words.errors import Refused
from testing.builders.aggregator.states import some_state


def test_a_repository_of_an_empty_root_stays_unless_it_is_mounted(
    tmp_path: Path,
) -> None:
    settings = RelaySettings(socket="/s", source="hg://master", roots={str(tmp_path): ""})
    names = ["a" * 32, "b" * 32]
    states = {name: some_state(repository=name, path=f"group/{name[0]}", source="hg://master") for name in names}
    with pytest.raises(Refused, match=rf"{tmp_path}: is empty, 2 repositories were there: .*; if it is, .* --mounted"):
        forget.refuse_unmounted(settings, states, states[names[0]])
    control = tmp_path / "other" / ".hg"
    (control / "store").mkdir(parents=True)
    (control / "requires").write_text("store\n")
    forget.refuse_unmounted(settings, states, states[names[0]])
    (tmp_path / "group").mkdir()
    with pytest.raises(Refused, match=rf"{tmp_path}/group: is empty, 2 repositories were there: "):
        forget.refuse_unmounted(settings, states, states[names[0]])
