# SPDX-License-Identifier: GPL-2.0-or-later
"""What a page shows to be typed or copied: commands with their options, keys of the services' file, keys of an hgrc."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.config import _check_sections
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.config import load
from tests.house.shown import CODE, PAGES, misspelt

# A command begins a line of a block, or a span; it ends at a comment, a pipe or a further command.
COMMAND = re.compile(r"(?:^ *|/bin/|[\w=/.]+hgrc )vcsreplicator ([a-z][^`#;|\n]*)", re.MULTILINE)
# Keys of an hgrc, below their section.
OURS = ("vcsreplicator", "pushlog")


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Page and text of each block in this language."""
    for page, text in PAGES.items():
        for block in re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            yield page, block


def test_every_command_on_a_page_exists_with_its_options() -> None:
    code = [(page, part[1] or part[0]) for page, text in PAGES.items() for part in CODE.finditer(text)]
    found = {(page, " ".join(words.split())) for page, part in code for words in COMMAND.findall(part)}
    assert len(found) > 100
    wrong = [f"{page}: {words}: {problem}" for page, words in sorted(found) if (problem := misspelt(words.split()))]
    assert not wrong, "\n".join(wrong)


def sections() -> list[Any]:
    return [
        pytest.param(block, id=f"{Path(page).stem}-{number}")
        for number, (page, block) in enumerate(blocks("toml"))
        # Parts of one file, which a test of the notifier reads together.
        if page != "docs/destinations.md"
    ]


@pytest.mark.parametrize("block", sections())
def test_every_key_of_the_services_file_on_a_page_is_one(block: str, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/vcsreplicator-dashboard-users").touch()
    block = block.replace('"/etc/', f'"{tmp_path}/etc/')
    tables = tomllib.loads(block)
    parts = [] if "log" in tables else ['log = "sqlite:///log.db"']
    if "notifier" in tables and "public" not in tables:
        block += '\n[public.urls]\n"" = "https://hg.example/"\n'
    if "alpha" in tables.get("mirror", {}) and "root" not in tables["mirror"]["alpha"]:
        block = block.replace("[mirror.alpha]\n", '[mirror.alpha]\nroot = "/repos"\n')
    file = tmp_path / "vcsreplicator.toml"
    file.write_text("\n".join([*parts, block]))
    _check_sections(load(file))


# Two of these are never on one machine.
SAME_PORT = {"mirror-alpha", "mirror-beta"}


def listeners() -> dict[str, set[str]]:
    """Which services listen at each port, by the services' files on all pages and the example."""
    result = CliRunner().invoke(program, ["config", "example"])
    found: dict[str, set[str]] = {}
    for block in (*(text for _, text in blocks("toml")), result.output):
        tables = tomllib.loads(block)
        sections = {name: table.get("listen") for name, table in tables.items() if isinstance(table, dict)}
        named = {name: where for name, where in sections.items() if isinstance(where, str)}
        for name, where in (*named.items(), *((f"listen.{role}", at) for role, at in tables.get("listen", {}).items())):
            found.setdefault(where.rpartition(":")[2], set()).add(name)
    return found


def test_no_two_services_of_the_pages_listen_at_one_port() -> None:
    found = listeners()
    assert found["9104"] == {"listen.notifier"}
    mirrors = {f"listen.{name}" for name in SAME_PORT}
    assert {port: names for port, names in found.items() if len(names - mirrors) + bool(names & mirrors) > 1} == {}


def test_every_key_of_ours_in_an_hgrc_on_a_page_is_one() -> None:
    import hgext.vcsreplicator
    import pushlog

    known = {"vcsreplicator": hgext.vcsreplicator.configtable, "pushlog": pushlog.configtable}  # type: ignore[attr-defined]
    wrong, found = [], list(blocks("ini"))
    assert found
    for page, block in found:
        section = ""
        for line in block.splitlines():
            if heading := re.match(r"\[(.+)\]", line):
                section = heading[1]
            elif section in OURS and (key := re.match(r"([\w-]+) *=", line)):
                wrong += [f"{page}: {section}.{key[1]}"] * (key[1].encode() not in known[section][section.encode()])
    assert not wrong


def test_the_checks_of_examples_can_fail(tmp_path: Path) -> None:
    assert misspelt(["roster", "add", "NAME", "--bakcup"]) == "--bakcup"
    assert misspelt(["roster", "ad", "NAME"]) == "no such verb: ad"
    assert misspelt(["errors"]) == ""
    assert COMMAND.findall("/opt/bin/vcsreplicator check  # now") == ["check  "]


@pytest.mark.processes
def test_the_script_for_ssh_gives_the_master_its_hgrc_and_rights(tmp_path: Path) -> None:
    page = PAGES["docs/by-hand.md"]
    [script] = re.findall(r"/usr/local/bin/hg <<'END'\n(.*?)^END$", page, re.MULTILINE | re.DOTALL)
    [hgrc] = [block for of, block in blocks("ini") if of == "docs/by-hand.md" and "role = master" in block]
    here, hg = tmp_path / "master.hgrc", tmp_path / "hg"
    here.write_text(hgrc.replace("/repos = .", f"{tmp_path} = ."))
    program = Path(sys.executable).parent
    hg.write_text(script.replace("/etc/mercurial", str(tmp_path)).replace("/opt/vcsreplicator/bin", str(program)))
    hg.chmod(0o755)

    sshd = {name: value for name, value in os.environ.items() if name != "HGRCPATH"}

    def run(*words: str, **variables: str) -> str:
        environment = sshd | variables
        done = subprocess.run([hg, *words], capture_output=True, text=True, check=True, umask=0o077, env=environment)
        return done.stdout

    line = hgrc.splitlines().index("role = master") + 1
    assert run("config", "--source", "vcsreplicator.role") == f"{here}:{line}: master\n"
    other = tmp_path / "other.hgrc"
    other.write_text("[x]\ny = z\n")
    assert run("config", "--source", "x.y", HGRCPATH=str(other)) == f"{other}:2: z\n"
    run("init", str(tmp_path / "x"))
    assert os.stat(tmp_path / "x/.hg/store").st_mode & 0o070 == 0o070
