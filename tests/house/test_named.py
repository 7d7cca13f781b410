# SPDX-License-Identifier: GPL-2.0-or-later
"""What pages name exists, as it is spelt: metrics, units, log lines, commands; of the runbook every code span."""

import dataclasses
import functools
import re

from tests.house.shown import CODE, PAGES, problem
from tests.house.sources import PRODUCT, files, texts_of
from tests.house.test_keys import ALL_SECTIONS, KINDS, SECTIONS

METRIC = re.compile(r"\bvcsreplicator_[a-z_]+")
# Parts of a histogram.
PARTS = re.compile(r"_(bucket|sum|count)$")
UNIT = re.compile(r"(?:systemctl(?: [a-z-]+)*|journalctl -u|[Uu]nits?|ExecStart) [`'(]{0,2}(vcsreplicator-[\w-]+@?)")
# Log lines as pages name them: "log lines `a` and `b`", "logs `a`".
LOGGED = re.compile(r"(?:\blog lines?|\blogs(?: the error)?) (`[^`]+`(?:(?:, | and | or )`[^`]+`)*)")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
# What stands for a value: dots, words in capitals, the number of a file.
VALUE = re.compile(r"…|\b[A-Z][A-Z-]+\b|\b0{8,}\b")


@functools.cache
def texts() -> list[str]:
    """Every text of the product."""
    return sorted({text for _, source in files(*PRODUCT) for text in texts_of(source, "…")})


@functools.cache
def keys() -> set[str]:
    """Every key of the services' file."""
    kinds = (*ALL_SECTIONS, *SECTIONS.values(), *KINDS.values())
    return {field.name.replace("_", "-") for kind in kinds for field in dataclasses.fields(kind)}


def as_pattern(words: str) -> str:
    """A pattern for the words in which what stands for a value is any text."""
    return ".*".join(re.escape(part.strip()) for part in VALUE.split(words))


def is_said(words: str, places: list[str]) -> bool:
    """Whether one of the texts has these words, which are not parts of longer ones."""
    pattern = re.compile(rf"(?<![\w-]){as_pattern(words)}(?![\w-])")
    longest = max(VALUE.split(words), key=len).strip()
    return any(longest in place and pattern.search(place) for place in places)


def test_metrics_that_pages_name_exist() -> None:
    # A test of monitoring compares these lines with the registry.
    known = set(re.findall(r"^\| `(vcsreplicator_\w+)` \|", PAGES["docs/monitoring.md"], re.MULTILINE))
    assert len(known) > 50
    named = {
        (page, name) for page, text in (*PAGES.items(), *files("docs/monitoring/*")) for name in METRIC.findall(text)
    }
    assert not [f"{page}: {name}" for page, name in sorted(named) if not {name, PARTS.sub("", name)} & known]


def test_what_the_page_of_one_machine_calls_red_is_said() -> None:
    rows = PAGES["docs/one-machine.md"].partition("| what is seen |")[2].splitlines()
    seen = [words for row in rows for words in re.findall("`([^`]+)`", row.split("|")[1]) if row.startswith("| ")]
    assert len(seen) > 5
    assert not [words for words in seen if not is_said(words, texts()) and problem(words) is None]


def test_units_that_pages_name_exist() -> None:
    known = {name.rpartition("/")[2].removesuffix(".service") for name, _ in files("docs/systemd/*.service")}
    named = {(page, name) for page, text in PAGES.items() for name in UNIT.findall(text)}
    assert len(named) > 10
    assert not [f"{page}: {name}" for page, name in sorted(named) if name not in known]


def test_log_lines_that_pages_name_exist() -> None:
    found = {(page, line) for page, text in PAGES.items() for line in LOGGED.findall(text)}
    named = {(page, line) for page, lines in found for line in re.findall("`([^`]+)`", lines)}
    assert len(named) > 8
    assert not [
        f"{page}: {line}"
        for page, line in sorted(named)
        if not any(map(re.compile(as_pattern(line)).fullmatch, texts()))
    ]


def test_commands_that_pages_show_exist_with_their_options() -> None:
    shown = {
        (page, line.strip())
        for page, text in PAGES.items()
        for part in CODE.finditer(text)
        for line in (part[1] or part[0]).splitlines()
    }
    wrong = [f"{page}: {command}: {said}" for page, command in sorted(shown) if (said := problem(command))]
    assert not wrong, "\n".join(wrong)


def test_every_span_of_the_runbook_is_a_command_or_stands_in_a_source() -> None:
    places = [*texts(), *(text for _, text in files("docs/systemd/*", "docs/monitoring/*"))]
    unknown = [
        span
        for span in sorted(set(re.findall("`([^`\n]+)`", PAGES["docs/runbook.md"])))
        if problem(span) is None
        and not METRIC.match(span)
        and re.sub(r"^\[\w+\] | = .*", "", span) not in keys()
        and not is_said(span, places)
    ]
    assert not unknown, "\n".join(unknown)


def test_the_checks_of_names_can_fail() -> None:
    assert UNIT.findall("`journalctl -u vcsreplicator-agregator`") == ["vcsreplicator-agregator"]
    assert LOGGED.findall("the log lines `worker dead` and `worker hung`") == ["`worker dead` and `worker hung`"]
    assert is_said("worker died", texts())
    assert not is_said("worker dead", texts())
    assert problem("systemctl staus vcsreplicator-mirror@MIRROR") == "systemctl staus"
    assert problem("hg -R FOLDER replicatesink") == "no such command: hg replicatesink"
    assert problem("sudo -u hg env A=b /opt/bin/vcsreplicator chek") == "no such verb: chek"
