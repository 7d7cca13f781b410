# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator decode`: decodes submitted messages, as a daemon or from files."""

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..config import Config
from ..words.clock import SystemClock
from .options import naming, needing, run_daemon, with_config

if TYPE_CHECKING:
    from notifier.services.decode.decoding import Tools
    from notifier.services.decode.settings import DecodeSettings


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for the decoded PATHS.")
@with_config
def command(config: Config, paths: tuple[Path, ...], output: Path | None) -> None:
    """Decode submitted messages: validate, enrich, remove what identifies a person.

    Without PATHS it reads the raw messages that `input` names until it is stopped; rejects go to the topic `errors`. With PATHS,
    files and folders of .ndjson, .ndjson.gz and .ndjson.zst, it writes <namespace>.<type>.ndjson and errors.ndjson.
    """
    from notifier.services.decode.settings import DecodeSettings

    with needing("decode"):
        from notifier.services.decode import streaming
    if bool(paths) != (output is not None):
        raise click.UsageError("expected PATHS and --output together, or neither")
    settings = config.settings(DecodeSettings, "decode")
    with naming(config):
        tools = streaming.open_tools(settings)
    if output is not None:
        with naming(config):
            _decode_files(settings, tools, paths, output)
        return

    run_daemon(config, "decode", functools.partial(streaming.run, tools=tools), settings)


def _decode_files(settings: "DecodeSettings", tools: "Tools", paths: tuple[Path, ...], output: Path) -> None:
    from rich.console import Console
    from rich.progress import Progress, TransferSpeedColumn

    from notifier.services.decode.batch import decode_files, find_files
    from notifier.services.decode.repeats import open_repeats

    from ..service import configure_logging

    configure_logging("decode")
    files, errors = find_files(paths), Console(stderr=True)
    with (
        contextlib.closing(open_repeats(settings, SystemClock())) as repeats,
        Progress(
            *Progress.get_default_columns(), TransferSpeedColumn(), console=errors, disable=not errors.is_terminal
        ) as progress,
    ):
        task = progress.add_task("decoding", total=sum(file.stat().st_size for file in files))
        counts = decode_files(files, output, tools, repeats, lambda read: progress.advance(task, read))
    decoded = counts.pop("decoded", 0)
    kinds = "".join(f", {kind} {count}" for kind, count in sorted(counts.items()))
    click.echo(f"decoded {decoded}, rejected {counts.total()}{kinds}")
