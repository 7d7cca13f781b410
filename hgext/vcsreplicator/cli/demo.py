# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator demo`: a whole installation on this machine, and a push through it.

With `--ready FILE` it tells a program all it needs, as JSON, written by rename and again whenever a process id changes:
`{"master": {"root", "env", "url"}, "mirrors": [{"name", "root", "url"}], "services": {ROLE: {"argv", "env", "pid"}}, "log",
"pulse": {"url", "exchange_v1", "exchange_v2"}, "sns": {"topic_arn", "bucket"}, "status_url"}`; absent things are null.
"""

import contextlib
import getpass
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click
import rich
from rich.text import Text

from ..demo import layout as plan
from ..demo import scenario
from ..demo.supervisor import DemoSupervisor
from ..log import ROSTER_REQUESTS, Log, NewRecord, topics
from ..log.opening import open_log
from ..words.errors import BadConfig
from .display import console, table
from .options import check_exposures, with_insecure


@click.command()
@click.option("--dir", "folder", metavar="DIR", help="Where everything is kept (default: a temporary folder, removed).")
@click.option("--mirrors", default=2, show_default=True, type=click.IntRange(1, 50), help="How many mirrors.")
@click.option("--log", "log_url", metavar="URL", help="The log (default: embedded), such as kafka://host:port.")
@click.option("--pulse", metavar="AMQP_URL", help="Also publish to this broker's exchanges, v1 and v2.")
@click.option("--sns-endpoint", metavar="URL", help="Also publish to SNS and S3 at this address.")
@click.option("--durability", type=click.Choice(["store", "outbox"]), default="store", show_default=True)
@with_insecure
@click.option("--stay", is_flag=True, help="Run until interrupted instead of the scripted push.")
@click.option("--prepare", "only_prepare", is_flag=True, help="Set everything up, start nothing, exit.")
@click.option("--ready", metavar="FILE", type=click.Path(path_type=Path), help="Write what is needed to use it here.")
def command(
    folder: str | None,
    mirrors: int,
    log_url: str | None,
    pulse: str | None,
    sns_endpoint: str | None,
    durability: str,
    insecure: tuple[str, ...],
    stay: bool,
    only_prepare: bool,
    ready: Path | None,
) -> None:
    """Start a master, mirrors, relay, aggregator and notifier here, and push.

    Prints what happened when, and the notice itself. Everything is a process of its own, all are stopped at the end.
    """
    check_exposures({"--log": log_url, "--pulse": pulse, "--sns-endpoint": sns_endpoint}, insecure)
    with _folder(folder, keep=only_prepare) as where:
        options = plan.DemoOptions(
            folder=where,
            mirrors=mirrors,
            log=log_url,
            pulse=pulse,
            sns_endpoint=sns_endpoint,
            durability=durability,
            insecure=insecure,
        )
        layout = prepare(options)
        if only_prepare:
            _tell(ready, layout, {})
            click.echo(f"prepared in {where}")
            return
        _run(layout, ready, stay=stay)


def prepare(options: plan.DemoOptions) -> plan.Layout:
    """Files, topics, and the mirrors in the roster; may be repeated in the same folder."""
    topic_arn, bucket = _aws(options.sns_endpoint) if options.sns_endpoint else (None, None)
    layout = plan.prepare(options, topic_arn=topic_arn, bucket=bucket)
    with open_log(layout.log) as log:
        log.create(topics())
        _enlist(log, list(layout.mirrors))
    return layout


def _enlist(log: Log, names: list[str]) -> None:
    """Asks for each mirror to be added; a repeated request changes nothing."""
    from ..words import roster
    from ..words.shape import to_json

    requests = [
        roster.RosterRequest(
            id=f"demo-{name}", verb=roster.Verb.ADD, mirror=name, who=getpass.getuser(), time=time.time(), reason="demo"
        )
        for name in names
    ]
    log.append([NewRecord(topic=ROSTER_REQUESTS, key=request.id, value=to_json(request)) for request in requests])


def _aws(endpoint: str) -> tuple[str, str]:
    """An SNS topic and a bucket at this address; (ARN, bucket name)."""
    import boto3

    for name, value in (("AWS_ACCESS_KEY_ID", "demo"), ("AWS_SECRET_ACCESS_KEY", "demo")):
        os.environ.setdefault(name, value)
    region = "us-east-1"
    arn = boto3.client("sns", endpoint_url=endpoint, region_name=region).create_topic(Name="hg-events")["TopicArn"]
    bucket = "hg-events"
    boto3.client("s3", endpoint_url=endpoint, region_name=region).create_bucket(Bucket=bucket)
    return arn, bucket


def _run(layout: plan.Layout, ready: Path | None, *, stay: bool) -> None:
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    supervisor: DemoSupervisor | None = None

    def changed() -> None:
        if supervisor is not None and started:
            _tell(ready, layout, supervisor.pids())

    started = False
    supervisor = DemoSupervisor(layout.services, layout.options.folder.resolve(), changed)
    begin = time.monotonic()
    try:
        supervisor.start()
        started = True
        _tell(ready, layout, supervisor.pids())
        click.echo(
            f"{len(layout.services)} services are up after {time.monotonic() - begin:.1f} s in {layout.options.folder}"
        )
        if stay:
            _invite(layout)
            supervisor.run(stop)
        else:
            _show(layout)
    finally:
        supervisor.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _invite(layout: plan.Layout) -> None:
    click.echo(f"master   {layout.master_url}  (new repository: HGRCPATH={layout.master_env['HGRCPATH']} \\")
    click.echo(f"         hg init {layout.master_root}/NAME)")
    for name, url in layout.mirror_urls.items():
        click.echo(f"mirror   {url}  {name}")
    click.echo(f"notices  {layout.notices}")
    click.echo(f"status   vcsreplicator status --config {layout.config}")
    click.echo("Ctrl-C stops everything.")


def _show(layout: plan.Layout) -> None:
    """The scripted push: a new repository, two pushes, their timelines, the last notice."""
    with open_log(layout.log) as log:
        watcher = scenario.Watcher(log)
        try:
            name = f"hello-{int(time.time())}" if any(layout.master_root.iterdir()) else "hello"
            lines = len(layout.notices.read_text().splitlines()) if layout.notices.exists() else 0
            scenario.hg(layout, "init", str(layout.master_root / name), env=layout.master_env)
            watcher.wait_for_notice(name, 30)
            click.echo(f"\ncreated {name} on the master; the mirrors have it")
            for number, count in enumerate((1, 3), 2):
                output, returned = scenario.push_changesets(layout, name, count)
                moments = watcher.wait_for_notice(name, 30)
                notices, delivered = scenario.wait_for_lines(layout.notices, lines + number, 30)
                _timeline(count, output, [*moments, scenario.Moment(time=returned, what="hg push returned")], delivered)
            click.echo("\nThe notice:")
            rich.print_json(json.dumps(notices[-1]))
        finally:
            watcher.close()


def _timeline(count: int, output: str, moments: list[scenario.Moment], delivered: float) -> None:
    remote = [line.removeprefix("remote: ") for line in output.splitlines() if line.startswith("remote: ")]
    moments = [*moments, scenario.Moment(time=delivered, what="notice delivered (JSON lines)")]
    start = next(moment.time for moment in moments if moment.what == "committed on the master")
    in_order = sorted(moments, key=lambda moment: moment.time)
    timeline = table(("", ""), [(f"{(moment.time - start) * 1000:7.1f} ms", moment.what) for moment in in_order])
    timeline.show_header = False
    screen = console()
    screen.print(Text(f"\npush of {count} changeset{'s' if count > 1 else ''}", "bold"))
    for line in remote:
        screen.print(f"  remote: {line}")
    screen.print(timeline)


def _tell(file: Path | None, layout: plan.Layout, pids: dict[str, int | None]) -> None:
    if file is None:
        return
    content = {
        "master": {"root": str(layout.master_root), "env": dict(layout.master_env), "url": layout.master_url},
        "mirrors": [
            {"name": name, "root": str(root), "url": layout.mirror_urls[name]} for name, root in layout.mirrors.items()
        ],
        "services": {
            service.role: {"argv": list(service.argv), "env": dict(service.env), "pid": pids.get(service.role)}
            for service in layout.services
        },
        "log": layout.log,
        "pulse": layout.options.pulse
        and {"url": layout.options.pulse, "exchange_v1": plan.EXCHANGES[0], "exchange_v2": plan.EXCHANGES[1]},
        "sns": layout.topic_arn and {"topic_arn": layout.topic_arn, "bucket": layout.bucket},
        "status_url": layout.status_url,
    }
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(file)


@contextlib.contextmanager
def _folder(chosen: str | None, *, keep: bool) -> Iterator[Path]:
    if chosen is not None:
        path = Path(chosen).resolve()
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
