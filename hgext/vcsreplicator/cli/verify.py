# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator verify`: comparisons on demand, or continuously as a service."""

import json
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import click
from rich.text import Text

from ..config import Config
from ..log import Log
from ..log.opening import open_log
from ..mirror import MirrorSettings
from ..mirror.comparison import ComparisonOutcome, Verdict
from ..mirror.jobs import verify
from ..service import configure_logging, serve
from ..words.errors import BadConfig
from ..words.shape import plain
from .display import console, visible
from .options import SECONDS, with_config

ALARMS = (ComparisonOutcome.DIFFERS, ComparisonOutcome.AHEAD, ComparisonOutcome.MISSING)
STYLES = {ComparisonOutcome.EQUAL: "green", ComparisonOutcome.BEHIND: "yellow", ComparisonOutcome.UNREACHABLE: "yellow"}


@click.command()
@click.argument("names", nargs=-1, metavar="[MIRROR]...")
@click.option("--repository", "-r", "paths", multiple=True, metavar="PATH", help="Only this one; may be repeated.")
@click.option("--continuous", is_flag=True, help="Go on for ever at a gentle rate ([verify] pace, rest).")
@click.option("--patience", type=SECONDS, metavar="SECONDS", help="What a mirror may need to catch up.  [default: 60]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, equal repositories too.")
@with_config
def command(
    config: Config,
    names: tuple[str, ...],
    paths: tuple[str, ...],
    continuous: bool,
    patience: float | None,
    as_json: bool,
) -> None:
    """Compare mirrors with the master, each repository at the same event on both sides.

    Without names: every mirror of the configuration whose folder is on this machine. Nothing is locked, pushes go on.
    Exit code 0: all equal; 1: some could not be compared yet (behind, master out of reach, no such path); 2: something differs.
    """
    mirrors = [_settings(config, name) for name in names or _local(config)]
    options = config.settings(verify.VerifySettings, "verify") if "verify" in config.tables else verify.VerifySettings()
    if patience is not None:
        options = replace(options, patience=patience)
    with open_log(config.log) as log:
        if continuous:
            sys.exit(_serve(config, mirrors, log, options))
        wanted = tuple(path.strip("/") for path in paths)
        sys.exit(_once(mirrors, log, replace(options, pace=0.0), wanted, as_json=as_json))


def _settings(config: Config, name: str) -> MirrorSettings:
    return config.settings(MirrorSettings, "mirror", name, name=name, blobs=config.blobs)


def _local(config: Config) -> list[str]:
    names = [name for name in config.names("mirror") if Path(_settings(config, name).root).is_dir()]
    if not names:
        raise BadConfig(f"{config.file}: no folder of a section [mirror.NAME] is on this machine")
    return names


def _once(
    mirrors: list[MirrorSettings], log: Log, options: verify.VerifySettings, paths: tuple[str, ...], *, as_json: bool
) -> int:
    stop, seen, output = threading.Event(), dict.fromkeys(ComparisonOutcome, 0), console()
    unknown = dict.fromkeys(paths)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def tell(verdict: Verdict) -> None:
        seen[verdict.outcome] += 1
        unknown.pop(verdict.path, None)
        if as_json:
            click.echo(json.dumps(plain(verdict)))
        elif verdict.outcome is not ComparisonOutcome.EQUAL:
            where, style = f"{verdict.mirror} {visible(verdict.path)}: ", STYLES.get(verdict.outcome, "red")
            output.print(Text.assemble(where, (verdict.outcome.value, style), f" {visible(verdict.note)}"))

    for settings in mirrors:
        verify.compare(settings, log, options, report=tell, stop=stop, paths=paths)
    counts = ", ".join(f"{number} {outcome.value}" for outcome, number in seen.items() if number)
    if not as_json:
        click.echo(counts or "nothing to compare")
    if not stop.is_set():
        for path in unknown:
            click.echo(f"{visible(path)}: nothing that a mirror named here must have", err=True)
    if any(seen[outcome] for outcome in ALARMS):
        return 2
    return 1 if stop.is_set() or unknown or sum(seen.values()) > seen[ComparisonOutcome.EQUAL] else 0


def _serve(config: Config, mirrors: list[MirrorSettings], log: Log, options: verify.VerifySettings) -> int:
    configure_logging("verify")

    def stage(stop: threading.Event, ready: object) -> None:
        threads = [
            threading.Thread(
                target=lambda chosen=settings: verify.run(chosen, log, options, stop=stop, ready=lambda: None),
                name=f"verify-{settings.name}",
            )
            for settings in mirrors
        ]
        for thread in threads:
            thread.start()
        assert callable(ready)
        ready()
        for thread in threads:
            thread.join()

    return serve("verify", stage, listen=config.listen("verify"))
