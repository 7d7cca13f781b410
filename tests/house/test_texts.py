# SPDX-License-Identifier: GPL-2.0-or-later
"""What every file says: its licence and promise, nothing of the machine it was written on, and only commands that exist."""

import re
from collections.abc import Iterable

from hgext.vcsreplicator.cli.verbs import DAEMONS, VERBS
from testing.services.cache import CHECKOUT
from tests.house.sources import files

LICENCE = "SPDX-License-Identifier: GPL-2.0-or-later"
# In pieces, so that this file does not offend; one by one and each from a plain text on, as `re` is quick to find.
FORBIDDEN = [
    re.compile("/wo" + r"rk/(?<!\w/wo" + "rk/)"),
    *(re.compile(words) for words in ("/ho" + "me/", "pypi" + r"\.org", "python" + r"hosted", r"repo1?\.mav" + "en")),
]
# Comments, then a text: parsing every file would take a second.
DOCSTRING = re.compile(r'(?:#.*\n|\s)*r?"""\S')
SET_ASIDE = [
    re.compile(r"pytest\.(mark\.)?(skip|skipif|xfail|importorskip)\b"),
    re.compile(r"unittest\.skip\b"),
    re.compile(r"#require(?<![^\n]#require)"),
]

# A number that no constant limits, before a noun that stays in the plural.
UNCOUNTED = re.compile(
    r"\{(?![A-Z_]+\}|[a-z]+\.limit\}|\w+:\.1f\})[^{}]+\} (?:repositories|pushes|events|notices|messages|mirrors"
    r"|destinations|changesets|deliveries|subscriptions|records|partitions|queues|steps|requests|days|heads|bookmarks"
    r"|keys|files)\b(?! (?:were|wait))"
)


def holds_one(patterns: Iterable[re.Pattern[str]], text: str) -> bool:
    return any(pattern.search(text) for pattern in patterns)


def test_every_source_file_names_its_licence() -> None:
    sources = files("*.py", "*.sh", "Makefile", ".ci/run", ":!tests/golden")  # what was given stays as it came
    assert not [name for name, text in sources if LICENCE not in "\n".join(text.splitlines()[:3])]


def test_every_module_says_what_it_promises() -> None:
    assert not [name for name, text in files("*.py") if not DOCSTRING.match(text)]


def test_no_file_speaks_of_the_machine_or_of_registries() -> None:
    offending = [
        f"{name}:{number}: {line.strip()}"
        for name, text in files()
        if holds_one(FORBIDDEN, text)
        for number, line in enumerate(text.splitlines(), 1)
        if holds_one(FORBIDDEN, line)
    ]
    assert not offending, "\n".join(offending)


def test_no_text_has_a_number_before_a_fixed_plural() -> None:
    """`counted` writes `1 repository`, and `2 repositories`."""
    sources = files("hgext/*.py", "notifier/*.py")
    assert [(name, found) for name, text in sources if (found := UNCOUNTED.findall(text))] == []


def test_no_test_is_set_aside() -> None:
    tests = files("tests/*.py", "tests/*.t")
    offending = [name for name, text in tests if holds_one(SET_ASIDE, text) and name != "tests/house/test_texts.py"]
    assert not offending


def code_of(text: str) -> str:
    """The code of a Markdown text: fenced blocks and spans."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))


def test_the_documents_name_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (name, target) for name, text in files("*.md") for target in re.findall(r"\bmake ([a-z][a-z-]*)", code_of(text))
    }
    assert not [f"{name}: make {target}" for name, target in sorted(named) if target not in targets]


def test_the_documents_name_only_verbs_that_exist() -> None:
    there = (CHECKOUT / "hgext/vcsreplicator/cli").iterdir()
    verbs = DAEMONS | VERBS.keys() & {file.stem.replace("_", "-") for file in there}
    command = re.compile(r"(?:^|[`$;/]|bin/)\s*vcsreplicator ([a-z][a-z-]*)", re.MULTILINE)
    named = {(name, verb) for name, text in files("*.md") for verb in command.findall(code_of(text))}
    assert not [f"{name}: vcsreplicator {verb}" for name, verb in sorted(named) if verb not in verbs]


def test_the_checks_of_texts_can_fail() -> None:
    assert not DOCSTRING.match("# SPDX\nimport os\n")
    assert holds_one(FORBIDDEN, "see /wo" + "rk/main")
    assert not holds_one(FORBIDDEN, "see tests/wo" + "rk/main")
    assert holds_one(SET_ASIDE, "@pytest.mark.sk" + "ip")
    assert holds_one(SET_ASIDE, "a test\n#req" + "uire hg")
    assert not holds_one(SET_ASIDE, "a test #req" + "uire hg")
    assert code_of("run `make demo`, not make believe") == "`make demo`"
