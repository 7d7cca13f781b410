# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a mirror's settings put the repository of a wire path."""

import pytest

from hgext.vcsreplicator.mirror.settings import MirrorSettings


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("x/y", "/repos/sub/x/y"),
        ("l10n", "/repos/languages"),
        ("l10n/de", "/repos/languages/de"),
        ("l10nx", "/repos/sub/l10nx"),
    ],
)
@pytest.mark.parametrize("all_of_them", ["", "/"])
def test_the_empty_prefix_moves_every_path_that_no_longer_one_matches(all_of_them: str, path: str, folder: str) -> None:
    settings = MirrorSettings(name="alpha", root="/repos", paths={all_of_them: "sub", "l10n/": "languages"})
    assert settings.local(path) == folder


@pytest.mark.parametrize("paths", [{"a/../b": "x"}, {"a//b": "x"}, {"x": "../y"}])
def test_a_prefix_that_no_path_can_have_is_refused(paths: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"paths: repository path '.*': the part '.*' is not allowed"):
        MirrorSettings(name="alpha", root="/repos", paths=paths)
