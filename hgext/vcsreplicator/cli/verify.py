# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator verify`: compares mirrors with the master, once or as a service."""

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.text import Text

from ..config import Config
from ..log import Log
from ..mirror import MirrorSettings
from ..mirror.comparison import ComparisonOutcome, Verdict
from ..mirror.jobs import verify
from ..service import configure_logging, serve, stop_on_signals
from ..words.clock import DAY
from ..words.errors import BadConfig, counted, visible
from ..words.shape import plain
from .display import console
from .options import Number, complete_mirror, complete_repository, log_of, mirror_settings, with_config
from .progress import Meter, metered

# Colours of the outcomes; all others are red.
STYLES = {ComparisonOutcome.EQUAL: "green", ComparisonOutcome.BEHIND: "yellow", ComparisonOutcome.UNREACHABLE: "yellow"}


@click.command()
@click.argument("names", nargs=-1, metavar="[MIRROR]...", shell_complete=complete_mirror)
@click.option(
    "--repository",
    "-r",
    "paths",
    multiple=True,
    metavar="PATH",
    help="Compare only this repository; may be repeated.",
    shell_complete=complete_repository,
)
@click.option("--deep", is_flag=True, help="Read the contents of all files on the mirror too, and check their hashes.")
@click.option("--continuous", is_flag=True, help="Compare repeatedly, at a low rate ([verify] share, rest).")
@click.option(
    "--patience", type=Number(0, DAY), metavar="SECONDS", help="How long a mirror may take to catch up.  [default: 60]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, equal repositories too.")
@with_config
def command(
    config: Config,
    names: tuple[str, ...],
    paths: tuple[str, ...],
    deep: bool,
    continuous: bool,
    patience: float | None,
    as_json: bool,
) -> None:
    """Compare mirrors with the master, each repository at one event.

    Without names, it compares every mirror of the file whose folder is on this machine. Nothing is locked, and pushes
    continue.

    Exit code 0: all are equal; 1: some could not be compared (behind, master unreachable, no such path); 2: some
    differ; 130: it was interrupted before it found a difference.
    """
    if continuous and (paths or as_json):
        option = "--repository" if paths else "--json"
        raise click.UsageError(f"--continuous compares all repositories and writes log lines; it takes no {option}")
    known = config.names("mirror")
    for name in names:
        if name not in known:
            raise BadConfig(
                f"{config.file}: section [mirror.{name}] is missing (there are: {', '.join(known)}); "
                f"to compare one repository, use: --repository {name}"
            )
    mirrors = [mirror_settings(config, name) for name in names or _local_mirrors(config)]
    options = config.settings(verify.VerifySettings, "verify")
    options = replace(options, deep=deep or options.deep)
    if patience is not None:
        options = replace(options, patience=patience)
    with log_of(config) as log:
        if continuous:
            sys.exit(_compare_continuously(config, mirrors, log, options))
        wanted = tuple(path.strip("/") for path in paths)
        with metered(log) as shown:
            sys.exit(_compare_once(mirrors, shown, replace(options, share=1.0), wanted, as_json=as_json))


def _local_mirrors(config: Config) -> list[str]:
    names = [name for name in config.names("mirror") if Path(mirror_settings(config, name).root).is_dir()]
    if not names:
        raise BadConfig(f"{config.file}: no folder of a section [mirror.NAME] is on this machine")
    return names


def _compare_once(
    mirrors: list[MirrorSettings], log: Log, options: verify.VerifySettings, paths: tuple[str, ...], *, as_json: bool
) -> int:
    """Compare each repository once, print the verdicts, and return the exit code."""
    stop, seen, output = stop_on_signals(), dict.fromkeys(ComparisonOutcome, 0), console()
    unknown = dict.fromkeys(paths)

    def report(verdict: Verdict) -> None:
        seen[verdict.outcome] += 1
        unknown.pop(verdict.path, None)
        if as_json or verdict.outcome is not ComparisonOutcome.EQUAL:
            meter.erase()
        if as_json:
            click.echo(json.dumps(plain(verdict)))
        elif verdict.outcome is not ComparisonOutcome.EQUAL:
            where, style = f"{verdict.mirror} {visible(verdict.path)}: ", STYLES.get(verdict.outcome, "red")
            output.print(
                Text.assemble(
                    where, (verdict.outcome.value, style), f" {visible(verdict.note)}{verify.remedy(verdict)}"
                )
            )

    rounds = {}
    for settings in mirrors:
        with Meter(settings.name) as meter:
            foretell = partial(_foretell_verdict, meter, options.patience)
            rounds[settings.name] = verify.compare(
                settings, log, options, report=report, stop=stop, paths=paths, show=meter.show, foretell=foretell
            )
    counts = ", ".join(_count(number, outcome) for outcome, number in seen.items() if number)
    if not as_json:
        click.echo(counts or "nothing to compare")
        unread = "" if options.deep else "the contents of files on disk (add --deep), "
        click.echo(f"not compared: {unread}hgrc")
        for name, ended in rounds.items():
            if ended.left_out:
                click.echo(f"left out: {counted(ended.left_out, 'repository')} that {name} does not carry")
    is_cut = any(ended.undone for ended in rounds.values())
    if is_cut:
        click.echo("interrupted: not everything was compared", err=True)
    else:
        for path in unknown:
            click.echo(f"{visible(path)}: no mirror named here carries such a repository", err=True)
    if any(seen[outcome] for outcome in verify.NEEDS_OPERATOR):
        return 2
    if is_cut:
        return 130
    is_complete = not unknown and sum(seen.values()) == seen[ComparisonOutcome.EQUAL]
    return 0 if is_complete else 1


def _foretell_verdict(meter: Meter, patience: float, verdict: Verdict) -> None:
    """Say on standard error what a verdict waits for: the command must not look dead."""
    where = f"{verdict.mirror} {visible(verdict.path)}: {verdict.outcome.value} so far"
    meter.erase()
    click.echo(f"{where}: {visible(verdict.note)}; comparing again for up to {patience:g} s (--patience)", err=True)


def _count(number: int, outcome: ComparisonOutcome) -> str:
    many = outcome is ComparisonOutcome.DIFFERS and number > 1
    return f"{number} {'differ' if many else outcome.value}"


def _compare_continuously(
    config: Config, mirrors: list[MirrorSettings], log: Log, options: verify.VerifySettings
) -> int:
    configure_logging("verify")

    def stage(stop: threading.Event, ready: Callable[[], None]) -> None:
        threads = [
            threading.Thread(
                target=lambda chosen=settings: verify.run(chosen, log, options, stop=stop),
                name=f"verify-{settings.name}",
            )
            for settings in mirrors
        ]
        for thread in threads:
            thread.start()
        ready()
        for thread in threads:
            thread.join()

    own = f"verify-{mirrors[0].name}"
    role = own if len(mirrors) == 1 and config.listen(own) else "verify"
    return serve(stage, listen=config.listen(role), key=config.listen_key(role))
