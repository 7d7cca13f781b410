# SPDX-License-Identifier: GPL-2.0-or-later
"""What is wrong with a command that a page shows: ours and Mercurial's by their own tables, others by the words listed here."""

import functools
import re
from collections.abc import Iterable
from typing import Any

import click

from hgext.vcsreplicator.cli.verbs import program
from tests.house.sources import files

PAGES = dict(files("*.md", ":!tests/golden"))
# Blocks, fenced or indented, and spans.
CODE = re.compile(r"^```.*?^```$|^ {4}\S[^\n]*$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
# The words of other programs that pages use: subcommands, if the program has any, and options.
FOREIGN = {
    "apt": "install purge remove",
    "chmod": "-R",
    "chown": "-R",
    "cp": "-a -aT",
    "dmesg": "",
    "find": "-type -exec",
    "flock": "",
    "head": "",
    "install": "-D -T -d -o -g -m",
    "journalctl": "-u",
    "kafka-acls.sh": "--add --allow-principal --bootstrap-server",
    "kafka-console-consumer.sh": "--bootstrap-server --isolation-level --property --topic",
    "kafka-consumer-groups.sh": "--all-groups --bootstrap-server --describe --reset-offsets",
    "kafka-topics.sh": "--alter --bootstrap-server --partitions --topic",
    "kafka-transactions.sh": "describe-producers list --bootstrap-server --partition --topic",
    "ln": "-s",
    "make": "",
    "mv": "-n",
    "pip": "install --no-build-isolation --no-deps --require-hashes -r",
    "python": "-P -m -p -k -rn --costs",
    "python3": "-m",
    "rabbitmq-plugins": "enable",
    "rabbitmqctl": "add_user list_bindings list_queues set_parameter set_permissions status -p --vhost",
    "redis-cli": "-u",
    "rm": "-f -rf",
    "sort": "-rn",
    "sqlite3": "-readonly",
    "ssh": "",
    "systemctl": "daemon-reload disable edit enable restart start status stop --now",
    "tail": "-n",
    "useradd": "--system --create-home --groups",
    "usermod": "-a -G",
}
# Before a command: variables, and programs that run it.
BEFORE = re.compile(r"(?:\w+=\S* |sudo(?: -u \w+)? |env |exec |flock \S+ |ssh \S+@\S+ )*")
HG_GLOBAL = {
    "-R",
    "--repository",
    "--cwd",
    "--config",
    "--debug",
    "-v",
    "--verbose",
    "-q",
    "--quiet",
    "-y",
    "--traceback",
}


@functools.cache
def hg_commands() -> dict[str, set[str]]:
    """Options of each command of Mercurial, of the extensions that pages name, and our own."""
    from mercurial import commands, debugcommands

    import hgext.vcsreplicator as extension
    import pushlog
    from hgext import blackbox, censor, share, strip  # type: ignore[attr-defined]

    tables: list[Any] = [
        commands.table,
        debugcommands.command._table,
        strip.cmdtable,
        censor.cmdtable,
        share.cmdtable,
        blackbox.cmdtable,
    ]
    tables += [extension.cmdtable, pushlog.cmdtable]  # type: ignore[attr-defined]
    found: dict[str, set[str]] = {}
    for table in tables:
        for names, entry in table.items():
            options = {f"-{option[0].decode()}" for option in entry[1]} | {
                f"--{option[1].decode()}" for option in entry[1]
            }
            found |= {name.decode().lstrip("^"): options - {"-"} for name in names.split(b"|")}
    return found


def misspelt(words: list[str]) -> str:
    """What is wrong with one of our commands, words in capitals standing for values; empty if nothing."""
    at: click.Command = program
    rest = list(words)
    while isinstance(at, click.Group) and rest and not rest[0].startswith("-"):
        found = at.get_command(click.Context(at), rest[0])
        if found is None:
            # The first verb of `errors` may be left out.
            return f"no such verb: {rest[0]}" if rest[0].islower() else ""
        at, rest = found, rest[1:]
    known = {name for parameter in at.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    return _unknown(known, rest)


def misspelt_hg(words: list[str]) -> str:
    """What is wrong with a command of Mercurial; empty if nothing, also if it names no command."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0).partition("=")
        if option[0] not in HG_GLOBAL:
            return option[0]
        rest = rest[0 if option[1] else 1 :]
    if not rest or not re.fullmatch("[a-z]+", rest[0]):
        return ""
    if rest[0] not in hg_commands():
        return f"no such command: hg {rest[0]}"
    return _unknown(hg_commands()[rest[0]] | HG_GLOBAL, rest[1:])


def misspelt_foreign(words: list[str]) -> str:
    """What is wrong with a command of another program, by the words of it that pages use; empty if nothing."""
    known = set(FOREIGN[words[0]].split())
    verbs = {word for word in known if not word.startswith("-")}
    first = next((word for word in words[1:] if not word.startswith("-")), None)
    # With an option before it, the word may be that option's value.
    if verbs and first == words[1] and first not in verbs:
        return f"{words[0]} {first}"
    return _unknown(known, words[1:])


def _unknown(known: set[str], words: Iterable[str]) -> str:
    used = {word.strip("[],.()").partition("=")[0] for word in words if re.match(r"\[?--?[a-zA-Z]", word)}
    return ", ".join(sorted(used - known))


def problem(command: str) -> str | None:
    """What is wrong with a command, empty if nothing; None if it is no command that this module knows."""
    bare = command[len(BEFORE.match(command)[0]) :]  # type: ignore[index]
    name, *words = bare.split() or [""]
    name = name.rpartition("/")[2]
    if name == "vcsreplicator":
        return misspelt(words)
    if name == "hg":
        return misspelt_hg(words)
    return misspelt_foreign([name, *words]) if name in FOREIGN else None
