# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator setup`: makes this machine a host, or takes back what it made.

It asks, looks, shows every step, and does them. `answers` has what is asked, `plan` the steps as data, `texts` the files,
`repositories` what is wrong with those that are there, `machine` does the steps and records them.
"""

import os
import pwd
import re
import shlex
import socket
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from rich.filesize import decimal

from ...outbox.folder import open_regular
from ...words import shape
from ...words.errors import BadConfig, Refused, counted, visible
from ..options import with_insecure
from .answers import HG, PUBLIC_KEY, HostAnswers, Role, choose_answers
from .machine import Machine, has_user, succeeds
from .plan import (
    HOMES,
    FoundHost,
    GiveRights,
    MakeFolder,
    RunCommand,
    SetupStep,
    WriteFile,
    describe,
    key_file,
    make_plan,
)
from .repositories import Examination, ProblemKind, examine
from .texts import PASSWORD

# Where systemd runs, and nowhere else.
_SYSTEMD = "/run/systemd/system"
# Where packages of the distribution have their units.
_DISTRIBUTED = "/usr/lib/systemd/system"
# Characters of a public key, at most.
_MAX_PUBLIC_KEY = 16384


@click.command()
@click.option("--role", type=click.Choice([str(role) for role in Role]), help="What this machine does.")
@click.option("--host", metavar="NAME", help="Name of this machine in events.  [default: its own]")
@click.option("--repos", metavar="DIR", help="Folder of the repositories that take pushes.")
@click.option("--copies", metavar="DIR", help="Folder of the mirror's copies.")
@click.option("--name", metavar="NAME", help="Name of the mirror.")
@click.option("--master", metavar="URL", help="Where the mirror copies from.")
@click.option("--url", metavar="URL", help="Public URL of the mirrors.")
@click.option("--log", metavar="URL", help="sqlite:///FILE on one machine, else kafka://HOST:PORT.")
@click.option("--blobs", metavar="URL", help="Store of large bundles, which master and mirrors share.")
@click.option(
    "--destination",
    "destinations",
    multiple=True,
    metavar="KIND|URL",
    help="none, jsonlines, webhook, or amqps://USER@HOST/; may be repeated.",
)
@click.option(
    "--developer", "developers", multiple=True, metavar="ACCOUNT", help="Let this account push; may be repeated."
)
@click.option(
    "--mirror-key",
    "mirror_keys",
    multiple=True,
    metavar="KEY",
    help="Let this SSH key of a mirror read; may be repeated.",
)
@with_insecure
@click.option("--prefix", default="", metavar="DIR", help="Write the files below DIR, and run no command.")
@click.option("--no-systemd", is_flag=True, help="Write the units, and start none.")
@click.option("--fix", is_flag=True, help="Give repositories and folders the rights that services need.")
@click.option("--replace", is_flag=True, help="Overwrite files that differ from what setup writes.")
@click.option("--undo", is_flag=True, help="Take back what setup made; repositories and data stay.")
@click.option("--dry-run", is_flag=True, help="Show every file and command, and do nothing.")
@click.option("--yes", is_flag=True, help="Ask nothing: take the defaults, and do it.")
def command(
    prefix: str, no_systemd: bool, fix: bool, replace: bool, undo: bool, dry_run: bool, yes: bool, **given: Any
) -> None:
    """Make this machine a host, from its users to its services.

    Run it again at any time: it does what is missing, and says what differs. It takes the answers of the last run as defaults.
    """
    if not prefix and not dry_run and os.geteuid() != 0:
        raise Refused("setup: expected to run as root, who makes users and files; or add --dry-run or --prefix DIR")
    os.umask(0o022)
    machine = Machine(os.path.abspath(prefix) if prefix else "")
    if undo:
        _undo(machine, is_dry=dry_run, is_sure=yes)
        return
    ask = None if yes or dry_run else _ask
    chosen = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items() if value}
    answers = choose_answers(chosen, shape.plain(machine.answers) or {}, _find_name(), ask)
    if unknown := machine.find_unknown(answers.developers):
        raise Refused(f"setup: --developer: there is no account {visible(', '.join(unknown))}: make it first")
    examined = _examine(machine, answers)
    if not machine.has_prefix and not dry_run:
        fix = _settle_rights(machine, answers, examined, is_fixed=fix, may_ask=ask is not None)
    found = _look_around(machine, answers, examined, is_fixed=fix and not machine.has_prefix)
    with_systemd = not no_systemd and os.path.isdir(_SYSTEMD)
    steps = make_plan(answers, found, with_systemd=with_systemd)
    todo = _choose_steps(machine, steps, is_fixed=fix, is_replaced=replace)
    _show_steps(machine, todo, is_whole=dry_run)
    if dry_run:
        return
    changes = [step for step in todo if not (isinstance(step, RunCommand) and step.is_look)]
    replaced = [step for step in changes if isinstance(step, WriteFile) and machine.place(step.path).exists()]
    if changes and not yes:
        click.confirm(f"Continue with {counted(len(todo), 'step')}?", abort=True)
    machine.keep_answers(answers)
    for step in todo:
        machine.perform(step)
    click.echo(f"{counted(len(changes), 'step')} done" if changes else "nothing to do")
    if replaced and with_systemd and not prefix:
        click.echo(
            "for the services to read the new files: systemctl daemon-reload && systemctl restart 'vcsreplicator-*'"
        )
    _say_next(answers, found, () if prefix else steps, with_systemd=with_systemd)


def _find_name() -> str:
    """Return this machine's name; its full one, unless that is only the name of the loopback."""
    full = socket.getfqdn()
    return socket.gethostname() if full.startswith("localhost") else full


