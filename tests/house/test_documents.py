# SPDX-License-Identifier: GPL-2.0-or-later
"""The documents point to files, pages and headings that exist, and every decision has the same form and its line in the index."""

import re

from testing.services.cache import CHECKOUT
from tests.house.sources import PRODUCT, files

# What begins so is a path of the repository; other words with slashes are URLs, topics or paths of a host.
PATH = re.compile(r"`((?:hgext|pushlog|notifier|hooks|testing|tests|docs|requirements)/[\w./{},-]*)`")
# A page, a test or a tool of the repository that a source names, as far as its ending shows.
CITED = re.compile(r"(?<![\w.-])(?:docs|testing|tests)/[\w./-]+\.(?:md|py|sh|t)\b")
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")
# What changes its release at a time of its own.
SERVICES = {"notifier", "mirrors", "aggregator", "master"}
EXIT_CODE = re.compile(r"(?:sys\.exit\(|^EXIT_\w+ = |sys\.exit\(.* if .* else )(\d+)", re.MULTILINE)
DECISIONS = sorted(path for path in (CHECKOUT / "docs/decisions").glob("*.md") if path.name != "README.md")
FORM = re.compile(
    r"# .+\n\n\*\*Date\.\*\* (\d{4}-\d\d-\d\d)\n\n\*\*Decision\.\*\* .*\n\*\*Why\.\*\* .*\n\*\*Cost\.\*\*", re.DOTALL
)
FLOW_ROW = re.compile(r"^\| `([\w/]+)/` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def headings(text: str) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def list_services(text: str) -> list[str]:
    """The services that a sentence names, in its order."""
    return [word for word in re.findall(r"[a-z]+", text) if word in SERVICES]


def exit_codes() -> set[str]:
    """The exit codes that a verb or service states as a number."""
    texts = [path.read_text() for path in (CHECKOUT / "hgext/vcsreplicator/cli").glob("*.py")]
    texts.append((CHECKOUT / "hgext/vcsreplicator/service/__init__.py").read_text())
    return {code for text in texts for code in EXIT_CODE.findall(text)} | {"0"}


def test_the_runbook_says_what_every_exit_code_means() -> None:
    _, _, section = (CHECKOUT / "docs/runbook.md").read_text().partition("\n## Exit codes\n")
    rows = re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE)
    assert {"1", "2", "78", "130", "141"} <= exit_codes()
    assert sorted(exit_codes() - {code for row in rows for code in row.split(", ")}) == []


def test_the_documents_name_only_paths_that_exist() -> None:
    named = {(name, path) for name, text in files("*.md") for path in PATH.findall(text)}
    assert named
    assert not [f"{name}: {path}" for name, path in sorted(named) if not (CHECKOUT / path).exists()]


def test_the_sources_cite_only_pages_and_tests_that_exist() -> None:
    sources = files(*PRODUCT, "tests/*.py", "tests/*.t", "testing/*.py", ":!tests/golden")
    cited = {(name, path) for name, text in sources for path in CITED.findall(text)}
    assert cited
    assert not [f"{name}: {path}" for name, path in sorted(cited) if not (CHECKOUT / path).exists()]


def test_the_documents_link_only_to_pages_and_headings_that_exist() -> None:
    offending = []
    for name, text in files("*.md"):
        for page, heading in LINK.findall(text):
            target = (CHECKOUT / name).parent / page if page else CHECKOUT / name
            if not target.exists() or (heading and heading not in headings(target.read_text())):
                offending.append(f"{name}: {page}#{heading}")
    assert not offending


def test_upgrades_have_one_order_and_downgrades_the_reverse() -> None:
    docs = CHECKOUT / "docs"
    up = re.search(r"^Upgrade readers before writers: ([^.]*)\.", (docs / "install.md").read_text(), re.MULTILINE)
    down = re.search(r"install the older release, and start them: ([^(]*)", (docs / "operating.md").read_text())
    assert up
    assert down
    order = list_services(up[1])
    assert set(order) == SERVICES
    assert list_services(down[1]) == order[::-1]
    [step] = re.findall(r"^\d+\. (Upgrade .*)", (CHECKOUT / "CHANGES.md").read_text(), re.MULTILINE)
    assert step.startswith("Upgrade in [this order](docs/install.md#upgrades), ")


def test_the_architecture_names_the_files_of_each_stage() -> None:
    text = (CHECKOUT / "docs/architecture.md").read_text()
    rows = FLOW_ROW.findall(text)
    assert len(rows) > 5
    for folder, cell in rows:
        where = CHECKOUT / folder if (CHECKOUT / folder).is_dir() else CHECKOUT / "hgext/vcsreplicator" / folder
        for file in re.findall(r"`([\w/]+)`", cell):
            assert (where / file).is_dir() or (where / f"{file}.py").exists(), f"{folder}: {file}"


def test_every_decision_has_the_same_form_and_its_line_in_the_index() -> None:
    index = (CHECKOUT / "docs/decisions/README.md").read_text()
    assert len(DECISIONS) > 50
    for page in DECISIONS:
        text = page.read_text()
        form = FORM.match(text)
        assert form, f"{page}: expected: title, Date, Decision, Why, Cost"
        title = text.splitlines()[0].removeprefix("# ")
        assert f"| {form[1]} | [{title}]({page.name}) |" in index


def test_the_checks_of_documents_can_fail() -> None:
    assert PATH.findall("see `hgext/nowhere.py`") == ["hgext/nowhere.py"]
    assert CITED.findall("(`tests/" + "no/such.t`)") == ["tests/no/" + "such.t"]
    assert LINK.findall("see [it](nowhere.md#part)") == [("nowhere.md", "part")]
    assert headings("## A push, in `hg`\n") == {"a-push-in-hg"}
    assert not FORM.match("# A title\n\n**Decision.** No date.\n")
