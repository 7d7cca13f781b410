# SPDX-License-Identifier: GPL-2.0-or-later
"""What all verbs of the command line share: listings have `--json`, and the commands that messages suggest do what they promise."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from hgext.vcsreplicator.cli.verbs import program
from tests.house.sources import PRODUCT, files, texts_of

# What a verb that lists or shows something is named.
LISTING = {"list", "show", "status", "check", "trace", "verify", "pushes", "history", "requests", "bootstrap"}
# Verbs that ask for --yes only for what no message suggests: a repository that is not detached, a mirror without a section. Setup
# asks on its terminal.
WITHOUT_YES = {("heal",), ("roster", "add"), ("setup",)}
# A command in a text; what is filled in later is "§".
SUGGESTED = re.compile(r"vcsreplicator ((?:[a-z-]+ )*[a-z-]+(?: (?:§|[A-Z][A-Z|]+|--[a-z]+|yes|no))*)")


def commands(at: click.Command, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below this one that does something, by its words."""
    if not isinstance(at, click.Group):
        yield names, at
        return
    context = click.Context(at)
    for name in at.list_commands(context):
        found = at.get_command(context, name)
        assert found is not None
        yield from commands(found, *names, name)


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


COMMANDS = dict(commands(program))


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[-1] in LISTING], ids=" ".join)
def test_a_verb_that_lists_or_shows_has_json(words: tuple[str, ...]) -> None:
    assert "--json" in options(COMMANDS[words])


def cut_summaries(at: click.Command, name: str, above: click.Context | None = None) -> Iterator[str]:
    """The lines of this command's help, and of all below it, that leave out the end of what a verb does."""
    context = click.Context(at, above, info_name=name, terminal_width=80)
    yield from (line for line in at.get_help(context).splitlines()[1:] if line.endswith("..."))
    for verb in at.list_commands(context) if isinstance(at, click.Group) else ():
        found = at.get_command(context, verb)
        assert found is not None
        yield from cut_summaries(found, verb, context)


def test_no_summary_is_cut_in_a_terminal_of_80_columns() -> None:
    assert list(cut_summaries(program, "vcsreplicator")) == []


def objection(suggested: str) -> str | None:
    """Why a suggested command would do nothing when it is typed."""
    words = shlex.split(suggested)
    found = next((COMMANDS[tuple(words[:count])] for count in (3, 2, 1) if tuple(words[:count]) in COMMANDS), None)
    if found is None:
        return None  # a group, or prose
    needs_yes = "--yes" in options(found) and WITHOUT_YES.isdisjoint({tuple(words[:1]), tuple(words[:2])})
    return "--yes is missing" if needs_yes and "--yes" not in words else None


def test_messages_suggest_commands_that_do_something() -> None:
    offending = []
    for name, source in files(*PRODUCT):
        for text in texts_of(source, "§"):
            for suggested in SUGGESTED.findall(text):
                if reason := objection(suggested):
                    offending.append(f"{name}: {suggested}: {reason}")
    assert not offending, "\n".join(offending)


def test_the_checks_of_verbs_can_fail() -> None:
    [text] = texts_of('print(f"or: vcsreplicator roster deactivate {name}")', "§")
    assert SUGGESTED.findall(text) == ["roster deactivate §"]
    assert objection("roster deactivate §")
    assert objection("roster deactivate § --yes") is None
    assert objection("roster activate §") is None


def test_each_option_of_each_verb_says_what_it_is_for() -> None:
    found = [(words, each) for words, command in COMMANDS.items() for each in command.params]
    silent = [
        f"{' '.join(words)} {each.opts[0]}" for words, each in found if isinstance(each, click.Option) and not each.help
    ]
    assert not silent
    hidden = [" ".join(words) for words, each in found if getattr(each, "envvar", None) and not each.show_envvar]  # type: ignore[attr-defined]
    assert not hidden, "the help does not name the variable of the environment"