def _ask(question: str, default: str | None) -> str:
    return str(click.prompt(question, default=default, err=True))


def _examine(machine: Machine, answers: HostAnswers) -> Examination:
    """Look at the repositories that are there, and show what is wrong with them."""
    if not answers.has_master:
        return Examination(folders=(), size=0, problems=())
    copies = str(machine.place(answers.copies)) if answers.has_mirror else None
    examined = examine(str(machine.place(answers.repos)), copies)
    if examined.folders:
        click.echo(f"{counted(len(examined.folders), 'repository')}, {decimal(examined.size)}")
    for problem in examined.problems:
        click.echo(str(problem), err=True)
    return examined


def _settle_rights(
    machine: Machine, answers: HostAnswers, examined: Examination, *, is_fixed: bool, may_ask: bool
) -> bool:
    """Return whether setup gives rights that services lack.

    Raises Refused if it may not, or if mirrors could not be filled.
    """
    if any(problem.kind is ProblemKind.UNSERVED for problem in examined.problems):
        raise Refused("setup: repositories have names that no mirror can copy, see above: rename them first")
    folders = (MakeFolder(answers.repos, HG, 0o2775),) if answers.has_master else ()
    lacking = [difference for step in folders if (difference := machine.find_difference(step))]
    count = len(lacking) + sum(problem.is_mendable for problem in examined.problems)
    if is_fixed or not count:
        return is_fixed
    for difference in lacking:
        click.echo(difference, err=True)
    if may_ask and click.confirm("Give these rights?"):
        return True
    raise Refused("setup: rights are missing, see above: run the commands, or add --fix")


def _look_around(machine: Machine, answers: HostAnswers, examined: Examination, *, is_fixed: bool) -> FoundHost:
    """Find the programs, the packaged units and the key; raises BadConfig."""
    programs = Path(sys.executable).parent
    for folder in (programs, *programs.parents):
        if not folder.stat().st_mode & 0o001:
            raise BadConfig(f"setup: {programs}: other users may not enter {folder}: install in /opt/vcsreplicator")
    checkout = Path(__file__).parents[4] / "docs/systemd"
    packaged = Path(sysconfig.get_path("data"), "share/vcsreplicator/systemd")
    units = _read_units(checkout if checkout.is_dir() else packaged)
    if not units:
        raise BadConfig(f"setup: {packaged}: expected the units of systemd: install the package again")
    if answers.brokers and not os.path.exists(PASSWORD):
        raise BadConfig(f"setup: {PASSWORD} is missing: write the broker's password into it, with mode 0600")
    home = pwd.getpwnam(HG).pw_dir if has_user(HG) else HOMES[HG]
    has_key = not answers.copies_over_ssh or (os.path.exists(key_file(home)) and knows_master(answers.master, home))
    lacking = tuple(
        GiveRights(answers.repos, problem.folders, problem.remedy)
        for problem in examined.problems
        if problem.is_mendable and is_fixed
    )
    return FoundHost(
        programs=str(programs),
        units=units,
        known_units=_read_units(machine.place(_DISTRIBUTED)),
        repositories=examined.replicable,
        lacking=lacking,
        has_key=has_key,
        home=home,
    )


