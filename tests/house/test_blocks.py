# SPDX-License-Identifier: GPL-2.0-or-later
"""Every block that a page shows has a language, and with it a checker; blocks of some languages also have a test that runs them."""

import importlib
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources

import click
import jsonschema
import pytest
import referencing
from mercurial import config as mercurial_config
from mercurial import ui as mercurial_ui

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log import ERRORS, topics
from hgext.vcsreplicator.log.kafka.options import parse
from hgext.vcsreplicator.status.health import Endpoint
from notifier.messages.pushes import from_body
from pushlog.web import policy
from testing.services.cache import CHECKOUT
from tests.house.shown import PAGES, problem
from tests.house.sources import files
from tests.house.test_named import is_said, texts

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<!\n)\n\n {4}\S")
# Blocks that a test runs: page and how the block begins, and the test.
RUN = {
    ("docs/dashboard.md", "token="): "tests/dashboard/test_command.py::test_the_recipe_of_the_page_makes_a_token",
    (
        "docs/destinations.md",
        "rabbitmqctl",
    ): "tests/notifier/destinations/pulse/test_destination.py::test_the_rights_of_the_page_suffice",
    ("docs/destinations.md", "# notifier/"): "tests/notifier/test_docs.py::test_example_of_a_destination_works",
    ("docs/destinations.md", '    "folder"'): "tests/notifier/test_docs.py::test_example_of_a_destination_works",
    (
        "docs/heptapod.md",
        "# /",
    ): "tests/heptapod/test_transcript.py::test_after_each_operation_of_a_real_hgitaly_all_mirrors_are_equal",
    ("docs/by-hand.md", ""): "tests/operate/test_installing.py::test_the_commands_of_the_page_install_what_units_need",
    ("docs/install.md", ""): "tests/operate/test_installing.py::test_the_commands_of_the_page_install_what_units_need",
    ("docs/log.md", "ADD="): "tests/operate/test_access.py::test_an_installation_runs_with_the_documented_rights",
    ("docs/log.md", "auto."): "tests/log/kafka/test_adapter.py::test_a_broker_has_the_settings_that_the_page_names",
    ("docs/messages.md", "import"): "tests/notifier/test_docs.py::test_documented_consumer_gets_messages",
    (
        "docs/one-machine.md",
        "",
    ): "tests/operate/test_one_machine.py::test_a_host_made_by_the_page_announces_its_first_push",
    (
        "docs/operating.md",
        "vrrp_script",
    ): "tests/operate/test_moving_clients.py::test_the_check_of_a_floating_address_passes_on_the_master_alone",
    (
        "docs/operating.md",
        "Match",
    ): "tests/operate/test_moving_clients.py::test_the_configuration_of_ssh_leads_to_the_machine_that_a_file_names",
    ("docs/start.md", "HGRC"): "tests/demo/test_start.py::test_a_newcomer_pushes_and_reads_the_notice",
}


def blocks() -> Iterator[tuple[str, str, str]]:
    """Page, language and text of every block."""
    for page, text in PAGES.items():
        for language, block in BLOCK.findall(text):
            yield page, language, block


def statements(block: str) -> Iterator[str]:
    """The commands of a simple script, one by one, without comments."""
    bare = re.sub(r"(^|\s+)#.*", "", block.replace("\\\n", " "), flags=re.MULTILINE)
    yield from (part.strip() for part in re.split(r"; | \| | && |\n", bare) if part.strip())


def check_shell(page: str, block: str) -> None:
    """A test runs it; or each command is known with its words, and ours is complete, as the program would read it."""
    if is_run(page, block):
        return
    for statement in statements(block.replace("$ ", "")):
        assert problem(statement) == "", statement
        if ours := re.search(r"(?:^|[\s/])vcsreplicator (\w.*)", statement):
            parse_ours(shlex.split(ours[1]))


