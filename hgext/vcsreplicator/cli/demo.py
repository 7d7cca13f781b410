# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator demo`: runs a complete installation here, and pushes to it."""

import contextlib
import functools
import json
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import rich
from rich.text import Text

from ..demo import scenario, submission
from ..demo.layout import DemoOptions, Layout, Service, write_ready_file
from ..demo.preparation import prepare
from ..demo.supervisor import DemoSupervisor
from ..log.opening import open_log
from ..service import STOPPING, stop_on_signals
from ..words.errors import BadConfig, quote_value
from .display import console, table
from .options import check_exposures, with_insecure

# What a demo that stays prints last.
_HOW_TO_STOP = "Ctrl-C stops everything."

# Characters that would need escapes in the URLs, TOML and hgrc that name the folder.
_NEEDS_ESCAPE = re.compile('["\\\\%#?=\0-\x1f\x7f\ud800-\udfff]')


@click.command()
@click.option(
    "--dir", "folder", metavar="DIR", help="Folder for all files.  [default: a temporary one, removed at the end]"
)
@click.option("--mirrors", default=2, show_default=True, type=click.IntRange(1, 50), help="Number of mirrors.")
@click.option("--log", metavar="URL", help="URL of the log, such as kafka://host:port.  [default: embedded]")
@click.option("--pulse", metavar="AMQP_URL", help="Publish to exchanges of this broker too, v1 and v2.")
@click.option("--sns-endpoint", metavar="URL", help="Publish to SNS and S3 at this address too.")
@click.option(
    "--durability",
    type=click.Choice(["store", "outbox"]),
    default="store",
    show_default=True,
    help="Synchronize to disk, before a push ends, its whole store or its outbox alone.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1, 65000),
    help="Serve the master here on all addresses, where any client may push, and the mirrors at the next ports.",
)
@with_insecure
@click.option("--decode", is_flag=True, help="Submit a document to an edge and a decoder instead; nothing is pushed.")
@click.option("--stay", is_flag=True, help="Run until interrupted, without the scripted push.")
@click.option("--prepare", "only_prepare", is_flag=True, help="Prepare everything, start nothing, and exit.")
@click.option(
    "--ready",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write addresses, paths and process ids of the installation to FILE, as JSON.",
)
def command(
    folder: str | None,
    insecure: tuple[str, ...],
    decode: bool,
    stay: bool,
    only_prepare: bool,
    ready: Path | None,
    **options: Any,
) -> None:
    """Start a master, mirrors and all services on this machine, and push.

    Prints when each step happened, and the last notice. Each service is a process; all stop at the end.
    """
    urls = {"--log": options["log"], "--pulse": options["pulse"], "--sns-endpoint": options["sns_endpoint"]}
    check_exposures(urls, insecure)
    if decode and (only_prepare or ready):
        raise click.UsageError("--decode can be combined only with --dir, --log, --insecure and --stay")
    with _open_folder(folder, keep=only_prepare) as where:
        if ready and not ready.resolve().parent.is_dir():
            raise BadConfig(f"--ready: {ready}: expected a file in an existing folder")
        chosen = DemoOptions(folder=where, insecure=insecure, **options)
        if decode:
            _run_decoder(chosen, stay=stay)
            return
        layout = prepare(chosen)
        if not only_prepare:
            _run_services(layout, ready, stay=stay)
            return
        if ready:
            write_ready_file(ready, layout, {})
        click.echo(f"prepared in {where}")


def _run_services(layout: Layout, ready: Path | None, *, stay: bool) -> None:
    def report(pids: Mapping[str, int | None]) -> None:
        if ready:
            write_ready_file(ready, layout, pids)

    with _start_services(layout.services, layout.options.folder, report, is_staying=stay) as run:
        if stay:
            _print_addresses(layout)
            run()
        else:
            _push_and_show(layout)


def _run_decoder(options: DemoOptions, *, stay: bool) -> None:
    """Run an edge and a decoder, submit a document, and show what came out."""
    layout = submission.prepare_submission(options)
    before = len(layout.output.read_text().splitlines()) if layout.output.exists() else 0
    with _start_services(layout.services, options.folder) as run:
        sent, answered, status = submission.submit(layout)
        documents, delivered = scenario.wait_for_lines(layout.output, before + 1, 30)
        click.echo(f"\nPOST {layout.url}ID")
        rich.print_json(submission.DOCUMENT)
        moments = [(answered, f"answered with {status}: it is durable"), (delivered, "decoded")]
        rows = [(f"{(at - sent) * 1000:7.1f} ms", what) for at, what in sorted(moments)]
        console().print(table(("", ""), rows))
        click.echo("\nThe decoded document, without the client's address:")
        rich.print_json(json.dumps(documents[-1]))
        if stay:
            click.echo(f"\nedge     curl --data @FILE {layout.url}$(uuidgen)")
            click.echo(f"output   {layout.output}")
            run(_HOW_TO_STOP)


