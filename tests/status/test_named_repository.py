# SPDX-License-Identifier: GPL-2.0-or-later
"""Which repository an operator means by a path or an id."""

import pytest

from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.records import RepositoryState
from testing.builders.aggregator.states import some_state


def state(repository: str, path: str, generation: int, *, deleted: bool = False) -> RepositoryState:
    return some_state(
        repository=repository, incarnation="i", path=path, generation=generation, event="e", digest="d", deleted=deleted
    )


KNOWN = [
    state("old", "group/one", 1, deleted=True),
    state("now", "group/one", 2),
    state("later", "group/one", 3, deleted=True),
    state("gone", "group/two", 1, deleted=True),
    state("strange", "now", 9),
]
PICTURE = Picture(states={each.repository: each for each in KNOWN})


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("group/one", "now"),
        ("/group/one/", "now"),
        ("group/two", "gone"),
        ("old", "old"),
        ("now", "now"),
    ],
)
def test_a_path_means_the_repository_there_and_an_id_comes_first(named: str, found: str) -> None:
    assert PICTURE.find_repository(named).repository == found


@pytest.mark.parametrize("named", ["group/two", "old", "nowhere"])
def test_a_deleted_repository_cannot_be_meant_for_a_living_one(named: str) -> None:
    with pytest.raises(Refused, match="neither a path nor an id"):
        PICTURE.find_repository(named, is_living=True)


@pytest.mark.parametrize(
    ("named", "hint"),
    [
        ("/srv/repos/group/one", "; did you mean group/one?"),
        ("group/ome", "; did you mean group/one?"),
        ("elsewhere", ""),
    ],
)
def test_an_unknown_repository_comes_with_a_path_that_is_like_it(named: str, hint: str) -> None:
    with pytest.raises(Refused) as refused:
        PICTURE.find_repository(named, is_living=True)
    assert str(refused.value) == f"repository {named}: neither a path nor an id that the log knows{hint}"
