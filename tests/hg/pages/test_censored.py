# SPDX-License-Identifier: GPL-2.0-or-later
"""Pages and archives with a censored file are whole: the file is empty there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.builders.asked_pages import AskedPages, asked_pages
from tests.hg.pages.test_files import FILE_PAGES, SERVED, History, hgrc

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def censored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a repository in which both revisions of a file are censored."""
    root = tmp_path_factory.mktemp("censored") / "root"
    root.mkdir()
    history = History(root / "repo")
    for number in ("0", "4"):
        history.hg("--config", "extensions.censor=", "censor", "-r", number, "f", "--no-check-heads")
    (history.folder / ".hg" / "replicated-watermark").write_text(f"1 1 6 {history.node(5)} -\n")
    return root


@pytest.fixture(scope="module", params=SERVED)
def pages(censored: Path, request: pytest.FixtureRequest) -> Iterator[AskedPages]:
    with asked_pages(censored, hgrc(request.param, censored.parent)) as asked:
        yield asked


@pytest.mark.sample(3)
@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize(
    "address",
    [f"{page}/NUMBER/f" for page in FILE_PAGES]
    + ["rev/NUMBER", "raw-rev/NUMBER", "rev/5", "raw-rev/5", "archive/NUMBER.zip", "filelog/NUMBER/f?patch=1"],
)
def test_a_page_with_a_censored_file_is_whole(pages: AskedPages, address: str, number: int) -> None:
    before, (path, _, query) = len(pages.alarms()), address.replace("NUMBER", str(number)).partition("?")
    answer = pages.get(f"/repo/{path}", query)
    assert (answer.status, answer.failure, pages.alarms()[before:]) == (200, None, [])