def _read_units(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text("utf-8") for file in folder.glob("vcsreplicator-*.service")}


def knows_master(url: str, home: str) -> bool:
    """Return whether SSH knows the master's own key, about which it would ask a person."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]:{parts.port}" if parts.port else str(parts.hostname)
    files = f"{home}/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"
    return any(succeeds(("ssh-keygen", "-F", host, "-f", file), HG) for file in files)


def _choose_steps(
    machine: Machine, steps: Sequence[SetupStep], *, is_fixed: bool, is_replaced: bool
) -> list[SetupStep]:
    """Return the steps to do, and show what stays although it differs."""
    todo = []
    for step in steps:
        difference = machine.find_difference(step)
        if difference:
            click.echo(difference)
            option, is_allowed = ("--fix", is_fixed) if isinstance(step, MakeFolder) else ("--replace", is_replaced)
            if not is_allowed and not machine.is_ours(step):
                click.echo(f"left as it is; to do this, add {option}: {describe(step)}", err=True)
                continue
        if difference is not None:
            todo.append(step)
    return todo


def _show_steps(machine: Machine, todo: Sequence[SetupStep], *, is_whole: bool) -> None:
    for step in todo:
        click.echo(describe(step))
        if is_whole and isinstance(step, WriteFile) and not machine.place(step.path).exists():
            click.echo("".join(f"    {line}\n" for line in step.text.splitlines()), nl=False)


def _undo(machine: Machine, *, is_dry: bool, is_sure: bool) -> None:
    made = list(machine.made)
    if not made:
        click.echo("nothing to undo: setup made nothing here")
        return
    for key in reversed(made):
        click.echo(f"remove {key}")
    if is_dry:
        return
    if not is_sure:
        click.confirm("Take this back? Repositories and data stay.", abort=True)
    machine.undo(click.echo)


def _say_next(answers: HostAnswers, found: FoundHost, done: Sequence[SetupStep], *, with_systemd: bool) -> None:
    """Say what is left to an operator after the steps `done`; none of a prefix's commands were."""
    for step in make_plan(answers, found, with_systemd=True):
        if step not in done and not isinstance(step, WriteFile | MakeFolder):
            click.echo(f"left to you: {describe(step)}")
    if done and not found.has_key:
        key = read_public_key(f"{key_file(found.home)}.pub")
        click.echo(f"on the master: vcsreplicator setup --mirror-key {visible(shlex.quote(key))}")
        click.echo(f"here, to accept the master's own key: sudo -u {HG} ssh {urlsplit(answers.master).netloc}")
        click.echo("then repeat setup here")
    elif done and with_systemd and answers.has_master:
        click.echo(f"create a repository: sudo -u {HG} /usr/local/bin/hg init {answers.repos}/first")


def read_public_key(path: str) -> str:
    """Read a key from a folder in which another user may put a pipe, or a link to a file of root's; raises Refused."""
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
            key = file.read(_MAX_PUBLIC_KEY).strip()
    except OSError as error:
        raise Refused(
            f"setup: {path}: {error.strerror}; expected a public key; remove it, then repeat setup"
        ) from error
    if not re.fullmatch(PUBLIC_KEY, key):
        raise Refused(f"setup: {path}: expected a public key in one line; remove it, then repeat setup")
    return key