def parse_ours(words: list[str]) -> None:
    """Read a command line as the program does, and do nothing; raises UsageError if it is wrong."""
    at: click.Command = program
    context = click.Context(program, info_name="vcsreplicator")
    while isinstance(at, click.Group):
        found = at.get_command(context, words[0])
        assert found is not None, words
        at, words = found, words[1:]
    try:
        at.make_context(at.name, list(words), parent=context)
    except click.BadParameter as error:
        if "does not exist" not in error.message:  # a file of the example
            raise


def check_toml(page: str, block: str) -> None:
    """It is TOML; tests of each section read it as the program does."""
    tomllib.loads(block)


# Keys of `[auth]` in an hgrc have a name before them.
AUTH = {"prefix", "username", "password"}
MOMENTS = {"pretxnopen", "prepushkey", "pretxnclose", "pretxnchangegroup", "changegroup"}


def is_key(section: str, key: str, value: str) -> bool:
    """Whether Mercurial, an extension, a hook or systemd knows the key, and can load what it names."""
    if section == "hooks":
        module, _, function = value.removeprefix("python:").rpartition(".")
        return key.partition(".")[0] in MOMENTS and callable(getattr(importlib.import_module(module), function, None))
    if section == "auth":
        return key.partition(".")[2] in AUTH
    if section == "extensions":
        return key.partition(":")[0] in ("*", "evolve", "pushlog", "topic", "vcsreplicator")
    if section == "vcsreplicator-roots":
        return key.startswith("/")
    if section == "Service":
        return any(re.search(rf"^{key}=", text, re.MULTILINE) for _, text in files("docs/systemd/*.service"))
    policies = [text for _, text in files("hooks/*.py") if f'b"{section}"' in text]
    if policies and section != "pushlog":  # of which policies ask whether it is loaded
        return any(f'b"{key}"' in text for text in policies)
    import hgext.vcsreplicator
    import pushlog

    ours = {**hgext.vcsreplicator.configtable, **pushlog.configtable}  # type: ignore[attr-defined]
    known = {**mercurial_ui.ui.load()._knownconfig, **ours}
    return key.encode() in known.get(section.encode(), {})


def check_ini(page: str, block: str) -> None:
    """Mercurial reads it, and every key is known in its section."""
    parsed = mercurial_config.config()
    parsed.parse(page.encode(), block.encode())
    section = ""
    assert parsed.sections()
    for line in block.splitlines():
        if heading := re.match(r"\[(.+)\]", line):
            section = heading[1]
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            assert is_key(section, key.strip(), value.strip()), f"{section}: {line}"
            if key == "ExecStart" and value:
                check_shell(page, value)


def check_json(page: str, block: str) -> None:
    """It is what the product writes, with whole hashes for shortened ones."""
    text = re.sub(r'"([0-9a-f]{16})…"', lambda found: f'"{(found[1] * 3)[:40]}"', block)
    value = json.loads(text.replace('{"payload": X,', '{"payload": {},'))
    match page:
        case "docs/json-pushes.md":
            schemas = [
                json.loads((resources.files("pushlog") / "schemas" / f"json-pushes-{number}.json").read_text())
                for number in (1, 2)
            ]
            first = referencing.Resource.from_contents(schemas[0])
            registry = referencing.Registry().with_resource("json-pushes-1.json", first)
            jsonschema.Draft202012Validator(schemas[1], registry=registry).validate(value)
        case "docs/hg-push.md":
            assert from_body(text.encode()).repository_id == 7
        case "docs/serving.md":
            assert set(value) == set(re.findall(r'"(\w+)": ', inspect.getsource(Endpoint.__call__)))
        case "docs/messages.md" if "_meta" in value:
            sources = "\n".join(text for _, text in files("notifier/destinations/pulse/*.py"))
            assert all(f'"{key}"' in sources for key in (*value, *value["_meta"]))
        case "docs/messages.md":
            schema = json.loads(
                (resources.files("notifier") / "messages/schemas" / f"{value['type']}.json").read_text()
            )
            jsonschema.Draft202012Validator(schema).validate(value)
        case _:
            pytest.fail("no checker knows the JSON of this page")


