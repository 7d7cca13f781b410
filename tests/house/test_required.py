# SPDX-License-Identifier: GPL-2.0-or-later
"""Every hgrc that we show, ship or write for a test has Mercurial refuse its work without our extensions."""

import re
from collections.abc import Iterator

import pytest

from tests.house.sources import files

SECTION = re.compile(r"\[extensions\]\W*$")
END = re.compile(r"\[[a-z{]|\bEOF\b|\"\"\"|```|^\W*$")
OURS = re.compile(r"^\W*(vcsreplicator|pushlog)\s*=(?!\s*!)")
# These are about it: which hgrc is refused, and by whom.
ABOUT = ("tests/cli/test_config_hgrc.py", "tests/house/test_required.py")


def sections(text: str) -> Iterator[tuple[int, list[str]]]:
    """The number of the line after each `[extensions]`, and the lines of that section."""
    lines = text.replace("\\n", "\n").splitlines()
    for number, line in enumerate(lines, 1):
        if SECTION.search(line):
            section: list[str] = []
            for following in lines[number:]:
                if END.search(following):
                    break
                section.append(following)
            yield number + 1, section


def without_required(section: list[str]) -> list[str]:
    """Names of our extensions that are loaded without being required."""
    required = {
        name for line in section for name in re.findall(r"(\*|vcsreplicator|pushlog):required\s*=\s*yes\b", line)
    }
    loaded = [match[1] for line in section if (match := OURS.match(line))]
    return [] if "*" in required else [name for name in loaded if name not in required]


def test_no_hgrc_loads_our_extensions_without_requiring_them() -> None:
    offending = [
        f"{name}:{number}: {', '.join(missing)}"
        for name, text in files(":!tests/golden")
        if name not in ABOUT
        for number, section in sections(text)
        if (missing := without_required(section))
    ]
    assert not offending, "\n".join(offending)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("[extensions]\npushlog =\nvcsreplicator = /x\n[web]\n*:required = yes", [["pushlog", "vcsreplicator"]]),
        ("  > [extensions]\n  > vcsreplicator =\n  > EOF", [["vcsreplicator"]]),
        ('"[extensions]\\npushlog =\\npushlog:required = yes\\nvcsreplicator =\\n"', [["vcsreplicator"]]),
        ("[extensions]\n*:required = yes\npushlog =\nvcsreplicator =\n", [[]]),
        ("[extensions]\nrebase =\n", [[]]),
    ],
)
def test_what_is_missing_is_found(text: str, missing: list[list[str]]) -> None:
    assert [without_required(section) for _, section in sections(text)] == missing