@contextlib.contextmanager
def _start_services(
    services: Sequence[Service],
    folder: Path,
    report: Callable[[Mapping[str, int | None]], None] = lambda pids: None,
    *,
    is_staying: bool = False,
) -> Iterator[Callable[..., None]]:
    """Run the services within the block.

    Yields a function that prints its arguments and keeps the services running until SIGTERM or SIGINT. Before that, or before
    their start if `is_staying`, these signals raise KeyboardInterrupt. `report` gets the process ids after the start, and at each
    change after it.
    """
    previous = {number: signal.signal(number, signal.default_int_handler) for number in STOPPING}
    catch_signals = functools.cache(stop_on_signals)

    def run(*lines: str) -> None:
        stop = catch_signals()
        for line in lines:
            click.echo(line)
        supervisor.run(stop, report)

    supervisor = DemoSupervisor(services, folder.resolve())
    begin = time.monotonic()
    try:
        supervisor.start()
        if is_staying:
            catch_signals()
        report(supervisor.pids())
        click.echo(f"{len(services)} services are ready after {time.monotonic() - begin:.1f} s in {folder}")
        yield run
    finally:
        catch_signals()
        supervisor.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _print_addresses(layout: Layout) -> None:
    """Print where everything is, and commands that run in any shell, whatever its PATH finds."""
    hg, vcsreplicator = (shlex.quote(str(Path(sys.executable).with_name(name))) for name in ("hg", "vcsreplicator"))
    click.echo(
        f"master   {layout.master_url}  (new repository: HGRCPATH={shlex.quote(layout.master_env['HGRCPATH'])} \\"
    )
    click.echo(f"         {hg} init {shlex.quote(f'{layout.master_root}/NAME')})")
    for name, url in layout.mirror_urls.items():
        click.echo(f"mirror   {url}  {name}")
    click.echo(f"notices  {layout.notices}")
    click.echo(f"status   {vcsreplicator} status --config {shlex.quote(str(layout.config))}")
    click.echo(_HOW_TO_STOP)


def _push_and_show(layout: Layout) -> None:
    """Create a repository, push twice, and print the timelines and the last notice."""
    with open_log(layout.log) as log, contextlib.closing(scenario.Watcher(log)) as watcher:
        name = f"hello-{int(time.time())}" if any(layout.master_root.iterdir()) else "hello"
        lines = len(layout.notices.read_text().splitlines()) if layout.notices.exists() else 0
        scenario.hg(layout, "init", str(layout.master_root / name), env=layout.master_env)
        watcher.wait_for_notice(name, 30)
        click.echo(f"\ncreated {name} on the master; the mirrors serve it")
        for number, count in enumerate((1, 3), 2):
            with watcher.reading():
                output, returned = scenario.push_changesets(layout, name, count)
            moments = watcher.wait_for_notice(name, 30)
            notices, delivered = scenario.wait_for_lines(layout.notices, lines + number, 30)
            _print_timeline(count, output, scenario.with_delivery({**moments, "hg push returned": returned}, delivered))
        click.echo("\nThe notice:")
        rich.print_json(json.dumps(notices[-1]))


def _print_timeline(count: int, output: str, moments: scenario.Timeline) -> None:
    remote = [line.removeprefix("remote: ") for line in output.splitlines() if line.startswith("remote: ")]
    start = moments["committed on the master"]
    rows = [(f"{(at - start) * 1000:7.1f} ms", what) for what, at in moments.items()]
    screen = console()
    screen.print(Text(f"\npush of {count} {'changesets' if count > 1 else 'changeset'}", "bold"))
    for line in remote:
        screen.print(f"  remote: {line}")
    screen.print(table(("", ""), rows))


@contextlib.contextmanager
def _open_folder(chosen: str | None, *, keep: bool) -> Iterator[Path]:
    if chosen is not None:
        path = Path(chosen).resolve()
        if found := _NEEDS_ESCAPE.search(str(path)):
            raise BadConfig(f"--dir: expected a path without {found[0]!r}, got {quote_value(str(path))}")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadConfig(f"--dir: {chosen} cannot be used: {error.strerror}") from error
        yield path
    elif keep:
        yield Path(tempfile.mkdtemp(prefix="vcsreplicator-demo-"))
    else:
        with tempfile.TemporaryDirectory(prefix="vcsreplicator-demo-", ignore_cleanup_errors=True) as made:
            yield Path(made)
