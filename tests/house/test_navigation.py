# SPDX-License-Identifier: GPL-2.0-or-later
"""Every page has its place in the navigation of the site, and reads there as it does in the repository."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from testing.services.cache import CHECKOUT
from tests.house.sources import files

CONFIGURATION = CHECKOUT / "mkdocs.yml"
# Pages, without the given material.
PAGES = ("*.md", ":!tests/golden")
LIST = re.compile(r"( *)([-*]|\d+\.) ")


def named(entries: list[Any]) -> Iterator[str]:
    """Yield the pages below entries of the navigation."""
    for entry in entries:
        for value in entry.values():
            if isinstance(value, list):
                yield from named(value)
            else:
                yield value


def read_differently(text: str) -> list[str]:
    """The lines that the site shows otherwise than the forge: without a blank line before, or indented by less than four."""
    offending, previous, is_code = [], "", False
    for number, line in enumerate(text.splitlines(), 1):
        mark = LIST.match(line)
        is_first = bool(previous.strip()) and not LIST.match(previous) and not previous.startswith("  ")
        if line.strip().startswith("```"):
            is_code = not is_code
            is_wrong = line.startswith(" ")
        elif is_code:
            is_wrong = False
        elif mark:
            is_wrong = is_first or (bool(mark[1]) and len(mark[1]) < 4)
        else:
            is_wrong = line.startswith("|") and bool(previous.strip()) and not previous.startswith("|")
        if is_wrong:
            offending.append(f"{number}: {line}")
        previous = line
    return offending


def test_every_page_is_in_the_navigation_once() -> None:
    pages = [name for name, _ in files(*PAGES) if Path(name).parent != Path("docs/decisions")]
    navigation = list(named(yaml.safe_load(CONFIGURATION.read_text())["nav"]))
    assert sorted(navigation) == sorted([*pages, "docs/decisions/README.md"])


def test_the_page_of_the_units_links_each() -> None:
    folder = CHECKOUT / "docs/systemd"
    links = re.findall(r"\]\(([\w@-]+\.service)\)", (folder / "README.md").read_text())
    assert sorted(links) == sorted(unit.name for unit in folder.glob("*.service"))


def test_every_page_reads_alike_on_the_site_and_in_the_repository() -> None:
    offending = [f"{name}:{line}" for name, text in files(*PAGES) for line in read_differently(text)]
    assert not offending


def test_no_heading_begins_with_a_digit() -> None:
    # Its anchor would end the script of every page that lists it in the margin.
    offending = [(name, line) for name, text in files(*PAGES) for line in re.findall(r"^#+ \d.*", text, re.MULTILINE)]
    assert not offending


def test_the_check_of_markdown_can_fail() -> None:
    for text in ("text\n- a", "text\n|a|", "- a\n  - b", "- a\n\n  ```\n  b\n  ```"):
        assert read_differently(text), text
    assert not read_differently("text\n\n- a\n  b\n- c\n    - d\n\n|a|\n|-|\n\n```\ntext\n- a\n```\n")
