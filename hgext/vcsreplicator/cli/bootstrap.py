# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator bootstrap NAME`: fills a new mirror, and shows the progress."""

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import click
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from ..config import Config
from ..keys.pairs import make_key, read_keys
from ..log import ROSTER, Log
from ..log.table import read_table
from ..mirror.jobs import bootstrap
from ..service import stop_on_signals
from ..words.errors import NotAuthorized, Refused, TopicMissing, counted, visible
from ..words.roster import KEY, MirrorRole, Roster, RosterRequest, Verb
from ..words.rules import Rules
from ..words.shape import from_json
from .display import console
from .key import find_key_file
from .options import complete_mirror, log_of, mirror_settings, with_config, with_wait
from .requests import ask_aggregator, make_request
from .roster import with_rules

# Seconds between two progress lines where standard error is not a terminal.
EVERY = 10.0


@click.command()
@click.argument("name", shell_complete=complete_mirror)
@with_rules
@click.option("--backup", is_flag=True, help="No notice waits for the mirror, and it ignores deletions.")
@click.option("--workers", type=click.IntRange(1, 100), help="Repositories copied at a time.  [default: 4]")
@with_wait(default=30.0, help="How long to wait for each decision of the aggregator.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of a display.")
@with_config
def command(
    config: Config,
    name: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    backup: bool,
    workers: int | None,
    wait: float,
    as_json: bool,
) -> None:
    """Fill a new mirror from the master while pushes continue, then let it join.

    NAME needs a section [mirror.NAME], and its service must not run yet. If you interrupt the command, run it again: it
    continues. When it has finished, start the mirror.
    """
    settings = mirror_settings(config, name)
    options = config.settings(bootstrap.BootstrapSettings, "bootstrap")
    if workers is not None:
        options = replace(options, workers=workers)
    rules = Rules(include=include, exclude=exclude) if include or exclude else None
    stop = stop_on_signals()
    with log_of(config) as log, _Display(as_json=as_json) as report:

        def ask(verb: Verb, wanted: Rules | None) -> None:
            key = _find_key(config, log, name) if verb is Verb.ADD else None
            ask_for_mirror(log, verb, name, wanted, backup=backup, wait=wait, stop=stop, key=key)

        joined = bootstrap.bootstrap(
            settings,
            log,
            options,
            ask=ask,
            report=report,
            stop=stop,
            rules=rules,
            backup=backup,
        )
    if not joined:
        click.echo("stopped; run the same command again to continue", err=True)
        sys.exit(130)
    click.echo(f"{name} has joined; start it: systemctl start vcsreplicator-mirror@{name}", err=True)


def ask_for_mirror(
    log: Log,
    verb: Verb,
    name: str,
    rules: Rules | None,
    *,
    backup: bool,
    wait: float,
    stop: threading.Event | None = None,
    key: str | None = None,
) -> None:
    """Ask the aggregator to add a mirror, with a key, or to let it join.

    Raises Refused if the aggregator refuses, or does not decide within `wait` seconds, or if this user may not ask. Returns early
    if `stop` is set.
    """
    role = MirrorRole.BACKUP if backup else MirrorRole.SERVING
    known: dict[str, Any] = {}
    if verb is Verb.ADD:
        known = {"role": role, "inactive": True, "rules": rules or Rules(), "key": key}
    request = make_request(verb, "bootstrap", mirror=name, **known)
    try:
        decision, _ = ask_aggregator(log, request, wait, stop)
    except (NotAuthorized, TopicMissing) as error:
        raise Refused(f"{_describe_asking(request)} ({error})") from error
    except Refused:
        if stop is not None and stop.is_set():
            return
        raise
    if decision.refusal:
        raise Refused(decision.refusal)


def _find_key(config: Config, log: Log, name: str) -> str | None:
    """Return the mirror's public key, made if it is missing.

    None while the aggregator has none, and could not check a seal.
    """
    value = read_table(log, ROSTER).value(ROSTER, KEY)
    if value is None or not from_json(Roster, value).aggregator_keys:
        return None
    file = find_key_file(config, name)
    return (read_keys(file) or (make_key(file),))[0].public


def _describe_asking(request: RosterRequest) -> str:
    """Say what an operator must ask for, if this user may not."""
    name = request.mirror or ""
    if request.verb is Verb.JOIN:
        return (
            f"{name} is full, but this user may not let it join; on an operator's machine: "
            f"vcsreplicator roster join {name}; then start it"
        )
    words = ["vcsreplicator", "roster", "add", name, "--inactive"]
    words += ["--backup"] if request.role is MirrorRole.BACKUP else []
    rules = request.rules or Rules()
    for option, values in (("--include", rules.include), ("--exclude", rules.exclude)):
        for value in values:
            words += [option, value]
    words += ["--key", request.key] if request.key else []
    return (
        f"{name} is not in the roster, and this user may not add it; on an operator's machine: "
        f"{shlex.join(words)}; then run this command again"
    )


class _Display:
    """A display: bars on a terminal, lines elsewhere, JSON lines for programs."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = console(stderr=True)
        self._began, self._printed = time.monotonic(), float("-inf")
        # The newest failure of each path.
        self._failures: dict[str, bootstrap.CopyFailed] = {}
        self._bars = Bars(
            BarColumn(),
            # On a narrow terminal the bar becomes shorter, not the numbers.
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("repositories  {task.fields[size]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=as_json or not self._console.is_terminal,
        )
        self._task = self._bars.add_task("copying", total=None, size="")

    def __enter__(self) -> Callable[[bootstrap.Progress | bootstrap.CopyFailed], None]:
        self._bars.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _show(self, event: bootstrap.Progress | bootstrap.CopyFailed) -> None:
        if self._as_json:
            click.echo(json.dumps({"event": type(event).__name__.lower(), **asdict(event)}))
        elif isinstance(event, bootstrap.CopyFailed):
            if self._failures.get(event.path) == event:
                return
            self._failures[event.path] = event
            then = "given up" if event.is_final else "retried"
            self._console.print(Text.assemble((visible(event.path), "yellow"), f": {visible(event.note)} ({then})"))
        else:
            self._measure(event)

    def _measure(self, event: bootstrap.Progress) -> None:
        now = time.monotonic()
        rate = event.bytes / max(now - self._began, 0.1)
        size = f"{decimal(event.bytes)}, {decimal(int(rate))}/s"
        self._bars.update(self._task, total=event.total, completed=event.present, size=size)
        is_last = event.present + event.failed == event.total
        if not self._console.is_terminal and (is_last or now - self._printed >= EVERY):
            self._printed = now
            self._console.print(f"{event.present} of {counted(event.total, 'repository')}, {size}")