def check_text(page: str, block: str) -> None:
    """What a reader gets to see, or a drawing: its names exist."""
    transcripts = "\n".join(text for _, text in files("tests/hooks/*.t"))
    match page:
        case "docs/hooks.md":
            lines = [re.sub(r"https://\S+/rev/\w+", "https://hg.example/", line.strip()) for line in block.splitlines()]
            assert [line for line in lines if line not in transcripts] == []
        case "docs/architecture.md" | "docs/push.md":
            known = {topic.name for topic in topics()} | {ERRORS}
            assert set(re.findall(r"\btopic ([\w-]+)", block)) <= known
            keys = set(re.findall(r"\b([a-z-]+) = [a-z]+", block))
            assert not [key for key in keys if not is_key("vcsreplicator", key, "")]
            where = [CHECKOUT, CHECKOUT / "hgext/vcsreplicator", CHECKOUT / "notifier"]
            names = re.findall(r"^ *([\w/]+)/ {2,}", block, re.MULTILINE)
            names += re.findall(r"[\w-]+", block) if block.startswith("words <") else []
            found = [any((at / name).exists() or (at / f"{name}.py").exists() for at in where) for name in names]
            assert all(found), names
        case "docs/json-pushes.md":
            keys = set(re.findall(r"[?&](\w+)=", block))
            assert keys
            assert keys <= set(texts())
        case "docs/log.md":
            parse(block.strip().replace("&…", "").replace("SASL_SSL", "SSL"))
        case "docs/operating.md":
            check_run(page, block)
        case "docs/pushlog.md":
            shown = " ".join(block.split()).replace("%nonce%", "{nonce}")
            assert shown == policy._POLICY.replace("{static}", "")
        case "docs/roster.md":
            assert not [line for line in block.splitlines() if problem(line)]
        case "docs/security.md":
            units = "".join(text for _, text in files("docs/systemd/*.service"))
            users = set(re.findall(r"^User=(\S+)", units, re.MULTILINE))
            assert users <= set(re.findall(r"[a-z-]+", block))
        case "docs/start.md":
            said = re.findall(r"^ *[\d.]+ ms  ([a-z ]+?)(?: (?:alpha|beta)| \(.*\))?$", block, re.MULTILINE)
            assert len(said) > 5
            assert not [words for words in said if not is_said(words, texts())]
        case _:
            pytest.fail("no checker knows the text of this page")


def is_run(page: str, block: str) -> bool:
    """Whether a test runs the block."""
    return any(page == of and block.startswith(begins) for of, begins in RUN)


def check_run(page: str, block: str) -> None:
    """A test runs it."""
    assert is_run(page, block), "no test runs it"


CHECKERS: dict[str, Callable[[str, str], None]] = {
    "sh": check_shell,
    "console": check_shell,
    "toml": check_toml,
    "ini": check_ini,
    "json": check_json,
    "text": check_text,
    "python": check_run,
    "properties": check_run,
}


@pytest.mark.parametrize(
    ("page", "language", "block"),
    [pytest.param(*each, id=f"{each[0]}-{number}") for number, each in enumerate(blocks())],
)
def test_every_block_is_what_its_checker_expects(page: str, language: str, block: str) -> None:
    assert language in CHECKERS, "a block has one of these languages"
    CHECKERS[language](page, block)


def test_every_block_is_fenced() -> None:
    offending = {page for page, text in PAGES.items() if INDENTED.search(BLOCK.sub("", text))}
    # An item of a list has a paragraph of its own in these.
    assert offending <= {"docs/by-hand.md", "docs/install.md"}


@pytest.mark.parametrize(("of", "test"), RUN.items(), ids=lambda each: each[0] if isinstance(each, tuple) else "")
def test_a_block_that_is_run_is_there_and_so_is_its_test(of: tuple[str, str], test: str) -> None:
    assert [block for page, _, block in blocks() if page == of[0] and block.startswith(of[1])]
    path, _, name = test.partition("::")
    text = (CHECKOUT / path).read_text()
    assert f"def {name}" in text
    assert of[0].removeprefix("docs/") in text
